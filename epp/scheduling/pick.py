"""A request's facts that its client did not send, and the endpoints that it chose. Pure."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias

from adsum.tracing.span import Span
from epp.endpoints.endpoint import Endpoint
from epp.request.control_headers import MOST_TEXT, is_control_header
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.request.subset import Subset
from epp.scheduling.decision import NOT_YET, Decision

Helpers: TypeAlias = Mapping[str, tuple[Endpoint, ...]]
_NO_HELPERS: Final[Helpers] = MappingProxyType({})
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class SchedulingContext:
    """Made by the director for each request, and used until the request has its pick.

    `subset`: the endpoints that the data plane allows, None: all. `span`: the part of its trace in which it is scheduled,
    None: its trace is not recorded. `decision`: where its pick is noted, if it is. `scores`: of the candidates by
    destination, from a profile that reports them.
    """

    __slots__ = ("decision", "request", "scores", "span", "subset")

    def __init__(
        self, request: InferenceRequest, subset: Subset | None = None, span: Span | None = None
    ) -> None:
        self.request = request
        self.subset = subset
        self.span = span
        self.decision: Decision | None = None
        self.scores: Mapping[str, float] | None = None

    def clear_scores(self) -> None:
        """Forget them before another profile runs. Where the caller assigns None, mypyc takes a later read for None too."""
        self.scores = None


class Pick:
    """`endpoints[0]` is the choice, the rest are its fallbacks in order; `primary` names the profile that chose them.

    `helpers`: by role, endpoints that do a part of the work, such as a prefill worker; the request counts as in flight at
    each. `headers`: further request headers for the choice, in lower case. Only control headers, which clients cannot set,
    are allowed: a worker that trusts any other name could be misled by a client. ValueError otherwise.

    `stages`: which stages of the request are apart, in words, and if one is not though it was meant to be, why. `in_flight_at`:
    the endpoint that answers, as far as is known, and all helpers; empty once the request is over. `observer_state`: for the
    use of the `Observer`. `producers`: the data producers that learnt of the pick. `settled`: they learnt how the request
    ended. `scores`: of the candidates by destination, if the profile reports them. `prompt_hash`: identifies the prompt where
    endpoints may be ejected. `evict`: takes the request back from its worker, with an answer for its client; returns whether it
    was not too late. None: it cannot be taken back. `decision`: what else was noted of it, if anything. `expected`: seconds
    from the pick to the first byte of a streamed answer; negative: not known. `first_byte_at`: it came. `token`: its name in
    the log of the data plane, if that reports how it ends. `peer_number`: its number for peers; 0: none.

    What became of it, as in a `Decision`: `status` and `responded_at`, `served_by`, `attempts`, `ended_at` and `ended_by`,
    `evicted_for`. `sequence`, `size`, `picked_at` and `among`, all endpoints, are set by who keeps it.
    """

    __slots__ = (
        "among",
        "attempts",
        "decision",
        "ended_at",
        "ended_by",
        "endpoints",
        "evict",
        "evicted_for",
        "expected",
        "first_byte_at",
        "headers",
        "helpers",
        "in_flight_at",
        "observer_state",
        "peer_number",
        "picked_at",
        "primary",
        "producers",
        "prompt_hash",
        "request",
        "responded_at",
        "scores",
        "sequence",
        "served_by",
        "settled",
        "size",
        "stages",
        "status",
        "token",
    )

    def __init__(
        self,
        request: InferenceRequest,
        endpoints: tuple[Endpoint, ...],
        *,
        primary: str = "",
        helpers: Helpers = _NO_HELPERS,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> None:
        self.request = request
        self.endpoints = endpoints
        self.primary = primary
        self.helpers = helpers
        self.in_flight_at = endpoints[:1]
        self.headers = headers
        self.observer_state: object = None
        self.expected = NOT_YET
        self.producers: Sequence[Any] = ()
        self.settled = False
        self.prompt_hash = 0
        self.scores: Mapping[str, float] | None = None
        self.decision: Decision | None = None
        self.evict: Callable[[Rejection, float], bool] | None = None
        self.sequence = self.size = self.status = self.attempts = self.peer_number = 0
        self.picked_at = self.responded_at = self.first_byte_at = self.ended_at = NOT_YET
        self.served_by = self.ended_by = self.token = self.stages = ""
        self.evicted_for: Rejection | None = None
        self.among = endpoints
        if helpers is not _NO_HELPERS:
            self.in_flight_at += tuple([endpoint for group in helpers.values() for endpoint in group])
        if headers is not _NO_HEADERS:
            _check(headers)

    def fell_back(self, reason: str) -> None:
        """The decode worker computed the prompt, although another one was named; `reason`: what its sidecar says."""
        told = f"; the decode worker computed the prompt: {reason[:MOST_TEXT]}"
        self.stages += told
        if self.decision is not None:
            self.decision.stages += told

    def over(self, cause: str, now: float) -> None:
        """Nobody waits for it any more: let go of plugins, and of all that its client sent but for short texts."""
        self.ended_at, self.ended_by = now, cause
        self.scores = self.observer_state = self.request.peer = self.request.awaited = None
        self.producers = self.request.counts = ()
        self.request.forget_client(MOST_TEXT)


def _check(headers: Mapping[str, str]) -> None:
    for name in headers:
        if not is_control_header(name):
            raise ValueError(
                f"a pick sets the header {name[:100]!r}, which clients can set too; expected a name in lower case that "
                "begins with x-llm-d- or x-gateway-, or one of epp/request/control_headers.py"
            )


class Credit:
    """Bytes of all prompts that were sent to one endpoint, and of these what it was believed to hold."""

    __slots__ = ("held", "total")

    def __init__(self, held: int = 0, total: int = 0) -> None:
        self.held = held
        self.total = total


class DecisionTimings(Protocol):
    """Observes how long decisions take that are no rejections."""

    def scheduled(self, seconds: float) -> None:
        """An endpoint was picked."""

    def enqueued(self, request: InferenceRequest, seconds: float) -> None:
        """The request waits in flow control; it took `seconds` to put it there."""


class DecisionLog(Protocol):
    """Keeps what is noted of picks, and says how much that is."""

    def note(self, now: float) -> Decision | None:
        """The record of a request that waits or is refused; None: nothing of it is kept."""

    def looks_again(self, now: float) -> bool:
        """Whether filters may run again for a request that they refused."""

    def begin(self, headers: Mapping[str, str], now: float, span: Span | None) -> Decision | None:
        """The record of a request that is noted whole; None: its pick alone is kept."""

    def add(self, decision: Decision) -> None:
        """The request was refused, or its client left."""

    def noted(self, decision: Decision) -> None:
        """The request has its pick, and a record of its own."""

    @property
    def keep(self) -> Callable[[Pick, tuple[Endpoint, ...], float], None]:
        """To be called with each pick, all endpoints, and the time; what becomes of the pick is noted in it."""
