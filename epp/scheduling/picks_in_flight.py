"""Follows each pick from its reservation until its end, and tells data producers and outlier detection of it. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint
from epp.outliers.detection import OutlierDetection
from epp.outliers.requesters import hash_prompt, requester_of
from epp.outliers.settings import Failure
from epp.request.control_headers import MOST_TEXT
from epp.request.subset import Subset
from epp.scheduling.pick import Pick
from epp.scheduling.plugin import DataProducer


class EvictableRequests(Protocol):
    """Follows the requests that may be taken back from their workers (`Pick.evict`)."""

    def began(self, pick: Pick) -> None:
        """A request of negative priority was sent to its endpoint."""

    def ended(self, pick: Pick, now: float) -> None:
        """A request of any priority is over. May be called twice."""


class PickObserver(Protocol):
    """Tells peers of each pick and of what becomes of it."""

    def picked(self, pick: Pick) -> None:
        """It is in flight."""

    def moved(self, pick: Pick) -> None:
        """Another endpoint answers than was picked."""

    def settled(self, pick: Pick, *, served: bool) -> None:
        """Data producers learn now whether it was served."""

    def unhelped(self, pick: Pick) -> None:
        """Some of its helpers did nothing; they are not in flight any more, and `settled` comes later."""

    def helped(self, pick: Pick) -> None:
        """Its helpers have done their part, and it is in flight at the endpoint that answers alone."""

    def answer_began(self, pick: Pick) -> None:
        """The first byte of its streamed answer came, and was heard of at once."""

    def ended(self, pick: Pick) -> None:
        """It is in flight no longer. May be called twice."""


_NEWS: Final = 0.2
"""Seconds for which a first byte is news to peers: a log that tells later tells nothing of what is ahead now."""
_PREFILL: Final = "prefill"
"""The role of the helper of which `fell_back` tells."""
_FAULTS: Final[Mapping[str, Failure | None]] = {
    "unreachable": Failure.CONNECT, "lost": Failure.CONNECT, "timeout": Failure.TIMEOUT, "status": None, "answer": None,
}  # fmt: skip
"""The reasons that a sidecar gives, where that is the prefill worker's fault; None: it answered, with an error or nonsense."""


