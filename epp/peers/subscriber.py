"""What one peer tells of its picks, counted here as if they were ours. Pure.

A pick is told once and has a number, so nothing counts twice: what is in flight are the picks that were told and have not ended.
Who sends what makes no sense is believed nothing: the caller ends the connection, and all that it told is forgotten.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint, EndpointPool, Key
from epp.peers.messages.peers_pb2 import News
from epp.peers.messages.peers_pb2 import Pick as ToldPick
from epp.peers.publisher import HASH_BYTES, MOST_BLOCKS, MOST_CHAINS, unpacked
from epp.request.control_headers import MOST_TEXT
from epp.request.inference_request import InferenceRequest
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
OLD: Final = 5.0
"""Seconds. What is older is claimed in prefix caches and in flight, but no longer ahead of anything."""
_NO_HASHES: Final[Sequence[int]] = ()


class PeerFaultError(Exception):
    """A peer sent what makes no sense; the text says what, and what was expected."""


def _check_size(news: News) -> None:
    """A message of 4 MiB may be a million short numbers, and the work of seconds."""
    outcomes = len(news.moves) + len(news.served) + len(news.failed) + len(news.ended)
    for count, most, what in (
        (len(news.picks), MOST_PICKS, "picks"),
        (outcomes, MOST_PICKS, "outcomes"),
        (len(news.endpoints), MOST_NUMBERED, "endpoints"),
        (len(news.models), MOST_NUMBERED, "models"),
        (len(news.ejections.endpoints), MOST_NUMBERED, "ejections"),
        (len(news.log_entries), MOST_FORWARDED, "entries of an access log"),
    ):
        if count > most:
            raise PeerFaultError(f"{count} {what} in one message; expected {most} at most")


class PeerPick:
    """`endpoints`: where it counts; empty: its endpoints are not known here yet. `hashes`: of its prompt's blocks."""

    __slots__ = ("endpoints", "hashes", "keys", "layout", "producers", "request", "settled", "since", "units")

    def __init__(self, request: InferenceRequest, keys: tuple[Key, ...], since: float) -> None:
        self.request = request
        self.keys = keys
        self.since = since
        self.hashes = _NO_HASHES
        self.units = self.layout = 0
        self.endpoints: tuple[Endpoint, ...] = ()
        self.producers: Sequence[SharingProducer] = ()
        self.settled = False


