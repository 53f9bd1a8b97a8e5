"""Counts the picks that one peer tells of as if they were ours. Pure.

A pick is told once and has a number, so nothing counts twice: what is in flight are the picks that were told and have not ended.
Who sends what makes no sense is believed nothing: the caller ends the connection, and all that it told is forgotten.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from operator import add
from typing import Final, TypeAlias

from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint, EndpointPool, Key
from epp.peers.messages.peers_pb2 import Learnt, News, Picks, Queues
from epp.peers.publisher import HASH_BYTES, MOST_BLOCKS, MOST_CHAINS, unpacked
from epp.request.control_headers import MOST_TEXT
from epp.request.inference_request import AwaitedFirstByte
from epp.scheduling.peer_pick import Fit, PeerPick
from epp.scheduling.picks_in_flight import PicksInFlight
from epp.scheduling.plugin import ChainProducer, DataProducer, SharingProducer

MOST_MESSAGE: Final = 4 * 1024 * 1024
"""Bytes of one message."""
MOST_PICKS: Final = 5000
"""Picks of one message, and outcomes of picks: tens of milliseconds of work."""
MOST_FORWARDED: Final = 4096
"""Entries of access logs: of one message, and of those that wait for one peer."""
MOST_OPEN: Final = 200_000
MOST_NUMBERED: Final = 20_000
"""Endpoints, and models, that have a number."""
MOST_HELPERS: Final = 16
MOST_CHAIN: Final = 2048
"""Blocks of one prompt."""
MOST_PROMPT: Final = 1 << 30
"""Bytes."""
MOST_UNITS: Final = 1 << 24
MOST_NUMBERS: Final = 32
"""A peer learnt at most so many: more than any version has."""
MOST_QUEUES: Final = 1024
MOST_SECONDS: Final = 3600.0
"""Each of these is less."""
_Helper: TypeAlias = tuple[Key, int, bool]
"""A worker that helps, how much it held of the prompt, and whether it computes it."""
_UNKNOWN: Final = -1.0
MOST_AWAITED: Final = 4096
OLD: Final = 5.0
"""Seconds. An older pick is claimed in prefix caches and in flight, but no longer ahead of anything."""


class PeerFaultError(Exception):
    """A peer sent what makes no sense; the text says what, and what was expected."""


def _check_size(news: News) -> None:
    """A message of 4 MiB may be a million short numbers, and the work of seconds."""
    outcomes = sum(
        map(len, (news.moves, news.unhelped, news.served, news.failed, news.helped, news.begun, news.ended))
    )
    for count, most, what in (
        (len(news.picks.numbers), MOST_PICKS, "picks"),
        (len(news.picks.helpers), MOST_PICKS, "helpers"),
        (outcomes, MOST_PICKS, "outcomes"),
        (len(news.endpoints), MOST_NUMBERED, "endpoints"),
        (len(news.models), MOST_NUMBERED, "models"),
        (len(news.ejections.endpoints), MOST_NUMBERED, "ejections"),
        (len(news.log_entries), MOST_FORWARDED, "entries of an access log"),
    ):
        if count > most:
            raise PeerFaultError(f"{count} {what} in one message; expected {most} at most")


def _read_fit(told: Learnt) -> Fit | None:
    """None: it has learnt nothing."""
    count = len(told.seconds)
    if count > MOST_NUMBERS:
        raise PeerFaultError(f"{count} numbers that it learnt; expected {MOST_NUMBERS} at most")
    if any(not isfinite(one) or not 0.0 <= one <= MOST_SECONDS for one in told.seconds):
        raise PeerFaultError(f"it learnt {list(told.seconds)}; expected seconds from 0 to {MOST_SECONDS:g}")
    if count and not told.answers:
        raise PeerFaultError("it learnt from 0 answers; expected 1 at least")  # its weight beside others
    return Fit(tuple(told.seconds), told.answers) if count else None


def _read_queues(told: Queues) -> dict[int, int]:
    count = len(told.priorities)
    if count > MOST_QUEUES or count != len(told.waiting):
        raise PeerFaultError(
            f"queues of {count} priorities and {len(told.waiting)} lengths; expected as many, and {MOST_QUEUES} at most"
        )
    return dict(zip(told.priorities, told.waiting, strict=True))


class _OpenPick(PeerPick):
    """One that has not ended. `producers`: those that learnt of it."""

    __slots__ = ("producers",)
    producers: Sequence[SharingProducer]


class PickSubscriber:
    """Counts what one peer told. `picks`: those of this picker, whose data producers learn of the peer's too."""

    def __init__(self, picks: PicksInFlight, datastore: Datastore, most_open: int = MOST_OPEN) -> None:
        self._picks = picks
        self._datastore = datastore
        self._most_open = most_open
        # bounded: `most_open`
        self._open: dict[int, _OpenPick] = {}
        # bounded: those in `_open`
        self._unplaced: set[int] = set()
        self._tried_among: Sequence[Endpoint] = ()
        # bounded: MOST_CHAINS and MOST_BLOCKS, by `_chain`
        self._chains: OrderedDict[int, bytes] = OrderedDict()
        self._blocks = 0
        # bounded: MOST_AWAITED, by `_end`
        self._awaited: OrderedDict[int, AwaitedFirstByte] = OrderedDict()
        """The first bytes that may come after the end of their picks: a data plane may tell of headers last."""
        # bounded: by the picks of one message, and by `most_open`
        self._sent: dict[Endpoint, int] = {}
        self._over: dict[Endpoint, int] = {}
        """Requests that begin at an endpoint, and that end, and are not counted yet."""
        # bounded: MOST_NUMBERED, by `_name`
        self._endpoints: dict[int, Key] = {}
        # bounded: the same
        self._models: dict[int, Key] = {}
        self._last = 0
        self._producers: Sequence[DataProducer] = ()
        self._sharing: Sequence[SharingProducer] = ()
        self._chained: Sequence[ChainProducer] = ()
        self.ejected: frozenset[Key] = frozenset()
        self.learnt: Fit | None = None
        # bounded: MOST_QUEUES
        self.waiting: Mapping[int, int] = {}
        """Requests that wait at it, by their priority."""
        self.other_layout = False
        """Whether its block hashes cannot be used here: its configuration has other blocks."""

    def __len__(self) -> int:
        """The number of its picks in flight."""
        return len(self._open)

    @property
    def unplaced(self) -> int:
        """How many of them have endpoints that are not known here."""
        return len(self._unplaced)

    def hear(self, news: News, now: float) -> None:
        """Count what one message tells. Raises PeerFaultError, and then what came before it stands until `forget`."""
        _check_size(news)
        if news.anew:
            self.forget()
        since = now - min(news.age_ms, 3_600_000) / 1000.0
        self._name(self._endpoints, ((one.number, (one.id, one.incarnation)) for one in news.endpoints))
        self._name(self._models, ((one.number, (one.name, "")) for one in news.models))
        try:
            if self._unplaced or news.HasField("picks"):
                pool = self._datastore.pool(since)
                self._place_rest(pool, now)
                self._hear_picks(news.picks, news.layout, pool, now)
            self._hear_outcomes(news, since, now)
        finally:
            self._count(since)
        if news.HasField("ejections"):
            self.ejected = frozenset([self._key(number) for number in news.ejections.endpoints])
        if news.HasField("learnt"):
            self.learnt = _read_fit(news.learnt)
        if news.HasField("queues"):
            self.waiting = _read_queues(news.queues)

    def _hear_outcomes(self, news: News, since: float, now: float) -> None:
        for move in news.moves:
            self._move(move.number, self._key(move.endpoint))
        for move in news.unhelped:
            self._help(move.number, self._key(move.endpoint))
        for number in news.served:
            self._settle(number, served=True)
        for number in news.failed:
            self._settle(number, served=False)
        for number in news.helped:
            self._help(number)
        for number in news.begun:
            self._begin(number, since, now)
        for number in news.ended:
            self._end(number)

    def forget(self) -> None:
        """Nothing that it told counts any more."""
        for number in list(self._open):
            self._end(number)
        self._count(0.0)
        for kept in self._chains, self._awaited, self._endpoints, self._models:
            kept.clear()
        self._blocks = self._last = 0
        self.ejected, self.learnt, self.waiting = frozenset(), None, {}

    def _name(self, names: dict[int, Key], told: Iterable[tuple[int, Key]]) -> None:
        for number, name in told:
            if len(names) >= MOST_NUMBERED and number not in names:
                raise PeerFaultError(f"more than {MOST_NUMBERED} names; expected to be told anew before")
            if max(map(len, name)) > 2 * MOST_TEXT:
                raise PeerFaultError(f"a name of more than {2 * MOST_TEXT} characters")
            names[number] = name

    def _key(self, number: int) -> Key:
        key = self._endpoints.get(number)
        if key is None:
            raise PeerFaultError(f"the endpoint {number} has no name; expected that to be told first")
        return key

    def _hear_picks(self, told: Picks, layout: int, pool: EndpointPool, now: float) -> None:
        if len(self._open) + len(told.numbers) > self._most_open:
            raise PeerFaultError(f"more than {self._most_open} picks in flight")
        self._find_producers()
        is_of_use = self._is_of_use(layout)
        helpers = self._helpers(told)
        blocks, at, models, now_there = told.blocks, 0, self._models, pool.now
        placed = list[_OpenPick]()
        for number, endpoint, model, size, held, streaming, units, back, shared, fresh in self._rows(told):
            named = models.get(model)
            pick = _OpenPick((self._key(endpoint),), (held,), named[0] if named else "", size, now_there)
            pick.streaming, pick.producers = bool(streaming), ()
            if helpers:
                self._add_helpers(pick, helpers.get(number, ()))
            end = at + fresh * HASH_BYTES
            if units and is_of_use:
                pick.blocks = self._chain(number, number - back, shared, blocks[at:end])
                pick.units, pick.layout = units, layout
            at = end
            self._last, self._open[number] = number, pick
            if self._find(pick):
                placed.append(pick)
            else:
                self._unplaced.add(number)
        self._place(placed, pool, now)

    def _rows(self, told: Picks) -> "zip[tuple[int, ...]]":
        numbers, sizes, units = list(told.numbers), list(told.prompt_bytes), list(told.units)
        shared, fresh = list(told.shared), list(told.fresh)
        columns: tuple[Sequence[int], ...] = (
            numbers, list(told.endpoints), list(told.models), sizes, list(told.held), list(told.streaming), units,
            list(told.backs), shared, fresh,
        )  # fmt: skip
        if len({len(one) for one in columns}) > 1:
            raise PeerFaultError(f"columns of {[len(one) for one in columns]} rows; expected as many in each")
        if numbers and (numbers[0] <= self._last or numbers != sorted({*numbers})):
            raise PeerFaultError(f"picks {numbers[:3]} after {self._last}; expected larger numbers, in order")
        if max(sizes, default=0) > MOST_PROMPT or max(units, default=0) > MOST_UNITS:
            raise PeerFaultError(f"a prompt of {max(sizes)} bytes, and one of {max(units)} blocks")
        if max(map(add, shared, fresh), default=0) > MOST_CHAIN:
            raise PeerFaultError(f"a chain of more than {MOST_CHAIN} blocks")
        if sum(fresh) * HASH_BYTES != len(told.blocks):
            raise PeerFaultError(f"{sum(fresh)} blocks in {len(told.blocks)} bytes")
        return zip(*columns, strict=True)

    def _helpers(self, told: Picks) -> dict[int, list[_Helper]]:
        """By the number of the pick."""
        # bounded: MOST_PICKS, by `_check_size`
        found: dict[int, list[_Helper]] = {}
        for one in told.helpers:
            if one.row >= len(told.numbers):
                raise PeerFaultError(f"a helper of pick {one.row} of {len(told.numbers)}")
            found.setdefault(told.numbers[one.row], []).append(
                (self._key(one.endpoint), one.held, one.computes)
            )
        if max(map(len, found.values()), default=0) >= MOST_HELPERS:
            raise PeerFaultError(f"a pick with more than {MOST_HELPERS} endpoints")
        return found

    @staticmethod
    def _add_helpers(pick: PeerPick, helpers: Sequence[_Helper]) -> None:
        pick.keys = (*pick.keys, *[key for key, _, _ in helpers])
        pick.held = (*pick.held, *[held for _, held, _ in helpers])
        pick.computed_at = next((key for key, _, computes in helpers if computes), None)

    def _is_of_use(self, layout: int) -> bool:
        """Whether anybody here can compare these hashes."""
        if layout:
            self.other_layout = layout not in [one.layout for one in self._chained]
        return bool(layout) and not self.other_layout

    def _chain(self, number: int, base: int, shared: int, fresh: bytes) -> bytes:
        """Empty: it begins as one that is not known here, as it was told before this picker listened."""
        whole = unpacked(fresh)
        if shared:
            known = self._chains.get(base, b"")
            if len(known) < shared * HASH_BYTES:
                return b""
            whole = known[: shared * HASH_BYTES] + whole
        self._chains[number] = whole
        self._blocks += len(whole) // HASH_BYTES
        while len(self._chains) > MOST_CHAINS or self._blocks > MOST_BLOCKS:
            self._blocks -= len(self._chains.popitem(last=False)[1]) // HASH_BYTES
        return whole

    def _place_rest(self, pool: EndpointPool, now: float) -> None:
        """Endpoints may be known here later than there."""
        if self._unplaced and pool.endpoints is not self._tried_among:
            self._tried_among = pool.endpoints
            self._find_producers()
            for number in sorted(self._unplaced):
                if self._find(pick := self._open[number]):
                    self._unplaced.discard(number)
                    self._place([pick], pool, now)

    def _find(self, pick: PeerPick) -> bool:
        """Its endpoints; False: they are not all known here."""
        known = [one for key in pick.keys if (one := self._datastore.find(key)) is not None]
        if len(known) < len(pick.keys):
            return False
        pick.endpoints = known
        return True

    def _place(self, picks: Sequence[_OpenPick], pool: EndpointPool, now: float) -> None:
        """Count them where they were sent; all were made at the same time."""
        if not picks:
            return
        producers = self._chained if now - picks[0].since > OLD else self._sharing
        new = [pick for pick in picks if not pick.settled]
        for pick in new:
            pick.producers = producers
        if new:
            for producer in producers:
                producer.peers_picked(new, pool)
        for pick in picks:
            for endpoint in pick.endpoints:
                self._sent[endpoint] = self._sent.get(endpoint, 0) + 1

    def _count(self, since: float) -> None:
        """Show all that began and ended, each endpoint once."""
        for endpoint in self._sent.keys() | self._over.keys():
            sent, over = self._sent.get(endpoint, 0), self._over.get(endpoint, 0)
            self._datastore.count_for_peers(endpoint, sent, over, since)
        self._sent.clear()
        self._over.clear()

    def _find_producers(self) -> None:
        """Looks among those of the next picks, which change with the configuration."""
        if self._producers is not self._picks.producers:
            self._producers = self._picks.producers
            self._sharing = [one for one in self._producers if isinstance(one, SharingProducer)]
            self._chained = [one for one in self._sharing if isinstance(one, ChainProducer)]

    def _move(self, number: int, key: Key) -> None:
        pick = self._open.get(number)
        if pick is None:
            return
        pick.keys = (key, *pick.keys[1:])
        server = self._datastore.find(key)
        if not pick.endpoints or server is None:
            return  # it stays where it is counted: nothing is known of who serves it
        before, *helpers = pick.endpoints
        pick.endpoints = (server, *helpers)
        self._datastore.count_for_peers(server, 1, 0, pick.since)
        self._over[before] = self._over.get(before, 0) + 1

    def _settle(self, number: int, *, served: bool) -> None:
        pick = self._open.get(number)
        if pick is None or pick.settled:
            return
        pick.settled = True
        for producer in pick.producers:
            if served:
                producer.peer_served(pick)
            else:
                producer.peer_failed(pick)
        pick.data.clear()
        pick.blocks = b""

    def _begin(self, number: int, at: float, now: float) -> None:
        """The first byte of its answer came at `at`, in seconds of this picker's clock: its prompt is not ahead any more."""
        pick = self._open.get(number)
        awaited = self._awaited.pop(number, None) if pick is None else pick.awaited
        if awaited is not None:
            awaited.came(at, now, _UNKNOWN)
        if pick is not None:
            pick.awaited = None

    def _help(self, number: int, key: Key | None = None) -> None:
        """This helper, or without a key all of them, is in flight no longer."""
        pick = self._open.get(number)
        if pick is None:
            return
        first, *helpers = pick.keys
        pick.keys = (first, *[one for one in helpers if key not in (None, one)])
        for endpoint in [one for one in pick.endpoints[1:] if key in (None, one.key)]:
            self._over[endpoint] = self._over.get(endpoint, 0) + 1
        pick.endpoints = [
            *pick.endpoints[:1],
            *[one for one in pick.endpoints[1:] if one.key in pick.keys[1:]],
        ]

    def _end(self, number: int) -> None:
        self._settle(number, served=False)
        pick = self._open.pop(number, None)
        if pick is not None:
            if pick.awaited is not None:
                pick.awaited.ended()
                self._awaited[number] = pick.awaited
                if len(self._awaited) > MOST_AWAITED:
                    self._awaited.popitem(last=False)
            self._unplaced.discard(number)
            for endpoint in pick.endpoints:
                self._over[endpoint] = self._over.get(endpoint, 0) + 1
