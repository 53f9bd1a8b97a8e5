"""Requests that come, leave and expire while workers come and die: every decision is that of a plain model."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from discovery import Instance, InstanceAddedEvent, InstanceRemovedEvent
from epp.config.picker_config import load_config
from epp.endpoints.datastore import Datastore
from epp.flow_control.controller import FlowController
from epp.flow_control.fairness import GlobalStrict, RoundRobin
from epp.flow_control.orderings import EarliestDeadlineFirst, FirstComeFirstServed, SloDeadline
from epp.flow_control.settings import FlowControlSettings
from epp.request.rejection import Rejection
from epp.scheduling.director import Director
from epp.scheduling.in_flight_load.plugins import ConcurrencyDetector, ConcurrencyParameters
from epp.scheduling.in_flight_load.producer import InFlightLoadProducer
from epp.scheduling.pick import Pick
from epp.scheduling.request_reader import Policy
from epp.scheduling.scheduler import Scheduler
from epp.scheduling.waiting import WaitingRequest
from tests.epp.flow_control.flow_settings import band_settings, flow_settings
from tests.epp.flow_control.plain_model import PlainModel, Waits

REQUESTS = 4_000
"""In each case; tests/system takes five times as many."""
PER_WORKER = 4
ORDERINGS = {"fcfs": FirstComeFirstServed(), "edf": EarliestDeadlineFirst(), "slo": SloDeadline()}
REASONS = {
    "rejected-saturated": "full",
    "rejected-ttl-expired": "expired",
    "evicted-queue-pressure": "evicted",
    "rejected-no-endpoints": "no endpoint",
}
PRIORITIES = {"urgent": 5, "normal": 0, "batch": -1, "spare": -7}
CONFIG = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins: [{type: active-request-scorer}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: active-request-scorer}]}]
"""


@dataclass(frozen=True)
class HalfForSheddable:
    per_request = False

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        return [0.5 if priority < 0 else 1.0 for priority in priorities]


