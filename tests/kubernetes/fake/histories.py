"""Random histories of a cluster and of faults: what those of slices and those of Pods have in common."""

import asyncio
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.kubernetes.fake.event_recorder import EventRecorder, recording_events
from tests.kubernetes.fake.memory_transport import MemoryTransport
from tests.kubernetes.fake.virtual_time import VirtualTimeLoop
from tests.kubernetes.fake.watching import Limits
from tests.kubernetes.fake.world import FakeCluster, within

PAUSES = st.sampled_from([0.0, 0.01, 0.1, 0.4, 0.7, 3.0, 20.0, 130.0, 700.0])


class Histories(RuleBasedStateMachine):
    """`recorded` must become `expected` once the faults are over. `slow_to_heal`: only a periodic list shows what is."""

    world: FakeCluster

    def __init__(self, steps: Counter[str]) -> None:
        super().__init__()
        self.steps = steps
        self.runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.stack = AsyncExitStack()
        self.slow_to_heal = False

    @abstractmethod
    def recorded(self) -> set[tuple[str, str, int]]: ...

    @abstractmethod
    def expected(self) -> set[tuple[str, str, int]]:
        """Judged by the objects of the cluster alone."""

    def settle(self) -> None:
        """Ends what the cluster has under way."""

    async def open(self, *which: object) -> None:
        """Begins the recording, over a transport that cuts each chunk in two; `which`: as for `discovering`."""
        self.transport = self.world.transport = MemoryTransport(self.world.api, split=_halves)
        discovery = await self.stack.enter_async_context(self.world.discovering(*which))
        self.recorder: EventRecorder = await self.stack.enter_async_context(recording_events(discovery))

    @rule(pause=PAUSES)
    def time_passes(self, pause: float) -> None:
        self.step("time", pause)

    @rule(forget=st.booleans(), pause=PAUSES)
    def watches_end(self, forget: bool, pause: float) -> None:
        if forget:
            self.world.log.forget()
            self.world.log.compact()
        self.world.api.end_watches()
        self.step("watches end", pause)

    @rule(pause=PAUSES)
    def server_restarts(self, pause: float) -> None:
        self.world.api.shut_down()
        self.wait(pause)
        self.world.api.come_back()
        self.step("restart")

    @rule(pause=PAUSES)
    def network_goes(self, pause: float) -> None:
        self.transport.down = "connection refused"
        self.world.api.end_watches()
        self.step("network goes", pause)

    @precondition(lambda self: self.transport.down is not None)
    @rule()
    def network_returns(self) -> None:
        self.transport.down = None
        self.step("network returns")

    @rule(longest=st.sampled_from([None, 0.5, 5.0, 60.0]), bookmarks=st.sampled_from([1.0, 60.0]))
    def limits(self, longest: float | None, bookmarks: float) -> None:
        self.world.api.limits = Limits(bookmarks, longest)
        self.step("limits")

    @invariant()
    def sound(self) -> None:
        """I2 and I7 at every moment."""
        if (recorder := getattr(self, "recorder", None)) is not None:
            assert not recorder.violations, recorder.violations
            assert recorder.error is None, recorder.error

    @rule()
    def heal(self) -> None:
        """I4, hence I1: without faults the set becomes right. Then I3: a resync without change is silent."""
        api = self.world.api
        api.faults.clear()
        api.limits = Limits()
        self.transport.down = None
        self.settle()
        longest = 2 * 1860.0 if self.slow_to_heal else 65.0
        self.runner.run(within(longest, lambda: self.recorded() == self.expected()))
        self.wait(longest if self.slow_to_heal else 5.0)
        count = len(self.recorder.events)
        self.world.expire_watches()
        self.wait(40.0)
        assert self.recorded() == self.expected()
        assert len(self.recorder.events) == count, self.recorder.transitions()
        self.healed()
        self.slow_to_heal = False
        self.step("heal")

    def healed(self) -> None:
        """The set is right, and `slow_to_heal` still as it was."""

    def teardown(self) -> None:
        try:
            if hasattr(self, "recorder"):
                try:
                    self.heal()
                finally:
                    self.runner.run(self.stack.aclose())
        finally:
            self.runner.close()

    def step(self, name: str, pause: float = 0.0, *, settle: bool = False) -> None:
        self.steps[name] += 1
        if settle:
            self.settle()
        self.wait(pause)

    def wait(self, pause: float) -> None:
        self.runner.run(asyncio.sleep(pause))


def _halves(chunk: bytes) -> tuple[bytes, bytes]:
    return chunk[: len(chunk) // 2], chunk[len(chunk) // 2 :]


def walk(machine: Callable[[Counter[str]], Histories], histories: int) -> int:
    """Runs so many random histories of at most a hundred steps; returns the number of all steps."""
    steps: Counter[str] = Counter()
    run_state_machine_as_test(
        lambda: machine(steps),
        settings=settings(
            max_examples=histories,
            stateful_step_count=100,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return steps.total()
