"""What flow control costs in the picker: a pick with empty queues, a dispatch with 10,000 waiting, memory over 10^6 requests."""

import gc
import json
import random
import statistics
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from benchmarks.process_usage import percentile, resident_megabytes
from discovery import Instance, InstanceAddedEvent
from epp.config.picker_config import load_config
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import EndpointPool
from epp.endpoints.load import Load
from epp.flow_control.controller import FlowControlSwitch
from epp.flow_control.fairness import RoundRobin
from epp.flow_control.orderings import FirstComeFirstServed
from epp.flow_control.settings import FlowControlSettings, PriorityBand
from epp.flow_control.usage_limits import StaticUsageLimit
from epp.scheduling.director import Director
from epp.scheduling.pick import Pick, SchedulingContext
from epp.scheduling.request_reader import Policy
from epp.scheduling.waiting import WaitingRequest

WAITING: Final = 10_000
_WORKERS: Final = 10
_PERIOD: Final = 0.05
_REQUESTS_A_PAGE: Final = 50
_OBJECTIVES: Final = {"high": 10, "low": -1}
_FLOWS: Final = 100
_BY_CONCURRENCY: Final = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins: [{type: concurrency-detector, parameters: {maxConcurrency: 5}}]
saturationDetector: {pluginRef: concurrency-detector}
"""
"""One release is room for one request, so that each dispatch is alone."""


class _Pool:
    """A picker's director over idle workers, whose pages come every 50 ms while requests come every millisecond."""

    def __init__(self, *, flow_control: bool, text: str | None = None) -> None:
        self.now = 100.0
        self.rng = random.Random(1)
        self.store = Datastore()
        for number in range(_WORKERS):
            worker = Instance(f"w{number}", "ns", "c", f"10.0.0.{number + 1}", 8000, "a")
            self.store.apply(InstanceAddedEvent(worker), {})
        self.publish(0)
        config = load_config(text, rng=self.rng)
        policy = Policy(objectives=_OBJECTIVES)
        self.director = Director(self.store, config.scheduler, config.detector, policy, self.rng)
        if flow_control:
            band = PriorityBand(
                max_requests=2 * WAITING, fairness=RoundRobin(), ordering=FirstComeFirstServed()
            )
            switch = FlowControlSwitch(self.director, self.store, 2**34)
            settings = FlowControlSettings(default_band=band, usage_limit=StaticUsageLimit())
            switch.use(settings, config.detector, self.now)
        self.went: deque[Pick] = deque()
        self._bodies = [_body(number) for number in range(200)]
        self._came = 0

    def publish(self, waiting: float) -> None:
        for endpoint in self.store.endpoints:
            self.store.observe(
                endpoint,
                Load(waiting=waiting, running=self.rng.randrange(9), kv_usage=0.2),
                self.now,
                _PERIOD,
            )

    def ask(self, objectives: Sequence[str] = ("high", "none", "low")) -> WaitingRequest | None:
        """None: it went at once."""
        self._came += 1
        headers = {
            ":path": "/v1/chat/completions",
            "x-llm-d-inference-objective": self.rng.choice(objectives),
            "x-llm-d-inference-fairness-id": f"tenant-{self.rng.randrange(_FLOWS)}",
        }
        outcome = self.director.direct(headers, self._bodies[self._came % 200], None, self.now)
        if isinstance(outcome, Pick):
            self.went.append(outcome)
            return None
        assert isinstance(outcome, WaitingRequest)
        outcome.subscribe(self._settled)
        return outcome

    def _settled(self, outcome: Pick | Exception, now: float) -> None:
        if isinstance(outcome, Exception):
            raise outcome
        self.went.append(outcome)

    def release(self) -> None:
        self.director.picks.release(self.went.popleft(), self.now)


def _body(number: int) -> bytes:
    text = f"{number} " + "lorem ipsum dolor " * 60
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()


def _pick_times(pools: Sequence[_Pool], rounds: int) -> list[float]:
    """Microseconds for a pick and its release: the median of the rounds, each pool in turn since the machine's speed changes."""
    spent: list[list[float]] = [[] for _ in pools]
    for _ in range(rounds):
        for number, pool in enumerate(pools):
            pool.publish(0)
            began = time.thread_time()
            for _ in range(_REQUESTS_A_PAGE):
                pool.now += 0.001
                pool.ask(("high", "none"))  # without flow control the sheddable have a detector asked
                pool.release()
            spent[number].append((time.thread_time() - began) / _REQUESTS_A_PAGE * 1e6)
    return [statistics.median(one) for one in spent]


class _TimedScheduler:
    """Measures the picks of requests that waited."""

    def __init__(self, director: Director) -> None:
        self._director = director
        self.spent = 0.0

    def candidates(self, context: SchedulingContext, now: float) -> EndpointPool:
        return self._director.candidates(context, now)

    def schedule(self, context: SchedulingContext, now: float) -> Pick:
        began = time.thread_time()
        pick = self._director.schedule(context, now)
        self.spent += time.thread_time() - began
        return pick

    def ended_waiting(self, context: SchedulingContext, why: Exception | None, now: float) -> None:
        self._director.ended_waiting(context, why, now)


def _dispatch_times(pool: _Pool, count: int) -> tuple[list[float], list[float]]:
    """Microseconds from a release until the next request has its endpoint, and without the pick itself."""
    scheduler = _TimedScheduler(pool.director)
    pool.director.waiting.scheduler = scheduler
    whole: list[float] = []
    own: list[float] = []
    for number in range(count):
        pool.now += 0.001
        if number % _REQUESTS_A_PAGE == 0:
            pool.publish(0)
        before = len(pool.went)
        scheduler.spent = 0.0
        began = time.thread_time()
        pool.release()
        pool.director.dispatch(pool.now)
        spent = time.thread_time() - began
        assert len(pool.went) == before, "one was released, and one went"
        whole.append(spent * 1e6)
        own.append((spent - scheduler.spent) * 1e6)
        pool.ask()
    return whole, own


def _fill(pool: _Pool) -> None:
    while len(pool.director.waiting) < WAITING:
        pool.ask()


def _memory(count: int) -> tuple[float, float]:
    """Resident MB once 10,000 waited, and after `count` requests more."""
    pool = _Pool(flow_control=True, text=_BY_CONCURRENCY)
    _fill(pool)
    gc.collect()
    before = resident_megabytes()
    for number in range(count):
        pool.now += 0.0001
        if number % 500 == 0:
            pool.publish(0)
        waiting = pool.ask()
        if waiting is not None and number % 10 == 0:
            waiting.abandon(pool.now)
            continue
        pool.release()
        pool.director.dispatch(pool.now)
    gc.collect()
    return before, resident_megabytes()


def measure(memory_over: int = 1_000_000) -> None:
    gc.disable()
    off, on = _pick_times([_Pool(flow_control=False), _Pool(flow_control=True)], 400)
    print(
        f"a pick with empty queues: {off:.1f} µs without flow control, {on:.1f} µs with it ({on / off - 1:+.1%})"
    )
    pool = _Pool(flow_control=True, text=_BY_CONCURRENCY)
    _fill(pool)
    whole, own = _dispatch_times(pool, 2000)
    print(
        f"a dispatch with {WAITING} waiting: {statistics.median(whole):.1f} µs, of which {statistics.median(own):.1f} µs are the queue's; "
        f"99 of 100 within {percentile(whole, 0.99):.1f} µs"
    )
    gc.enable()
    before, after = _memory(memory_over)
    print(f"memory with {WAITING} waiting: {before:.1f} MB, after {memory_over} requests {after:.1f} MB")


async def main() -> None:
    measure()
