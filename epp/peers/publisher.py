"""Tells peers of this picker's picks and what becomes of them, by messages that are the same for all of them. Pure.

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
from epp.scheduling.plugin import ChainProducer, CostLearner, DataProducer

MOST_KEPT_BYTES: Final = 1024 * 1024
MOST_KEPT: Final = 2048
"""Messages that are kept, and their bytes: twenty seconds and more of a picker that tells every 10 ms."""
MOST_CHAINS: Final = 4096
MOST_BLOCKS: Final = 65_536
"""Chains that later ones may refer to, and their blocks; who hears remembers as many."""
MOST_NAMES: Final = 10_000
"""Endpoints, and models, that have a number. Beyond, all are told anew, with new numbers."""
PART: Final = 500
"""One message tells a newcomer of so many picks at most, and all peers of so many changes."""
PAST: Final = 60_000
"""Milliseconds: the age of picks that are in flight and no message is kept of."""
HASH_BYTES: Final = 8


_Picked: TypeAlias = tuple[Pick, Key, PrefixChain | None]
"""One pick, the endpoint that answers, and what its prompt was hashed to."""
_Row: TypeAlias = tuple[int, int, int, int, int, bool, int, int, int, int]
"""One pick: what the columns of `Picks` have of it, in their order."""
_NO_CHAIN: Final = (0, 0, 0, 0)


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
    """Finds, for a chain of block hashes, an earlier one that begins alike.

    The older half of what is known is forgotten at once, when the newer one is full.
    """

    def __init__(self) -> None:
        # bounded: half of MOST_BLOCKS each, by `add`
        self._newer: dict[int, int] = {}
        self._older: dict[int, int] = {}
        self._count = self._blocks = 0
        """The chains of the newer half, and their blocks."""

    def add(self, number: int, hashes: Sequence[int]) -> tuple[int, int]:
        """Returns the number of the latest pick whose chain begins alike, and of how many blocks; 0, 0: there is none."""
        self._count += 1
        self._blocks += len(hashes)
        if 2 * self._count > MOST_CHAINS or 2 * self._blocks > MOST_BLOCKS:
            self._older, self._newer = self._newer, {}
            self._count, self._blocks = 1, len(hashes)
        shared = known = self._shared(hashes)
        base = self._newer.get(hashes[shared - 1], 0) if shared else 0
        if shared and not base:  # from now on as blocks of this chain, which is forgotten later
            base, known = self._older[hashes[shared - 1]], 0
        self._newer.update(dict.fromkeys(hashes[known:], number))
        return base, shared

    def _shared(self, hashes: Sequence[int]) -> int:
        """A hash covers all blocks before it: a chain with a block of this one has all that are before it.

        So whatever is found is right; it may be fewer than there are, where an older chain was forgotten.
        """
        newer, older, low, high = self._newer, self._older, 0, len(hashes)
        if hashes[0] not in newer and hashes[0] not in older:
            return 0
        while low < high:
            middle = (low + high + 1) // 2
            if (block := hashes[middle - 1]) in newer or block in older:
                low = middle
            else:
                high = middle - 1
        return low


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
        self._learner: CostLearner | None = None
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
        # bounded: PART changes, all of them; all at once they take a fraction of what each takes alone
        self._picked: list[_Picked] = []
        self._served: list[int] = []
        self._begun: list[int] = []
        self._ended: list[int] = []

    def use(self, producers: Sequence[DataProducer]) -> None:
        """The data producers of the next picks."""
        self._chains_of = next((one for one in producers if isinstance(one, ChainProducer)), None)
        self._learner = next((one for one in producers if isinstance(one, CostLearner)), None)

    def picked(self, pick: Pick) -> None:
        pick.peer_number = number = self._next
        self._next += 1
        self._open[number] = pick
        prefix, endpoints = self._chain_of(pick), pick.in_flight_at
        if len(endpoints) > 1:
            self._tell_helpers(self._news.picks, len(self._picked), pick, prefix)
        self._picked.append((pick, endpoints[0].key, prefix))
        self._changed()

    def moved(self, pick: Pick) -> None:
        if pick.peer_number in self._open:
            number = self._endpoints.number(pick.in_flight_at[0].key)
            self._news.moves.add(number=pick.peer_number, endpoint=number)
            self._changed()

    def settled(self, pick: Pick, *, served: bool) -> None:
        if pick.peer_number in self._open:
            (self._served if served else self._news.failed).append(pick.peer_number)
            self._changed()

    def unhelped(self, pick: Pick) -> None:
        if pick.peer_number in self._open:
            for helper in [one for group in pick.helpers.values() for one in group]:
                if helper not in pick.in_flight_at:
                    self._news.unhelped.add(
                        number=pick.peer_number, endpoint=self._endpoints.number(helper.key)
                    )
            self._changed()

    def helped(self, pick: Pick) -> None:
        if pick.peer_number in self._open:
            self._news.helped.append(pick.peer_number)
            self._changed()

    def answer_began(self, pick: Pick) -> None:
        if pick.peer_number:  # it may have ended: a data plane that says when the headers came says no more
            self._begun.append(pick.peer_number)
            self._changed()

    def ended(self, pick: Pick) -> None:
        if self._open.pop(pick.peer_number, None) is not None:
            self._ended.append(pick.peer_number)
            self._changed()

    def ejected(self, endpoints: Sequence[Endpoint]) -> None:
        """All that are ejected now."""
        self._ejected = [one.key for one in endpoints]
        self._news.ejections.endpoints[:] = [self._endpoints.number(key) for key in self._ejected]
        self._news.ejections.SetInParent()
        self._changed()

    def teach(self) -> None:
        """Tell what was learnt of costs, if that is new. To be called from time to time."""
        fit = None if self._learner is None else self._learner.own_fit
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
        news = self._news
        if self._picked:
            self._tell_picks(news)
        self._name_fresh(news)
        news.served.extend(self._served)
        news.begun.extend(self._begun)
        news.ended.extend(self._ended)
        self._full.append(KeptNews(news.SerializeToString(), self._first))
        self._begin_message()

    def _tell_picks(self, news: News) -> None:
        rows, blocks, add = list[_Row](), array("Q"), self._chains.add
        for pick, key, prefix in self._picked:
            chain = _NO_CHAIN
            if prefix is not None and prefix.hashes:
                hashes = prefix.hashes
                base, shared = add(pick.peer_number, hashes)
                fresh = hashes[shared:]
                blocks.extend(fresh)
                chain = (prefix.units, pick.peer_number - base if shared else 0, shared, len(fresh))
            rows.append(self._row(pick, key, prefix, chain))
        _fill(news.picks, rows)
        news.picks.blocks = packed(blocks)
        if self._chains_of is not None:
            news.layout = self._chains_of.layout

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
        part, rows = News(age_ms=PAST), list[_Row]()
        for pick in picks:
            prefix = self._chain_of(pick)
            if len(pick.in_flight_at) > 1:
                self._tell_helpers(part.picks, len(rows), pick, prefix)
            rows.append(self._row(pick, pick.in_flight_at[0].key, prefix, _NO_CHAIN))
            if pick.settled:
                (part.served if 200 <= pick.status < 300 else part.failed).append(pick.peer_number)
        _fill(part.picks, rows)
        return part

    def _chain_of(self, pick: Pick) -> PrefixChain | None:
        """Return the keys that its prompt was hashed to."""
        return None if self._chains_of is None else self._chains_of.chain(pick.request)

    def _row(
        self, pick: Pick, key: Key, prefix: PrefixChain | None, chain: tuple[int, int, int, int]
    ) -> _Row:
        request = pick.request
        is_named = 0 < len(request.model) <= MOST_TEXT
        number = self._endpoints.number(key)
        model = self._models.number((request.model, "")) if is_named else 0
        held = 0 if prefix is None or not prefix.held else prefix.held[0] * prefix.unit_tokens
        return (pick.peer_number, number, model, request.prompt_size, held, request.streaming, *chain)

    def _tell_helpers(self, picks: Picks, row: int, pick: Pick, prefix: PrefixChain | None) -> None:
        held = {} if prefix is None else dict(zip(prefix.claims, prefix.held, strict=False))
        unit, computed_at = 0 if prefix is None else prefix.unit_tokens, COMPUTED_AT.of(pick.request)
        for one in pick.in_flight_at[1:]:
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


def _fill(picks: Picks, rows: Sequence[_Row]) -> None:
    """All rows at once."""
    columns: tuple[Any, ...] = (
        picks.numbers, picks.endpoints, picks.models, picks.prompt_bytes, picks.held, picks.streaming, picks.units, picks.backs,
        picks.shared, picks.fresh,
    )  # fmt: skip
    for column, values in zip(columns, zip(*rows, strict=True), strict=True):
        column.extend(values)


def packed(hashes: "array[int]") -> bytes:
    """8 bytes each, little-endian; may change the column."""
    if sys.byteorder == "big":
        hashes.byteswap()
    return hashes.tobytes()


def unpacked(blocks: bytes) -> bytes:
    """The same as this machine has integers; the length of `blocks` is a multiple of 8."""
    return blocks if sys.byteorder == "little" else packed(array("Q", blocks))
