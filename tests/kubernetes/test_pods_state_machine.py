"""Random histories of Pods, a pool and faults against a model: as test_state_machine.py, for Pods that a pool selects."""

import asyncio
import logging
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.kubernetes.fake.event_recorder import EventRecorder, recording_events
from tests.kubernetes.fake.faults import Fault, Verb
from tests.kubernetes.fake.memory_transport import MemoryTransport
from tests.kubernetes.fake.pod_world import POOL, PodWorld
from tests.kubernetes.fake.random_faults import FAULTS
from tests.kubernetes.fake.virtual_time import VirtualTimeLoop
from tests.kubernetes.fake.watching import Limits
from tests.kubernetes.fake.world import within
from tests.kubernetes.test_state_machine import _halves

SOME = st.lists(st.sampled_from([f"p{i}" for i in range(6)]), min_size=1, max_size=3, unique=True)
LABELS = st.sampled_from([{"app": "a"}, {"app": "b"}, {"app": "a", "tier": "x"}])
PORTS = st.sampled_from([(8000,), (8001,), (8000, 8001), (8001, 8000, 8002)])
ACTIVE = st.sampled_from([None, None, None, "8000", "8001,8002", ""])
PAUSES = st.sampled_from([0.0, 0.01, 0.1, 0.4, 0.7, 3.0, 20.0, 130.0, 700.0])