class PicksInFlight:
    """Counts picked requests as in flight, at the endpoint that answers and at its helpers.

    `producers`: the data producers that learn of the next picks. `outliers`: learns of all requests, if there is one;
    so do `peers`.
    """

    def __init__(self, datastore: Datastore) -> None:
        self._datastore = datastore
        self._follow: list[_Following] = []
        self.producers: Sequence[DataProducer] = []
        self.outliers: OutlierDetection | None = None
        self.evictable: EvictableRequests | None = None
        self.peers: PickObserver | None = None

    def use(self, producers: Sequence[DataProducer]) -> None:
        """Let these follow the endpoints and the next picks, instead of those before."""
        for following in [one for one in self._follow if not _has(producers, one.producer)]:
            following.end(self._datastore)
            self._follow.remove(following)
        for producer in producers:
            if not _has(self.producers, producer):
                self._follow.append(_Following(producer, self._datastore))
        self.producers = producers

    def add(self, pick: Pick, now: float) -> None:
        """Reserve a pick, or take it back and raise the error of a plugin."""
        request = pick.request
        pick.prompt_hash = 0 if self.outliers is None else hash_prompt(request)
        request.prompt = request.body = (
            None  # it refers to the whole body, which would stay in memory until the answer ends
        )
        pick.producers = self.producers
        try:
            for producer in self.producers:
                producer.picked(request, pick.in_flight_at)
        except Exception:
            self._take_back(pick, producer)
            raise
        if request.awaited is not None:
            pick.expected = request.awaited.seconds
        for endpoint in pick.in_flight_at:
            self._datastore.reserve(endpoint)
        if self.peers is not None:
            self.peers.picked(pick)
        if self.evictable is not None and request.priority < 0:
            self.evictable.began(pick)
        if self.outliers is not None:
            _note_sent(self.outliers, pick, now)

    def _take_back(self, pick: Pick, faulty: DataProducer) -> None:
        """Undo a pick that is not reserved: `faulty` raised when it learnt of it; those after it did not learn."""
        last = next(row for row, producer in enumerate(pick.producers) if producer is faulty)
        pick.producers = pick.producers[: last + 1]
        self._end(pick)

    def served(self, pick: Pick, destination: str) -> None:
        """The data plane reports which destination served: the request counts as in flight there instead.

        Envoy may have retried on a fallback. If the destination is no endpoint of this pool, no prefix cache has the prompt.
        """
        if not pick.in_flight_at:
            return
        pick.served_by = destination[:MOST_TEXT]
        if destination == pick.in_flight_at[0].destination and pick.in_flight_at[0] is pick.endpoints[0]:
            return  # the common case
        reported = Subset.of([destination])
        ours = (*pick.endpoints, *self._datastore.endpoints)
        server = next(
            (endpoint for endpoint in ours if reported.allows(endpoint.address, endpoint.port)), None
        )
        if server is None:
            self._settle(pick, served=False)
            return
        before, *helpers = pick.in_flight_at
        if server.key != before.key:
            # Before the release, whose hooks must not see a slot that is taken again at once
            self._datastore.reserve(server)
            pick.in_flight_at = (server, *helpers)
            self._datastore.release(before)
            if self.peers is not None:
                self.peers.moved(pick)

    def heard_late(self, by: float) -> None:
        """The beginning of a streamed answer may be heard of so many seconds after it came."""
        if self.outliers is not None:
            self.outliers.heard_late = by

    def retried(self, pick: Pick, attempts: int, now: float) -> None:
        """The data plane made so many attempts: find out whether the endpoints before the one that served live."""
        if not pick.in_flight_at:
            return
        pick.attempts = attempts
        for endpoint in _tried_in_vain(pick):
            self._datastore.suspect(endpoint)

    def fell_back(self, pick: Pick, reason: str, now: float) -> None:
        """The decode worker computed the prompt, and no prefill worker did; called before `responded`."""
        failed = [one for one in pick.in_flight_at[1:] if one in pick.helpers.get(_PREFILL, ())]
        if not failed:
            return
        pick.fell_back(reason)
        if pick.request.awaited is not None:
            pick.request.awaited.ended()  # what comes tells nothing of a transfer
            pick.request.awaited = None
        pick.in_flight_at = tuple([one for one in pick.in_flight_at if one not in failed])
        for helper in failed:
            self._datastore.release(helper)
            if self.outliers is not None and reason in _FAULTS:
                self.outliers.helped((pick, helper.key), helper, 502, _FAULTS[reason], now)
            if _FAULTS.get(reason) is Failure.CONNECT:
                self._datastore.suspect(helper)
        if self.peers is not None:
            self.peers.unhelped(pick)

    def first_byte(self, pick: Pick, at: float, now: float) -> None:
        """The answer began at `at`, as is heard now; only of streamed answers, and once."""
        awaited, pick.request.awaited = pick.request.awaited, None
        if awaited is not None and pick.served_by in ("", pick.endpoints[0].destination):
            pick.first_byte_at = at
            awaited.came(at, now, pick.responded_at)
            if self.peers is not None and now - at < _NEWS:
                self.peers.answer_began(pick)

    def responded(self, pick: Pick, status: int, now: float, failure: Failure | None = None) -> None:
        """The response headers came: tell the data producers whether the request succeeded.

        `failure`: the data plane answered in place of the worker. If it could not reach it, find out whether it lives.
        """
        if not pick.in_flight_at:
            return
        pick.status, pick.responded_at = status, now
        server = pick.in_flight_at[0]
        if self.outliers is not None and not pick.settled:  # otherwise `served` named a stranger
            _judge(self.outliers, pick, failure, now)
        self._settle(pick, served=200 <= status < 300)
        if pick.request.streaming and len(pick.in_flight_at) > 1:
            # an answer begins when the helpers have done their part
            server, *helpers = pick.in_flight_at
            pick.in_flight_at = (server,)
            for helper in helpers:
                self._datastore.release(helper)
            if self.peers is not None:
                self.peers.helped(pick)
        if failure is Failure.CONNECT or failure is Failure.RESET:
            self._datastore.suspect(server)

    def release(self, pick: Pick, now: float) -> None:
        """The request is over, for any reason. May be called twice."""
        if self.outliers is not None:
            self.outliers.ended(pick, now)
            for group in pick.helpers.values():
                for helper in group:
                    self.outliers.ended((pick, helper.key), now)
        if self.evictable is not None:
            self.evictable.ended(pick, now)
        in_flight_at, pick.in_flight_at = pick.in_flight_at, ()
        for endpoint in in_flight_at:
            self._datastore.release(endpoint)
        self._end(pick)
        if self.peers is not None:
            self.peers.ended(pick)

    def _end(self, pick: Pick) -> None:
        # the counts first: a data producer of an installed package may raise
        for count in pick.request.counts:
            count.ended()
        if pick.request.awaited is not None:
            pick.request.awaited.ended()
        self._settle(pick, served=False)

    def _settle(self, pick: Pick, *, served: bool) -> None:
        """Tell the data producers once whether the endpoints served the request."""
        if pick.settled:
            return
        pick.settled = True
        if self.peers is not None:
            self.peers.settled(pick, served=served)
        for producer in pick.producers:
            if served:
                producer.served(pick.request, pick.in_flight_at)
            else:
                producer.failed(pick.request)
        if not served:
            pick.request.awaited = None
        pick.request.prefixes.clear()
        pick.request.data.clear()


