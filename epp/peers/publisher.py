"""What this picker tells its peers: its picks and what becomes of them, as messages that are the same for all of them. Pure.

All that happened within one `flush` is one message. The latest messages are kept, and each peer is somewhere in them: one
that is slow gets them later, and one that came too late for the oldest is told anew, first of the picks that are older and still in
flight, then of all that is kept. So nothing queues for a peer, and a newcomer knows after a moment what the others know.

Every pick is told, not how much each endpoint has ahead: who knows each prompt finds it again in the endpoint's counter of
computed tokens. With sums alone the time to the first token is 1.3 to 1.5 times longer on prompts of very different lengths.
"""

import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice, takewhile
from typing import Any, Final, TypeAlias

from epp.endpoints.endpoint import Endpoint, Key
from epp.peers.messages.peers_pb2 import Learnt, News, Picks, Queues
from epp.request.control_headers import MOST_TEXT
from epp.request.inference_request import PrefixChain
from epp.scheduling.pairing import COMPUTED_AT
from epp.scheduling.pick import Pick
from epp.scheduling.plugin import ChainProducer, DataProducer, TeachingProducer

MOST_KEPT_BYTES: Final = 1024 * 1024
MOST_KEPT: Final = 2048
"""Messages that are kept, and their bytes: twenty seconds and more of a picker that tells every 10 ms."""
MOST_CHAINS: Final = 4096
MOST_BLOCKS: Final = 65_536
"""Chains that later ones may refer to, and their blocks; who hears remembers as many."""
MOST_NAMES: Final = 10_000
"""Endpoints, and models, that have a number. Beyond, all are told anew, with new numbers."""
PART: Final = 500
"""What one message tells, at most: so many picks to a newcomer, and so many changes to all."""
PAST: Final = 60_000
"""Milliseconds: the age of picks that are in flight and no message is kept of."""
HASH_BYTES: Final = 8


Row: TypeAlias = tuple[int, int, int, int, int, bool, int, int, int, int]
"""One pick: what the columns of `Picks` have of it, in their order."""


class KeptNews:
    """One message, when it was flushed, and the number of the first pick that is not older."""

    __slots__ = ("at", "data", "first")

    def __init__(self, data: bytes, first: int) -> None:
        self.data = data
        self.first = first
        self.at = 0.0


class NamesInUse:
    """Numbers from 1 on for endpoints or models, and which of them were not told yet."""

    def __init__(self, most: int) -> None:
        self._most = most
        # bounded: `most`, by `is_full`
        self._numbers: dict[Key, int] = {}
        self.fresh: list[Key] = []

    @property
    def is_full(self) -> bool:
        return len(self._numbers) >= self._most

    def number(self, name: Key) -> int:
        found = self._numbers.get(name)
        if found is None:
            found = self._numbers[name] = len(self._numbers) + 1
            self.fresh.append(name)
        return found

    def all(self) -> Iterator[tuple[Key, int]]:
        return iter(self._numbers.items())


class RecentChains:
    """Finds, for a chain of block hashes, an earlier one that begins alike."""

    def __init__(self) -> None:
        # bounded: MOST_CHAINS and MOST_BLOCKS, by `add`
        self._chains: deque[tuple[int, Sequence[int]]] = deque()
        # bounded: the blocks of those
        self._by_block: dict[int, int] = {}
        self._blocks = 0

    def add(self, number: int, hashes: Sequence[int]) -> tuple[int, int]:
        """Returns the number of the latest pick whose chain begins alike, and of how many blocks; 0, 0: there is none."""
        shared = self._shared(hashes)
        base = self._by_block[hashes[shared - 1]] if shared else 0
        # the chain that they share with has the others, and is forgotten sooner: then they are told once more
        self._by_block.update(dict.fromkeys(hashes[shared:], number))
        self._chains.append((number, hashes))
        self._blocks += len(hashes)
        while len(self._chains) > MOST_CHAINS or self._blocks > MOST_BLOCKS:
            self._forget_oldest()
        return base, shared

    def _shared(self, hashes: Sequence[int]) -> int:
        """A hash covers all blocks before it: a chain with a block of this one has all that are before it.

        So whatever is found is right; it may be fewer than there are, where an older chain was forgotten.
        """
        low, high = 0, len(hashes)
        while low < high:
            middle = (low + high + 1) // 2
            if hashes[middle - 1] in self._by_block:
                low = middle
            else:
                high = middle - 1
        return low

    def _forget_oldest(self) -> None:
        number, hashes = self._chains.popleft()
        self._blocks -= len(hashes)
        for block in hashes:
            if self._by_block.get(block) == number:
                del self._by_block[block]


