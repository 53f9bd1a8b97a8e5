"""The configurations that are compared; the picker's own code reads and runs them."""

import dataclasses
import functools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from benchmarks.profiles import GO_DEFAULT, go_sticky
from benchmarks.routing.baselines import BASELINES
from benchmarks.routing.chooser import Chooser, Wanted
from benchmarks.routing.machines import WorkerModel
from discovery import Instance, InstanceAddedEvent, InstanceRemovedEvent
from epp.config.picker_config import DEFAULT_CONFIG, load_config
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import ROLE_LABEL, Endpoint, EndpointPool
from epp.endpoints.load import Load
from epp.outliers.settings import Failure
from epp.request.inference_request import InferenceRequest
from epp.scheduling.director import Director
from epp.scheduling.pick import Pick
from epp.scheduling.plugin import DataProducer
from epp.scheduling.profile_handlers import SingleProfileHandler
from epp.scheduling.request_reader import Policy
from epp.scheduling.scheduler import Scheduler
from examples.simulator.scheduler_model import Limits

_HEADERS: Final = {":path": "/v1/completions", ":method": "POST", "content-type": "application/json"}
COUNTED: Final = "the Go picker's weights, requests in flight counted"


@dataclass(frozen=True, slots=True)
class Arm:
    """`learns_late`: a prefix counts as cached only from the response headers on. `sees_answers`: Envoy sends bodies of answers,
    so that a request is followed to its end, and the picker sees the first piece of a streamed answer. `early_headers`: all
    that the picker hears of the beginning of a streamed answer are its headers, which come at once, as from vLLM.
    """

    config: str
    learns_late: bool = False
    sees_answers: bool = False
    early_headers: bool = False


LEAST_COST: Final = DEFAULT_CONFIG
_COUNTED: Final = GO_DEFAULT.replace(
    "- type: max-score-picker\n", "- type: in-flight-scorer\n- type: max-score-picker\n", 1
).replace(
    "  - {pluginRef: max-score-picker}",
    "  - {pluginRef: in-flight-scorer, weight: 2}\n  - {pluginRef: max-score-picker}",
)

GO_STICKY: Final = go_sticky(kv_tokens=65_536, tokens_per_second=5_000)
"""For a worker in virtual time."""