def _note_sent(outliers: OutlierDetection, pick: Pick, now: float) -> None:
    streamed = pick.request.streaming
    outliers.sent(pick, pick.in_flight_at[0], now, streamed=streamed)
    for helper in pick.in_flight_at[1:]:
        outliers.sent((pick, helper.key), helper, now, streamed=streamed)


def _fell_back(pick: Pick) -> bool:
    """Whether a prefill worker did nothing for it, as long as the answer has not begun."""
    return any(one not in pick.in_flight_at for one in pick.helpers.get(_PREFILL, ()))


def _judge(outliers: OutlierDetection, pick: Pick, failure: Failure | None, now: float) -> None:
    """Count the answer for or against the workers."""
    server, status = pick.in_flight_at[0], pick.status
    if status >= 500 and failure is None and _fell_back(pick):
        outliers.ended(pick, now)  # a decode worker that cannot compute prompts, as of SGLang
        return
    # a worker that cannot be reached has seen nothing of the request
    unseen = failure is Failure.CONNECT
    requester = None if unseen else requester_of(pick.request, pick.prompt_hash)
    for endpoint in _tried_in_vain(pick):
        # what succeeded elsewhere was not the request's fault
        outliers.attempt_failed(endpoint, now, None if status < 500 else requester)
    if outliers.answered(pick, server, status, failure, now, requester) and failure is None:
        # of an error nobody knows whose it is: who fails with all partners has the most in a row
        for helper in pick.in_flight_at[1:]:
            outliers.helped((pick, helper.key), helper, status, None, now)


def _tried_in_vain(pick: Pick) -> tuple[Endpoint, ...]:
    """The endpoints to which the data plane sent a request before the one that served it.

    If it made fewer attempts than there are such endpoints, it skipped some, which its cluster does not have, and nobody knows
    which.
    """
    if not pick.attempts:
        return ()
    server = pick.in_flight_at[0]
    before = pick.endpoints.index(server) if server in pick.endpoints else len(pick.endpoints)
    # after the whole list it goes on with endpoints of its own choice
    told = pick.attempts == before + 1 or pick.attempts > before == len(pick.endpoints)
    return pick.endpoints[:before] if told else ()


class _Following:
    """The hooks by which one data producer follows the endpoints of a datastore."""

    __slots__ = ("_forget", "_retain", "_sized", "producer")

    def __init__(self, producer: DataProducer, datastore: Datastore) -> None:
        self.producer = producer
        self._forget: Callable[[Endpoint], None] = producer.forget
        self._sized: Callable[[Endpoint, int], None] = producer.sized
        self._retain: Callable[[], None] = lambda: producer.retain(datastore.endpoints)
        datastore.on_reset.append(self._forget)
        datastore.on_cache_size.append(self._sized)
        datastore.on_change.append(self._retain)

    def end(self, datastore: Datastore) -> None:
        datastore.on_reset.remove(self._forget)
        datastore.on_cache_size.remove(self._sized)
        datastore.on_change.remove(self._retain)


def _has(producers: Sequence[DataProducer], producer: DataProducer) -> bool:
    return any(producer is one for one in producers)