class PickPublisher:
    """Follows the picks of this picker. `wake`: called when there is something to tell, once until the next `flush`.

    `position`: of the next message. A peer's position is a number of this kind.
    """

    def __init__(
        self, wake: Callable[[], None], most_kept: int = MOST_KEPT, most_names: int = MOST_NAMES
    ) -> None:
        self._wake = wake
        self._most_kept = most_kept
        self._most_names = most_names
        self._chains_of: ChainProducer | None = None
        # bounded: by what is in flight
        self._open: dict[int, Pick] = {}
        self._next = 1
        # bounded: `most_kept` and MOST_KEPT_BYTES, by `_keep`
        self._kept: deque[KeptNews] = deque()
        self._kept_bytes = 0
        # bounded: by what can happen until the next flush
        self._full: list[KeptNews] = []
        self.position = 0
        self._ejected: Sequence[Key] = ()
        self._teaches: TeachingProducer | None = None
        self._learnt = Learnt()
        self._queues = Queues()
        self._begin()

    def _begin(self) -> None:
        self._endpoints, self._models = NamesInUse(self._most_names), NamesInUse(self._most_names)
        self._chains = RecentChains()
        self._full.clear()
        self._begin_message()

    def _begin_message(self) -> None:
        self._news, self._changes, self._first = News(), 0, self._next
        # bounded: PART picks
        self._rows: list[Row] = []
        # bounded: PART picks
        self._blocks = bytearray()

    def use(self, producers: Sequence[DataProducer]) -> None:
        """The data producers of the next picks."""
        self._chains_of = next((one for one in producers if isinstance(one, ChainProducer)), None)
        self._teaches = next((one for one in producers if isinstance(one, TeachingProducer)), None)

    def picked(self, pick: Pick) -> None:
        pick.told = number = self._next
        self._next += 1
        self._open[number] = pick
        prefix = self._chain_of(pick)
        units = base = shared = fresh = 0
        if prefix is not None and prefix.hashes:
            hashes, units = prefix.hashes, prefix.units
            base, shared = self._chains.add(number, hashes)
            fresh = len(hashes) - shared
            self._blocks += packed(hashes[shared:])
        back = number - base if shared else 0
        self._rows.append(self._row(self._news.picks, self._rows, pick, prefix, (units, back, shared, fresh)))
        self._changed()

    def moved(self, pick: Pick) -> None:
        if pick.told in self._open:
            number = self._endpoints.number(pick.in_flight_at[0].key)
            self._news.moves.add(number=pick.told, endpoint=number)
            self._changed()

    def settled(self, pick: Pick, *, served: bool) -> None:
        if pick.told in self._open:
            (self._news.served if served else self._news.failed).append(pick.told)
            self._changed()

    def unhelped(self, pick: Pick) -> None:
        if pick.told in self._open:
            for helper in [one for group in pick.helpers.values() for one in group]:
                if helper not in pick.in_flight_at:
                    self._news.unhelped.add(number=pick.told, endpoint=self._endpoints.number(helper.key))
            self._changed()

    def helped(self, pick: Pick) -> None:
        if pick.told in self._open:
            self._news.helped.append(pick.told)
            self._changed()

    def begun(self, pick: Pick) -> None:
        if pick.told:  # it may have ended: a data plane that says when the headers came says no more
            self._news.begun.append(pick.told)
            self._changed()

    def ended(self, pick: Pick) -> None:
        if self._open.pop(pick.told, None) is not None:
            self._news.ended.append(pick.told)
            self._changed()

    def ejected(self, endpoints: Sequence[Endpoint]) -> None:
        """All that are ejected now."""
        self._ejected = [one.key for one in endpoints]
        self._news.ejections.endpoints[:] = [self._endpoints.number(key) for key in self._ejected]
        self._news.ejections.SetInParent()
        self._changed()

    def teach(self) -> None:
        """Tell what was learnt of costs, if that is new. To be called from time to time."""
        fit = None if self._teaches is None else self._teaches.own_fit
        learnt = Learnt() if fit is None else Learnt(seconds=fit.seconds, answers=fit.answers)
        if learnt.seconds != self._learnt.seconds:
            self._learnt = learnt
            self._news.learnt.CopyFrom(learnt)
            self._changed()

    def queued(self, waiting: Mapping[int, int]) -> None:
        """How many requests wait at each priority now; told if that is new."""
        queues = Queues(priorities=waiting.keys(), waiting=waiting.values())
        if queues != self._queues:
            self._queues = queues
            self._news.queues.CopyFrom(queues)
            self._changed()

    def flush(self, now: float) -> None:
        """Keep all that happened since the last time, as one message, or as several if it is much."""
        if self._endpoints.is_full or self._models.is_full:
            self._start_over()
            return
        if self._changes:
            self._complete()
        for message in self._full:
            message.at = now
            self._keep(message)
        self._full.clear()

    def _complete(self) -> None:
        self._name_fresh(self._news)
        if self._rows:
            _fill(self._news.picks, self._rows)
            self._news.picks.blocks = bytes(self._blocks)
            if self._chains_of is not None:
                self._news.layout = self._chains_of.layout
        self._full.append(KeptNews(self._news.SerializeToString(), self._first))
        self._begin_message()

    def since(self, position: int) -> KeptNews | None:
        """The message at that position; None: it is not kept any more, or was not made yet."""
        at = position - (self.position - len(self._kept))
        return self._kept[at] if 0 <= at < len(self._kept) else None

    def is_lost(self, position: int) -> bool:
        """Whether a peer there has to be told anew."""
        return not self.position - len(self._kept) <= position <= self.position

    def anew(self) -> tuple[list[bytes], int]:
        """Return what a newcomer is told first, and the position from which on it is told the rest."""
        oldest = next(chain(self._kept, self._full), None)
        first = self._first if oldest is None else oldest.first
        older = [pick for _, pick in takewhile(lambda item: item[0] < first, self._open.items())]
        parts, picks = list[News](), iter(older)
        while some := list(islice(picks, PART)):
            parts.append(self._part(some))
        news = News(anew=True, learnt=self._learnt, queues=self._queues)
        news.ejections.endpoints[:] = [self._endpoints.number(key) for key in self._ejected]
        for key, number in self._endpoints.all():
            news.endpoints.add(number=number, id=key[0], incarnation=key[1])
        for key, number in self._models.all():
            news.models.add(number=number, name=key[0])
        return [part.SerializeToString() for part in (news, *parts)], self.position - len(self._kept)

    def _part(self, picks: Sequence[Pick]) -> News:
        """Picks as they are now."""
        part, rows = News(age_ms=PAST), list[Row]()
        for pick in picks:
            rows.append(self._row(part.picks, rows, pick, self._chain_of(pick), (0, 0, 0, 0)))
            if pick.settled:
                (part.served if 200 <= pick.status < 300 else part.failed).append(pick.told)
        _fill(part.picks, rows)
        return part

    def _chain_of(self, pick: Pick) -> PrefixChain | None:
        """Return the keys that its prompt was hashed to."""
        return None if self._chains_of is None else self._chains_of.chain(pick.request)

    def _row(
        self,
        picks: Picks,
        rows: Sequence[Row],
        pick: Pick,
        prefix: PrefixChain | None,
        chain: tuple[int, int, int, int],
    ) -> Row:
        """The next of `rows`; its helpers are told at once."""
        request, endpoints = pick.request, pick.in_flight_at
        is_named = 0 < len(request.model) <= MOST_TEXT
        if len(endpoints) > 1:
            self._tell_helpers(picks, len(rows), endpoints, prefix, COMPUTED_AT.of(request))
        number = self._endpoints.number(endpoints[0].key)
        model = self._models.number((request.model, "")) if is_named else 0
        held = 0 if prefix is None or not prefix.held else prefix.held[0] * prefix.unit_tokens
        return (pick.told, number, model, request.prompt_size, held, request.streaming, *chain)

    def _tell_helpers(
        self,
        picks: Picks,
        row: int,
        endpoints: Sequence[Endpoint],
        prefix: PrefixChain | None,
        computed_at: Key | None,
    ) -> None:
        held = {} if prefix is None else dict(zip(prefix.claims, prefix.held, strict=False))
        unit = 0 if prefix is None else prefix.unit_tokens
        for one in endpoints[1:]:
            number, computes = self._endpoints.number(one.key), one.key == computed_at
            tokens = held.get(one.key, 0) * unit
            picks.helpers.add(row=row, endpoint=number, held=tokens, computes=computes)

    def _name_fresh(self, news: News) -> None:
        for key in self._endpoints.fresh:
            news.endpoints.add(number=self._endpoints.number(key), id=key[0], incarnation=key[1])
        for key in self._models.fresh:
            news.models.add(number=self._models.number(key), name=key[0])
        self._endpoints.fresh.clear()
        self._models.fresh.clear()

    def _keep(self, news: KeptNews) -> None:
        self._kept.append(news)
        self._kept_bytes += len(news.data)
        self.position += 1
        while len(self._kept) > self._most_kept or (
            self._kept_bytes > MOST_KEPT_BYTES and len(self._kept) > 1
        ):
            self._kept_bytes -= len(self._kept.popleft().data)

    def _start_over(self) -> None:
        """Nobody's position is kept: all peers are told anew, with new numbers."""
        self._kept.clear()
        self._kept_bytes = 0
        self.position += 1
        self._begin()

    def _changed(self) -> None:
        if not self._changes and not self._full:
            self._wake()
        self._changes += 1
        if self._changes == PART:
            self._complete()


def _fill(picks: Picks, rows: Sequence[Row]) -> None:
    """All rows at once: a field of a message is found a microsecond later than one of a list."""
    columns: tuple[Any, ...] = (
        picks.numbers, picks.endpoints, picks.models, picks.prompt_bytes, picks.held, picks.streaming, picks.units, picks.backs,
        picks.shared, picks.fresh,
    )  # fmt: skip
    for column, values in zip(columns, zip(*rows, strict=True), strict=True):
        column.extend(values)


def packed(hashes: Sequence[int]) -> bytes:
    """8 bytes each, little-endian."""
    return _little_endian(array("Q", hashes))


def unpacked(blocks: bytes) -> bytes:
    """The same as this machine has integers; the length of `blocks` is a multiple of 8."""
    return blocks if sys.byteorder == "little" else _little_endian(array("Q", blocks))


def _little_endian(column: "array[int]") -> bytes:
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()