class PickSubscriber:
    """What one peer told. `picks`: those of this picker, whose data producers learn of the peer's too."""

    def __init__(self, picks: PicksInFlight, datastore: Datastore, most_open: int = MOST_OPEN) -> None:
        self._picks = picks
        self._datastore = datastore
        self._most_open = most_open
        # bounded: `most_open`
        self._open: dict[int, PeerPick] = {}
        # bounded: those in `_open`
        self._unplaced: set[int] = set()
        self._tried_among: Sequence[Endpoint] = ()
        # bounded: MOST_CHAINS and MOST_BLOCKS, by `_keep_chain`
        self._chains: OrderedDict[int, Sequence[int]] = OrderedDict()
        self._blocks = 0
        # bounded: MOST_NUMBERED, by `_name`
        self._endpoints: dict[int, Key] = {}
        # bounded: the same
        self._models: dict[int, Key] = {}
        self._last = 0
        self._producers: Sequence[DataProducer] = ()
        self._sharing: Sequence[SharingProducer] = ()
        self._chained: Sequence[ChainProducer] = ()
        self.ejected: frozenset[Key] = frozenset()
        self.other_layout = False
        """Whether its block hashes cannot be used here: its configuration has other blocks."""

    def __len__(self) -> int:
        """The number of its picks in flight."""
        return len(self._open)

    @property
    def unplaced(self) -> int:
        """Those of them whose endpoints are not known here."""
        return len(self._unplaced)

    def hear(self, news: News, now: float) -> None:
        """Count what one message tells. Raises PeerFaultError, and then what came before it stands until `forget`."""
        _check_size(news)
        if news.anew:
            self.forget()
        since = now - min(news.age_ms, 3_600_000) / 1000.0
        self._name(self._endpoints, ((one.number, (one.id, one.incarnation)) for one in news.endpoints))
        self._name(self._models, ((one.number, (one.name, "")) for one in news.models))
        if news.picks or self._unplaced:
            pool = self._datastore.pool(since)
            self._place_rest(pool, now)
            for told in news.picks:
                self._hear_pick(told, news.layout, pool, now)
        self._hear_outcomes(news)
        if news.HasField("ejections"):
            self.ejected = frozenset([self._key(number) for number in news.ejections.endpoints])

    def _hear_outcomes(self, news: News) -> None:
        for move in news.moves:
            self._move(move.number, self._key(move.endpoint))
        for number in news.served:
            self._settle(number, served=True)
        for number in news.failed:
            self._settle(number, served=False)
        for number in news.ended:
            self._end(number)

    def forget(self) -> None:
        """Nothing that it told counts any more."""
        for number in list(self._open):
            self._end(number)
        for kept in self._chains, self._endpoints, self._models:
            kept.clear()
        self._blocks = self._last = 0
        self.ejected = frozenset()

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

    def _hear_pick(self, told: ToldPick, layout: int, pool: EndpointPool, now: float) -> None:
        number = told.number
        if number <= self._last:
            raise PeerFaultError(f"pick {number} after pick {self._last}; expected larger numbers")
        if len(self._open) >= self._most_open:
            raise PeerFaultError(f"more than {self._most_open} picks in flight")
        if not 1 <= len(told.endpoints) <= MOST_HELPERS:
            raise PeerFaultError(f"a pick with {len(told.endpoints)} endpoints; expected 1 to {MOST_HELPERS}")
        if told.prompt_bytes > MOST_PROMPT or told.units > MOST_UNITS:
            raise PeerFaultError(f"a prompt of {told.prompt_bytes} bytes in {told.units} blocks")
        self._last = number
        model = self._models.get(told.model)
        request = InferenceRequest("", "", {}, "" if model is None else model[0])
        request.streaming, request.prompt_size = told.streaming, told.prompt_bytes
        pick = PeerPick(request, tuple([self._key(one) for one in told.endpoints]), pool.now)
        if told.units:
            pick.hashes, pick.units, pick.layout = self._chain(told), told.units, layout
        self._open[number] = pick
        if not self._place(pick, pool, now):
            self._unplaced.add(number)

    def _chain(self, told: ToldPick) -> Sequence[int]:
        """Empty: it begins as one that is not known here, as it was told before this picker listened."""
        if len(told.blocks) % HASH_BYTES or told.shared + len(told.blocks) // HASH_BYTES > MOST_CHAIN:
            raise PeerFaultError(f"a chain of {told.shared} blocks and {len(told.blocks)} bytes")
        rest = unpacked(told.blocks)
        if told.shared:
            base = self._chains.get(told.number - told.back)
            if base is None or len(base) < told.shared:
                return _NO_HASHES
            rest = [*base[: told.shared], *rest]
        self._chains[told.number] = rest
        self._blocks += len(rest)
        while len(self._chains) > MOST_CHAINS or self._blocks > MOST_BLOCKS:
            self._blocks -= len(self._chains.popitem(last=False)[1])
        return rest

    def _place_rest(self, pool: EndpointPool, now: float) -> None:
        """Endpoints may be known here later than there."""
        if self._unplaced and pool.endpoints is not self._tried_among:
            self._tried_among = pool.endpoints
            placed = [number for number in self._unplaced if self._place(self._open[number], pool, now)]
            self._unplaced.difference_update(placed)

    def _place(self, pick: PeerPick, pool: EndpointPool, now: float) -> bool:
        """Count it where it was sent; False: that is not known here."""
        found = [self._datastore.find(key) for key in pick.keys]
        endpoints = tuple([one for one in found if one is not None])
        if len(endpoints) < len(found):
            return False
        if not pick.settled:
            self._find_producers()
            pick.producers = self._chained if now - pick.since > OLD else self._sharing
        for producer in pick.producers:
            producer.told(pick.request, pool, pick.hashes, pick.units, pick.layout)
        for producer in pick.producers:
            producer.picked(pick.request, endpoints)
        for endpoint in endpoints:
            self._datastore.reserve_for_peer(endpoint, pick.since)
        pick.endpoints = endpoints
        if pick.layout:
            self.other_layout = all(one.layout != pick.layout for one in self._chained)
        return True

    def _find_producers(self) -> None:
        """Of those of the next picks, which change with the configuration."""
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
        self._datastore.reserve_for_peer(server, pick.since)
        pick.endpoints = (server, *helpers)
        self._datastore.release_for_peer(before)

    def _settle(self, number: int, *, served: bool) -> None:
        pick = self._open.get(number)
        if pick is None or pick.settled:
            return
        pick.settled = True
        for producer in pick.producers:
            if served:
                producer.served(pick.request, pick.endpoints)
            else:
                producer.failed(pick.request)
        pick.request.prefixes.clear()
        pick.request.data.clear()

    def _end(self, number: int) -> None:
        self._settle(number, served=False)
        pick = self._open.pop(number, None)
        if pick is not None:
            self._unplaced.discard(number)
            for endpoint in pick.endpoints:
                self._datastore.release_for_peer(endpoint)