ALWAYS_APART: Final = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: least-cost-scorer}
- {type: always-disagg-pd-decider}
- {type: prefill-filter}
- {type: decode-filter}
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: least-cost-scorer}]}
- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: least-cost-scorer}]}
"""

EARLY_HEADERS: Final = "least cost, headers only"

ARMS: Final[Mapping[str, Arm]] = {
    "least cost": Arm(LEAST_COST),
    EARLY_HEADERS: Arm(LEAST_COST, early_headers=True),
    "the Go picker's weights": Arm(GO_DEFAULT),
    "the Go picker's weights, learning at the headers": Arm(GO_DEFAULT, learns_late=True),
    "the Go picker's sticky configuration": Arm(GO_STICKY, sees_answers=True),
    COUNTED: Arm(_COUNTED),
}


def _with(requests: float, interference: float) -> Arm:
    before = "- type: least-cost-scorer\n  parameters: {"
    written = f"{before}requestTokens: {requests:g}, interference: {interference:g}, "
    return Arm(LEAST_COST.replace(before, written))


CONSTANTS: Final[Mapping[str, Arm]] = {
    f"least cost, {requests:g}, {interference:g}": _with(requests, interference)
    for requests, interference in (
        (150, 0.3), (0, 0.3), (75, 0.3), (300, 0.3), (600, 0.3), (150, 0), (150, 0.15), (150, 0.6), (150, 1.2)
    )
}  # fmt: skip
"""Other constants of the least cost than its defaults, which come first: `requestTokens`, `interference`."""


class LearnsLate:
    """A data producer that ignores picks and learns from responses only."""

    def __init__(self, producer: DataProducer) -> None:
        self._producer = producer

    def prepare(self, request: InferenceRequest, pool: EndpointPool) -> None:
        self._producer.prepare(request, pool)

    def picked(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        pass

    def served(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        self._producer.served(request, endpoints)

    def failed(self, request: InferenceRequest) -> None:
        pass

    def sized(self, endpoint: Endpoint, tokens: int) -> None:
        self._producer.sized(endpoint, tokens)

    def forget(self, endpoint: Endpoint) -> None:
        self._producer.forget(endpoint)

    def retain(self, endpoints: Sequence[Endpoint]) -> None:
        self._producer.retain(endpoints)


class PickerChooser(Chooser):
    """The scheduling of our picker without its server; worker `n` is the endpoint `wn`."""

    def __init__(self, arm: Arm, workers: Sequence[WorkerModel], limits: Limits, seed: int) -> None:
        rng = random.Random(seed)
        config = load_config(arm.config, rng=rng)
        scheduler = config.scheduler
        if arm.learns_late:
            profile = scheduler.profiles["default"]
            producers = [LearnsLate(producer) for producer in profile.producers]
            scheduler = Scheduler(
                {"default": dataclasses.replace(profile, producers=producers)}, SingleProfileHandler()
            )
        self._store = Datastore()
        self._director = Director(self._store, scheduler, config.detector, Policy(), rng)
        self._picks: dict[int, Pick] = {}
        self._sees_answers = arm.sees_answers
        self._early_headers = arm.early_headers
        self._first_bytes: dict[int, Pick] = {}
        self._limits = limits
        self._instances: dict[int, Instance] = {}
        self._endpoints: dict[int, Endpoint] = {}
        self._roles: Sequence[str] = ()
        self._helpers: dict[int, int] = {}

    def roles(self, roles: Sequence[str]) -> None:
        self._roles = roles

    def joined(self, worker: int, now: float) -> None:
        instance = Instance(f"w{worker}", "bench", "worker", f"10.0.0.{worker + 1}", 8000, f"since {now}")
        document = {"labels": {ROLE_LABEL: self._roles[worker]}} if self._roles else {}
        self._store.apply(InstanceAddedEvent(instance), document)
        endpoint = next(one for one in self._store.endpoints if one.id == instance.id)
        self._store.set_cache_tokens(endpoint, self._limits.kv_tokens)
        self._instances[worker], self._endpoints[worker] = instance, endpoint

    def gone(self, worker: int, now: float) -> None:
        self._store.apply(InstanceRemovedEvent(self._instances.pop(worker), "deleted"))
        del self._endpoints[worker]

    def choose(self, wanted: Wanted, now: float) -> int:
        body = {"model": wanted.turn.model, "prompt": wanted.turn.prompt, "stream": wanted.streamed}
        pick = self._director.direct(_HEADERS, json.dumps(body).encode(), None, now)
        assert isinstance(pick, Pick)  # nothing waits here
        self._picks[wanted.key] = pick
        if pick.request.awaited is not None:
            self._first_bytes[wanted.key] = pick
        if pick.helpers:
            self._helpers[wanted.key] = int(pick.helpers["prefill"][0].id[1:])
        return int(pick.endpoints[0].id[1:])

    def helper(self, wanted: Wanted) -> int | None:
        return self._helpers.pop(wanted.key, None)

    def read(self, worker: int, page: Load, now: float, period: float) -> None:
        self._store.observe(self._endpoints[worker], page, now, period)
        # as the scraper says when it asks: due within two periods
        self._store.expect_page(self._endpoints[worker], now + 3.0 * period)

    def responded(self, wanted: Wanted, worker: int, now: float) -> None:
        """In flight until now, as with the Envoy that `python -m epp envoy-config` prints, unless that sends answers too."""
        pick = self._picks[wanted.key]
        self._director.picks.responded(pick, 200, now)
        if self._early_headers:
            self.first_token(wanted, worker, now)
        if not self._sees_answers:
            self._end(pick, wanted, now)

    def first_token(self, wanted: Wanted, worker: int, now: float) -> None:
        if (pick := self._first_bytes.pop(wanted.key, None)) is not None:
            self._director.picks.first_byte(pick, now, now)
        if self._sees_answers and wanted.streamed:
            for count in self._picks[wanted.key].request.counts:
                count.answered()

    def ended(self, wanted: Wanted, worker: int, now: float) -> None:
        if (pick := self._picks.get(wanted.key)) is not None:
            self._end(pick, wanted, now)

    def failed(self, wanted: Wanted, worker: int, now: float) -> None:
        """After the response headers this picker no longer follows a request, unless it sees answers."""
        self._first_bytes.pop(wanted.key, None)
        if (pick := self._picks.get(wanted.key)) is not None:
            self._director.picks.responded(pick, 502, now, Failure.RESET)
            self._end(pick, wanted, now)

    def _end(self, pick: Pick, wanted: Wanted, now: float) -> None:
        del self._picks[wanted.key]
        self._director.picks.release(pick, now)


MakeChooser: TypeAlias = Callable[[Sequence[WorkerModel], Limits, int], Chooser]


def chooser(name: str) -> MakeChooser:
    """How the arm or the baseline of that name is made; `CONSTANTS` are arms too."""
    arm = ARMS.get(name) or CONSTANTS.get(name)
    return functools.partial(PickerChooser, arm) if arm is not None else BASELINES[name]