class PodsMachine(RuleBasedStateMachine):
    """The model: the Pods and the pool themselves (`expected`)."""

    def __init__(self, steps: Counter[str]) -> None:
        super().__init__()
        self.steps = steps
        self.runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.stack = AsyncExitStack()
        self.slow_to_heal = False

    @initialize(page_size=st.sampled_from([None, 1, 2]), there=st.booleans())
    def begin(self, page_size: int | None, there: bool) -> None:
        self.world = PodWorld()
        self.world.api.page_size = page_size
        self.world.transport = self.transport = MemoryTransport(self.world.api, split=_halves)
        if there:
            self.world.pool(8000, app="a")
        for i in range(4):
            self.world.pod(f"p{i}", labels={"app": "a"})
        self.runner.run(self._open())

    async def _open(self) -> None:
        discovery = await self.stack.enter_async_context(self.world.discovering(POOL))
        self.recorder: EventRecorder = await self.stack.enter_async_context(recording_events(discovery))

    @rule(names=SOME, labels=LABELS, active=ACTIVE, replaced=st.booleans(), ready=st.booleans(), pause=PAUSES)
    def appear(
        self,
        names: list[str],
        labels: dict[str, str],
        active: str | None,
        replaced: bool,
        ready: bool,
        pause: float,
    ) -> None:
        annotations = None if active is None else {"llm-d.ai/active-ports": active}
        for name in names:
            if replaced and self.world.log.get("pods", "default", name) is not None:
                self.world.delete(name)
            self.world.pod(name, labels=labels, ready=ready, annotations=annotations)
        self._step("appear", pause)

    @rule(names=SOME, how=st.sampled_from(["terminating", "restarted", "gone"]), pause=PAUSES)
    def change(self, names: list[str], how: str, pause: float) -> None:
        for name in names:
            found = self.world.log.get("pods", "default", name)
            if found is None:
                continue
            if how == "gone":
                self.world.delete(name)
                continue
            labels = found["metadata"]["labels"]
            restarts = self.steps["restarted"] + 1 if how == "restarted" else 0
            self.world.pod(name, labels=labels, terminating=how == "terminating", restarts=restarts)
        self._step(how, pause)

    @rule(labels=LABELS, ports=PORTS, pause=PAUSES)
    def edit_pool(self, labels: dict[str, str], ports: tuple[int, ...], pause: float) -> None:
        self.world.pool(*ports, **labels)
        self._step("edit pool", pause)

    @precondition(lambda self: self._pool() is not None)
    @rule(pause=PAUSES)
    def delete_pool(self, pause: float) -> None:
        self.world.delete_pool()
        self._step("delete pool", pause)

    @rule(pause=PAUSES)
    def time_passes(self, pause: float) -> None:
        self._step("time", pause)

    @rule(
        fault=st.sampled_from(FAULTS),
        resource=st.sampled_from(["pods", "inferencepools"]),
        times=st.integers(1, 3),
    )
    def fault(self, fault: tuple[Fault, Verb], resource: str, times: int) -> None:
        self.world.api.faults.add(fault[0], on=fault[1], times=times, resource=resource)
        self._step("fault")

    @rule(forget=st.booleans(), pause=PAUSES)
    def watches_end(self, forget: bool, pause: float) -> None:
        if forget:
            self.world.log.forget()
            self.world.log.compact()
        self.world.api.end_watches()
        self._step("watches end", pause)

    @rule(pause=PAUSES)
    def server_restarts(self, pause: float) -> None:
        self.world.api.shut_down()
        self._wait(pause)
        self.world.api.come_back()
        self._step("restart")

    @rule(pause=PAUSES)
    def network_goes(self, pause: float) -> None:
        self.transport.down = "connection refused"
        self.world.api.end_watches()
        self._step("network goes", pause)

    @precondition(lambda self: self.transport.down is not None)
    @rule()
    def network_returns(self) -> None:
        self.transport.down = None
        self._step("network returns")

    @rule(longest=st.sampled_from([None, 0.5, 5.0, 60.0]), bookmarks=st.sampled_from([1.0, 60.0]))
    def limits(self, longest: float | None, bookmarks: float) -> None:
        self.world.api.limits = Limits(bookmarks, longest)
        self._step("limits")

    @precondition(lambda self: not self.slow_to_heal)
    @rule(labels=LABELS, ports=PORTS)
    def events_are_lost(self, labels: dict[str, str], ports: tuple[int, ...]) -> None:
        with self.world.log.silently():
            self.world.pool(*ports, **labels)
            self.world.pod("p0", labels=labels)
        self.slow_to_heal = True
        self._step("lost events")

    @invariant()
    def sound(self) -> None:
        """Added and Removed alternate for each incarnation, and the watch never ends."""
        recorder = getattr(self, "recorder", None)
        if recorder is not None:
            assert not recorder.violations, recorder.violations
            assert recorder.error is None, recorder.error

    @rule()
    def heal(self) -> None:
        """Without faults the set becomes right; then a resync without change is silent."""
        api = self.world.api
        api.faults.clear()
        api.limits = Limits()
        self.transport.down = None
        longest = 2 * 1860.0 if self.slow_to_heal else 65.0
        self.runner.run(within(longest, lambda: self.recorded() == self.expected()))
        self._wait(longest if self.slow_to_heal else 5.0)
        count = len(self.recorder.events)
        self.world.log.put(
            "pods", {"metadata": {"name": f"at-{self.world.log.rv}", "namespace": "elsewhere"}}
        )
        self.world.log.forget()
        api.end_watches()
        self._wait(40.0)
        assert self.recorded() == self.expected()
        assert len(self.recorder.events) == count, self.recorder.transitions()
        self.slow_to_heal = False
        self._step("heal")

    def teardown(self) -> None:
        try:
            if hasattr(self, "recorder"):
                self._end()
        finally:
            self.runner.close()

    def _end(self) -> None:
        try:
            self.heal()
        finally:
            self.runner.run(self.stack.aclose())

    def recorded(self) -> set[tuple[str, str, int]]:
        return {(i.id, i.registered_incarnation, i.port) for i in self.recorder.instances.values()}

    def expected(self) -> set[tuple[str, str, int]]:
        """Id, uid and port, judged by the Pods and the pool alone."""
        pool = self._pool()
        if pool is None:
            return set()
        wanted = pool["spec"]["selector"]["matchLabels"].items()
        found = set()
        for pod in self.world.log.objects("pods", "default"):
            meta = pod["metadata"]
            ready = pod["status"]["conditions"][0]["status"] == "True" and "deletionTimestamp" not in meta
            if not ready or not wanted <= meta["labels"].items():
                continue
            active = meta.get("annotations", {}).get("llm-d.ai/active-ports")
            for rank, port in enumerate(p["number"] for p in pool["spec"]["targetPorts"]):
                if active is None or str(port) in active.split(","):
                    found.add((f"{meta['name']}-rank-{rank}", meta["uid"], port))
        return found

    def _pool(self) -> dict[str, Any] | None:
        return self.world.log.get("inferencepools", "default", "pool")

    def _step(self, name: str, pause: float = 0.0) -> None:
        self.steps[name] += 1
        self._wait(pause)

    def _wait(self, pause: float) -> None:
        self.runner.run(asyncio.sleep(pause))


def walk_pods(histories: int) -> int:
    """Runs so many random histories of at most a hundred steps; returns the number of all steps."""
    steps: Counter[str] = Counter()

    class Counted(PodsMachine):
        def __init__(self) -> None:
            super().__init__(steps)

    run_state_machine_as_test(
        Counted,
        settings=settings(
            max_examples=histories,
            stateful_step_count=100,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return steps.total()


@pytest.mark.timeout(600)  # finding the shortest failing history takes long
def test_thousands_of_steps_of_pods_pool_and_faults(caplog: pytest.LogCaptureFixture) -> None:
    """`tests/system` walks more."""
    caplog.set_level(logging.CRITICAL, logger="discovery")  # each fault is one warning
    assert walk_pods(histories=25) >= 1_200
