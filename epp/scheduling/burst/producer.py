"""Holds prompts for a window, so that those of one moment are placed together, and knows where they were placed.

Parameters: llm-d-router, plugins/requestcontrol/dataproducer/burstprefix. A placed prompt is all held at its endpoint and
not at all elsewhere; one that has nothing in common with the others of its window is held nowhere.
"""

from collections.abc import Sequence
from typing import ClassVar, Final, Literal

from pydantic import Field, model_validator

from epp.endpoints.endpoint import Endpoint, EndpointPool
from epp.plugins.declaration import PluginDeclaration, Role
from epp.plugins.section import Section
from epp.request.inference_request import InferenceRequest, PrefixChain, RequestData
from epp.request.rejection import Rejection
from epp.scheduling.burst.placement import UNLIMITED, PlacementRules, place
from epp.scheduling.plugin import AdmissionController, RequestFollower
from epp.scheduling.prefix.producer import PrefixCacheProducer
from epp.scheduling.waiting import WaitingRequest

PRODUCER: Final = "burst-prefix-cache-producer"
DEFAULT_BLOCKS: Final = 2048
"""Blocks of a prompt that are compared; beyond them prompts count as equal."""
_ONE_UNIT_EACH: Final = 1 << 30
"""The grain of blocks that do not grow: their number is a parameter here."""


class BurstPrefixParameters(Section):
    window_duration_ms: int = Field(default=100, ge=1, le=10_000)
    """Prompts wait this many milliseconds for each other."""
    max_per_replica: int = Field(default=UNLIMITED, ge=UNLIMITED)
    """This many equal prompts go to one worker; -1: all."""
    block_size_tokens: int = Field(default=64, ge=1)
    """The tokens of a block, 4 bytes each."""
    max_prefix_tokens_to_match: int = Field(default=0, ge=0)
    """This many tokens of a prompt are compared; 0: 2,048 blocks."""
    min_colocate_blocks: int = Field(default=0, ge=0)
    """Prompts with so many blocks in common may go together too; 0: equal ones alone."""
    max_batch_size: int = Field(default=1000, ge=UNLIMITED)
    """This many prompts of one window wait; later ones do not. -1: all."""
    balance_by: Literal["", "requests", "tokens"] = "requests"
    """Spread requests or their tokens over the workers; empty: requests."""

    @model_validator(mode="after")
    def _check_limits(self) -> "BurstPrefixParameters":
        for name, limit in (("maxPerReplica", self.max_per_replica), ("maxBatchSize", self.max_batch_size)):
            if limit == 0:
                raise ValueError(f"{name} must be at least 1, or -1 for no limit")
        if 0 < self.max_prefix_tokens_to_match < self.block_size_tokens:
            raise ValueError("maxPrefixTokensToMatch must be 0, or at least blockSizeTokens")
        return self


class BurstPrefixProducer(RequestFollower):
    """`window`: seconds; `most_requests`: in one window, None: no limit. `BurstWindow` collects them and calls `place`."""

    def __init__(self, given: BurstPrefixParameters, seed: int) -> None:
        self.window = given.window_duration_ms / 1000.0
        self.most_requests = None if given.max_batch_size == UNLIMITED else given.max_batch_size
        self._rules = PlacementRules(
            given.max_per_replica, given.min_colocate_blocks, given.balance_by == "tokens"
        )
        self._hashes = PrefixCacheProducer(
            block_tokens=given.block_size_tokens,
            max_blocks=given.max_prefix_tokens_to_match // given.block_size_tokens or DEFAULT_BLOCKS,
            grain=_ONE_UNIT_EACH,
            seed=seed,
        )
        self._placed: RequestData[tuple[str, str]] = RequestData()
        """The key of the endpoint."""

    def read(self, request: InferenceRequest, pool: EndpointPool) -> bool:
        """Hash the prompt before it waits; whether there is one."""
        self._hashes.prepare(request, pool)
        chain = self.chain(request)
        return chain is not None and bool(chain.hashes)

    def place(self, requests: Sequence[InferenceRequest], pool: EndpointPool) -> None:
        """Place the requests of a window at the endpoints of the pool."""
        order = sorted(range(len(pool)), key=lambda row: pool.endpoints[row].id)
        chains = [self.chain(request) for request in requests]
        prompts = [() if chain is None else chain.hashes for chain in chains]
        rows = place(prompts, pool.running[order].tolist(), self._rules)
        for request, row in zip(requests, rows, strict=True):
            if row is not None:
                self._placed.keep(request, pool.endpoints[order[row]].key)

    def chain(self, request: InferenceRequest) -> PrefixChain | None:
        return self._hashes.chain(request)

    def matches(self, request: InferenceRequest, pool: EndpointPool) -> dict[int, int]:
        chain, key = self.chain(request), self._placed.of(request)
        if chain is None or key is None:
            return {}
        return {row: chain.units for row, endpoint in enumerate(pool.endpoints) if endpoint.key == key}

    def held(self, request: InferenceRequest, endpoint: Endpoint) -> int:
        chain = self.chain(request)
        if chain is None or self._placed.of(request) != endpoint.key:
            return 0
        return chain.units * chain.unit_tokens

    def admission(self, behind: AdmissionController) -> AdmissionController:
        """Requests wait in the window of this producer, after `behind` let them pass."""
        return BurstWindow(self, behind)