class Both:
    """A director with flow control and the model, to which the same happens."""

    def __init__(self, settings: FlowControlSettings, ordering: str, *, turns: bool, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 1000.0
        self.store = Datastore()
        self.model = PlainModel(settings, ordering, turns=turns, per_worker=PER_WORKER)
        detector = ConcurrencyDetector(
            InFlightLoadProducer(), ConcurrencyParameters.model_construct(max_concurrency=PER_WORKER)
        )
        self.controller = FlowController(settings, detector, self.store.pool)
        self.store.on_change.append(self.controller.endpoints_changed)
        config = load_config(CONFIG, rng=self.rng)
        scheduler: Scheduler = config.scheduler
        policy = Policy(objectives=PRIORITIES)
        self.director = Director(self.store, scheduler, detector, policy, self.rng, self.controller)
        self.director.waiting.wake = lambda: None
        self.outcomes: list[tuple[str, str]] = []
        self.waiting: dict[str, WaitingRequest] = {}
        self.picks: dict[str, Pick] = {}
        self.came = self.lives = 0

    def arrive(self) -> None:
        rng = self.rng
        self.came += 1
        name = f"r{self.came}"
        slo = rng.choice((None, rng.randrange(500)))
        objective = rng.choice(list(PRIORITIES))
        headers = {
            ":path": "/v1/completions",
            "x-request-id": name,
            "x-llm-d-inference-objective": objective,
            "x-llm-d-inference-fairness-id": rng.choice("abcdefg") * rng.randrange(1, 3),
            **({} if slo is None else {"x-llm-d-slo-ttft-ms": str(slo)}),
        }
        body = json.dumps({"model": "m", "prompt": "x" * rng.choice((22, 72, 172))}).encode()
        due = float("inf") if slo is None else round(self.now + slo / 1000, 6)
        fairness_id = headers["x-llm-d-inference-fairness-id"]
        size = len(body) + sum(32 + len(key) + len(value) for key, value in headers.items())
        self.model.arrives(Waits(name, PRIORITIES[objective], fairness_id, self.now, size, due))
        try:
            outcome = self.director.direct(headers, body, None, self.now)
        except Rejection as refused:
            full = "full and empty" if refused.status == 503 else REASONS[refused.reason or ""]
            self.outcomes.append((name, full))
            return
        if isinstance(outcome, Pick):
            self._picked(name, outcome, "at once")
        elif isinstance(outcome, WaitingRequest):
            self.waiting[name] = outcome
            outcome.subscribe(lambda answer, _: self._settled(name, answer))

    def _settled(self, name: str, answer: Pick | Exception) -> None:
        del self.waiting[name]
        if isinstance(answer, Pick):
            self._picked(name, answer, "dispatched")
        else:
            assert isinstance(answer, Rejection)
            self.outcomes.append((name, REASONS[answer.reason or ""]))

    def _picked(self, name: str, pick: Pick, how: str) -> None:
        self.outcomes.append((name, how))
        self.picks[name] = pick
        worker = pick.endpoints[0].id
        self.model.workers[worker] += 1

    def end(self) -> None:
        if self.picks:
            pick = self.picks.pop(self.rng.choice(list(self.picks)))
            self.director.picks.release(pick, self.now)
            worker = pick.endpoints[0].id
            if worker in self.model.workers:
                self.model.workers[worker] -= 1

    def leave(self) -> None:
        if self.waiting:
            name = self.rng.choice(list(self.waiting))
            self.waiting.pop(name).abandon(self.now)
            self.model.leaves(name)

    def start_worker(self) -> None:
        if len(self.model.workers) < 4:
            self.lives += 1
            name = f"w{self.lives}"
            self.store.apply(
                InstanceAddedEvent(Instance(name, "ns", "c", "10.0.0.1", 8000 + self.lives % 50_000, "a")), {}
            )
            self._workers({**self.model.workers, name: 0})

    def kill_worker(self) -> None:
        for endpoint in self.rng.sample(self.store.endpoints, min(1, len(self.store.endpoints))):
            instance = Instance(endpoint.id, "ns", "c", endpoint.address, endpoint.port, "a")
            self.store.apply(InstanceRemovedEvent(instance, "deleted"))
            self._workers({name: count for name, count in self.model.workers.items() if name != endpoint.id})

    def _workers(self, workers: dict[str, int]) -> None:
        """The controller sees that the pool became empty, or did not stay so, when something waits."""
        if bool(workers) is not bool(self.model.workers) and self.model.waiting:
            self.model.empty_changed_at = self.now
        self.model.workers = workers

    def turn(self) -> None:
        """What the model dispatches goes where the director sent it, so the model asks once more after each."""
        self.model.expires(self.now)
        before = len(self.outcomes)
        loads = dict(self.model.workers)
        due = self.director.dispatch(self.now)
        picked = [name for name, how in self.outcomes[before:] if how == "dispatched"]
        self.model.workers = loads
        for name in picked:
            assert self.model.next() is not None, f"{name} went, but there is no room"
            self.model.workers[self.picks[name].endpoints[0].id] += 1
        assert self.model.next() is None, "there was room for one more"
        assert due == self.model.next_expiry()

    def check(self) -> None:
        assert self.outcomes == self.model.outcomes
        self.outcomes.clear()
        self.model.outcomes.clear()
        counts: Counter[int] = Counter()
        sizes: Counter[int] = Counter()
        for one in self.model.waiting:
            assert one.name in self.waiting
            counts[one.priority] += 1
            sizes[one.priority] += one.size
        for band in self.controller.bands:
            assert (len(band.waiting), band.bytes) == (counts[band.priority], sizes[band.priority])
        assert len(self.waiting) == len(self.model.waiting)


SETTINGS = flow_settings(
    request_ttl=2.0,
    no_endpoint_ttl=1.0,
    max_requests=40,
    max_bytes=17_000,
    bands={5: band_settings(max_requests=12, max_bytes=4500)},
    default_band=band_settings(max_requests=25, max_bytes=9500),
    default_negative_band=band_settings(max_requests=15, max_bytes=5500),
    usage_limit=HalfForSheddable(),
)


CASES = pytest.mark.parametrize(
    ("ordering", "turns", "eviction"),
    [
        ("fcfs", False, False),
        ("fcfs", True, True),
        ("edf", True, False),
        ("slo", False, True),
        ("slo", True, True),
    ],
)


@CASES
def test_every_decision_is_the_model_s(ordering: str, turns: bool, eviction: bool) -> None:
    compare(ordering, turns=turns, eviction=eviction, requests=REQUESTS)


def compare(ordering: str, *, turns: bool, eviction: bool, requests: int) -> None:
    policies = {"fairness": RoundRobin() if turns else GlobalStrict(), "ordering": ORDERINGS[ordering]}
    settings = replace(
        SETTINGS,
        bands={5: replace(SETTINGS.bands[5], **policies)},
        default_band=replace(SETTINGS.default_band, **policies),
        default_negative_band=replace(band_settings(max_requests=15, max_bytes=5500), **policies),
        eviction=eviction,
    )
    it = Both(settings, ordering, turns=turns, seed=len(ordering) + 10 * turns + 100 * eviction)
    events = [it.arrive, it.end, it.leave, it.start_worker, it.kill_worker]
    while it.came < requests:
        weights = (50, 45, 4, 0.5, 0.5) if it.came // 500 % 2 else (55, 30, 4, 0.5, 0.6)
        event = it.rng.choices(events, weights)[0]
        event()
        if event in (it.start_worker, it.kill_worker) or it.rng.random() < 0.7:
            it.turn()
        it.check()
        it.now += it.rng.expovariate(50)
    while it.picks or it.waiting:
        it.now += 0.1
        it.end()
        it.turn()
        it.check()
    assert not it.store.pool(it.now).inflight.any()
