"""Sends the requests of one session where the last one was served."""

from collections import OrderedDict
from collections.abc import Sequence

from pydantic import Field

from epp.extension import (
    DataProducer,
    Endpoint,
    EndpointPool,
    InferenceRequest,
    PluginContext,
    PluginDeclaration,
    Role,
    Scorer,
    Scores,
    Section,
)

HEADER = "x-session-id"
LONGEST = 128
"""Characters of a session's name. Clients write it, so it is bounded."""


class ProducerParameters(Section):
    """`maxSessions` in the configuration: those unused for longest are forgotten."""

    max_sessions: int = Field(default=10_000, ge=1)


class SessionProducer(DataProducer):
    """Learns which endpoint served each session last."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._served_by: OrderedDict[str, tuple[str, str]] = OrderedDict()

    def endpoint_key(self, request: InferenceRequest) -> tuple[str, str] | None:
        """The `Endpoint.key` of the session's endpoint."""
        return self._served_by.get(request.headers.get(HEADER, ""))

    def prepare(self, request: InferenceRequest, pool: EndpointPool) -> None:
        """Nothing to compute before the profiles run."""

    def picked(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        """Wait for the answer: the endpoint may fail."""

    def served(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        session = request.headers.get(HEADER, "")
        if 0 < len(session) <= LONGEST:
            self._served_by[session] = endpoints[0].key
            self._served_by.move_to_end(session)
            if len(self._served_by) > self._max_sessions:
                self._served_by.popitem(last=False)

    def failed(self, request: InferenceRequest) -> None:
        self._served_by.pop(request.headers.get(HEADER, ""), None)

    def sized(self, endpoint: Endpoint, tokens: int) -> None:
        """The size of a cache says nothing about sessions."""

    def forget(self, endpoint: Endpoint) -> None:
        self._keep({key for key in self._served_by.values() if key != endpoint.key})

    def retain(self, endpoints: Sequence[Endpoint]) -> None:
        self._keep({endpoint.key for endpoint in endpoints})

    def _keep(self, keys: set[tuple[str, str]]) -> None:
        kept = ((session, key) for session, key in self._served_by.items() if key in keys)
        self._served_by = OrderedDict(kept)


PRODUCER = PluginDeclaration(
    role=Role.PRODUCER,
    parameters=ProducerParameters,
    build=lambda given, context: SessionProducer(given.max_sessions),
)


class ScorerParameters(Section):
    """`producerName` in the configuration: the name of the data producer."""

    producer_name: str = "acme-session-producer"


class SessionScorer(Scorer):
    """1 for the endpoint that served the session last, 0 for all others."""

    published_only = False  # it reads the request

    def __init__(self, sessions: SessionProducer) -> None:
        self._sessions = sessions

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Scores:
        key = self._sessions.endpoint_key(request)
        return {row: 1.0 for row, endpoint in enumerate(pool.endpoints) if endpoint.key == key}


def build_scorer(given: ScorerParameters, context: PluginContext) -> SessionScorer:
    return SessionScorer(context.producer(given.producer_name, SessionProducer))


SCORER = PluginDeclaration(
    role=Role.SCORER, parameters=ScorerParameters, build=build_scorer, reads_metrics=False
)