_NO_REQUEST: Final[float] = float("inf")


class BurstWindow:
    """An AdmissionController. `before`: decides first; it must let nothing wait.

    A window begins with its first prompt. A request without a prompt goes at once, and so does one that comes to a full
    window: the other scorers place it.
    """

    waits_for_endpoints: ClassVar[bool] = False

    def __init__(self, producer: "BurstPrefixProducer", before: AdmissionController) -> None:
        self._producer = producer
        self._before = before
        self._waiting: dict[WaitingRequest, None] = {}
        self._ends_at = _NO_REQUEST

    def admit(self, request: InferenceRequest, candidates: EndpointPool, now: float) -> bool:
        if not self._before.admit(request, candidates, now):
            raise TypeError("the admission before a burst window let a request wait")
        return self._goes_alone(request, candidates)

    def would_admit(self, request: InferenceRequest, candidates: EndpointPool, now: float) -> bool:
        self._before.would_admit(request, candidates, now)
        return self._goes_alone(request, candidates)

    def _goes_alone(self, request: InferenceRequest, candidates: EndpointPool) -> bool:
        """The window is full, or the request has no prompt that others could share."""
        most = self._producer.most_requests
        if most is not None and len(self._waiting) >= most:
            return True
        return not self._producer.read(request, candidates)

    def would_enqueue(self, request: InferenceRequest, now: float) -> None:
        """Not called: nobody waits for endpoints here, and who waits has a place."""

    def enqueue(self, waiting: WaitingRequest, now: float) -> None:
        if not self._waiting:
            self._ends_at = now + self._producer.window
        self._waiting[waiting] = None

    def withdraw(self, waiting: WaitingRequest, now: float) -> None:
        self._waiting.pop(waiting, None)

    def dispatch(self, now: float) -> float | None:
        if not self._waiting:
            return None
        if now < self._ends_at:
            return self._ends_at
        together, self._waiting = list(self._waiting), {}
        self._place(together, now)
        for waiting in together:
            waiting.dispatch(now)
        return None

    def close(self, now: float) -> float | None:
        """End the window: another configuration is in force."""
        self._ends_at = now
        self.dispatch(now)
        return None

    def _place(self, together: list[WaitingRequest], now: float) -> None:
        """Prompts are placed together that may go to the same endpoints: those of another model may not."""
        groups: dict[tuple[Endpoint, ...], tuple[EndpointPool, list[InferenceRequest]]] = {}
        for waiting in together:
            try:
                pool = waiting.candidates(now)
            except Rejection:  # raised again at its dispatch; another one may have candidates
                continue
            groups.setdefault(pool.endpoints, (pool, []))[1].append(waiting.request)
        for pool, requests in groups.values():
            late = pool.late()  # no profile would send them there
            self._producer.place(requests, pool if late is None else pool.select(~late))


BURST_PREFIX_CACHE_PRODUCER: Final = PluginDeclaration(
    type=PRODUCER,
    role=Role.PRODUCER,
    parameters=BurstPrefixParameters,
    build=lambda given, context: BurstPrefixProducer(given, context.rng.getrandbits(64)),
    single="a request waits in one window: only one burst-prefix-cache-producer is possible",
    flow_control_limit="has no window with flow control: prompts are not placed together",
)
