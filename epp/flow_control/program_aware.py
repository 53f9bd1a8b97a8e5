"""The fairness policy that prefers programs that got the least of the workers' time. Pure.

Values: llm-d-router, plugins/flowcontrol/fairness/program-aware, strategy las (least attained service).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import ClassVar, Final, Literal

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from pydantic import Field

from adsum.metric_families import gauge
from epp.endpoints.endpoint import Endpoint
from epp.flow_control.fairness import Flow, FlowSelector
from epp.flow_control.flow_queue import QueuedRequest
from epp.plugins.declaration import PluginContext, PluginDeclaration, Role
from epp.plugins.labels import PREFIX, label_value
from epp.plugins.section import Section
from epp.request.inference_request import InferenceRequest
from epp.scheduling.plugin import RequestFollower

_OUTPUT_WEIGHT: Final = 2
"""A token of an answer costs twice one of a prompt."""
_MOST_PROGRAMS: Final = 1000
"""Clients choose fairness ids: of more programs the one that was idle for longest is forgotten."""
_MOST_COMPARED: Final = 200
"""This many flows, those without a turn for longest, are compared: each dispatch looks at all of them."""


class ProgramAwareParameters(Section):
    strategy: Literal["", "las"] = "las"
    """The only one."""
    las_weight_service: float = Field(default=0.8, ge=0.0, allow_inf_nan=False)
    """The weight of how little a program got."""
    las_weight_head_wait: float = Field(default=0.2, ge=0.0, allow_inf_nan=False)
    """The weight of how long it waits."""
    las_half_life_seconds: float = Field(default=60.0, ge=0.0, allow_inf_nan=False)
    """The share that it got counts half after so long; 0: never."""
    eviction_ttl_seconds: float = Field(default=3600.0, ge=0.0, allow_inf_nan=False)
    """A program without a request for so long is forgotten."""
    eviction_sweep_seconds: float = Field(default=300.0, gt=0.0, allow_inf_nan=False)
    """No effect: a program is forgotten when another one is served."""


class Program:
    """The share of one fairness id: `service` in tokens, as of `at`; its requests, and the seconds that they waited in all."""

    __slots__ = ("at", "requests", "service", "waited")

    def __init__(self, now: float) -> None:
        self.at = now
        self.service = 0.0
        self.requests = 0
        self.waited = 0.0

    def attained(self, now: float, half_life: float) -> float:
        elapsed = now - self.at
        return self.service * 2.0 ** (-elapsed / half_life) if half_life and elapsed > 0 else self.service


class ProgramAware(RequestFollower):
    """The Go picker's program-aware-fairness, a `FairnessPolicy`. A program is a fairness id.

    A prompt counts when its request goes, 4 bytes a token; an answer counts when it ends, if it is read (`used`). The Go
    picker counts both at the end.
    """

    shares_places: ClassVar[bool] = True

    def __init__(self, given: ProgramAwareParameters, clock: Callable[[], float]) -> None:
        self.given = given
        self._clock = clock
        self._programs: OrderedDict[str, Program] = OrderedDict()
        """The one that was used last is last."""

    @property
    def programs(self) -> Mapping[str, Program]:
        return self._programs

    def selector(self) -> FlowSelector:
        return _LeastServed(self)

    def picked(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        program = self._serve(request.fairness_id, request.prompt_tokens)
        program.requests += 1

    def used(self, request: InferenceRequest, prompt: int | None, output: int | None) -> None:
        more = 0 if prompt is None else prompt - request.prompt_tokens
        self._serve(request.fairness_id, more + _OUTPUT_WEIGHT * (output or 0))

    def waited(self, fairness_id: str, since: float) -> None:
        """A request of that program goes that came at `since`."""
        self._serve(fairness_id, 0).waited += max(0.0, self._clock() - since)

    def attained(self) -> dict[str, float]:
        """The service that each program got, as of now."""
        now, half_life = self._clock(), self.given.las_half_life_seconds
        return {name: program.attained(now, half_life) for name, program in self._programs.items()}

    def attained_of(self, fairness_id: str, now: float) -> float:
        program = self._programs.get(fairness_id)
        return 0.0 if program is None else program.attained(now, self.given.las_half_life_seconds)

    def now(self) -> float:
        return self._clock()

    def _serve(self, fairness_id: str, tokens: int) -> Program:
        now = self._clock()
        program = self._programs.get(fairness_id)
        if program is None:
            program = self._programs[fairness_id] = Program(now)
        self._programs.move_to_end(fairness_id)
        program.service = max(0.0, program.attained(now, self.given.las_half_life_seconds) + tokens)
        program.at = now
        self._forget(now)
        return program

    def _forget(self, now: float) -> None:
        oldest = next(iter(self._programs.values()))
        ttl = self.given.eviction_ttl_seconds
        if len(self._programs) > _MOST_PROGRAMS or (ttl and now - oldest.at > ttl):
            self._programs.popitem(last=False)


class _LeastServed:
    """The flow of the highest score: little service, a long wait, each as a share of the range of all flows."""

    def __init__(self, policy: ProgramAware) -> None:
        self._policy = policy
        self._flows: dict[str, Flow] = {}

    def changed(self, flow: Flow) -> None:
        if flow.first is None:
            self._flows.pop(flow.fairness_id, None)
        else:
            self._flows[flow.fairness_id] = flow

    def select(self) -> Flow | None:
        flows = list(islice(self._flows.values(), _MOST_COMPARED))
        now = self._policy.now()
        service = [self._policy.attained_of(flow.fairness_id, now) for flow in flows]
        arrived = [head.arrived_at for flow in flows if (head := flow.first) is not None]
        little, early = _low(service), _low(arrived)
        given = self._policy.given
        best, highest = None, -1.0
        for flow, one, other in zip(flows, little, early, strict=True):
            score = given.las_weight_service * one + given.las_weight_head_wait * other
            if score > highest:
                best, highest = flow, score
        return best

    def dispatched(self, flow: Flow, queued: QueuedRequest) -> None:
        self._policy.waited(flow.fairness_id, queued.arrived_at)
        self._flows[flow.fairness_id] = self._flows.pop(flow.fairness_id)  # its next request waits as of now


def _low(values: Sequence[float]) -> list[float]:
    """1 for the lowest, 0 for the highest; 0.5 where all are equal."""
    least, most = min(values, default=0.0), max(values, default=0.0)
    if most == least:
        return [0.5] * len(values)
    return [1.0 - (value - least) / (most - least) for value in values]


def _build(given: ProgramAwareParameters, context: PluginContext) -> ProgramAware:
    policy = ProgramAware(given, context.clock)
    context.follow(policy)
    return policy


def program_metrics(policies: Sequence[ProgramAware]) -> Iterator[Metric]:
    """The metrics of programs. Programs of several policies count together."""
    attained: dict[str, float] = {}
    waits: dict[str, tuple[float, int]] = {}
    for policy in policies:
        for name, tokens in policy.attained().items():
            label, program = label_value(name), policy.programs[name]
            attained[label] = attained.get(label, 0.0) + tokens
            waited, requests = waits.get(label, (0.0, 0))
            waits[label] = waited + program.waited, requests + program.requests
    averages = {name: 1000.0 * waited / count for name, (waited, count) in waits.items() if count}
    yield GaugeMetricFamily(
        PREFIX + "program_aware_jains_fairness_index",
        "Jain's index of the average waits of programs; 1 is fair.",
        _jain(list(averages.values())),
    )
    yield _by_program("avg_wait_time_milliseconds", "The average wait of a program's requests.", averages)
    yield _by_program(
        "attained_service_tokens",
        "Tokens that a program got, those of answers twice; old ones count less.",
        attained,
    )


def _by_program(name: str, help_text: str, values: dict[str, float]) -> Metric:
    samples = [((program,), value) for program, value in values.items()]
    return gauge(f"{PREFIX}program_aware_{name}", help_text, ("program_id",), samples)


def _jain(values: Sequence[float]) -> float:
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if len(values) > 1 and squares else 1.0


PROGRAM_AWARE_FAIRNESS: Final = PluginDeclaration(
    type="program-aware-fairness",
    role=Role.FAIRNESS,
    parameters=ProgramAwareParameters,
    build=_build,
    metrics=program_metrics,
)
