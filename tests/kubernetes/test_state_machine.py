"""Random histories of pods, slices and faults against a model: invariants I1-I4 and I7 of README.md.

Virtual time and production constants; the controller writes one slice at a time, so readers see what lies between.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack

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

from tests.kubernetes.fake import faults
from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.event_recorder import EventRecorder, recording_events
from tests.kubernetes.fake.faults import Fault, Verb
from tests.kubernetes.fake.memory_transport import MemoryTransport
from tests.kubernetes.fake.objects import LABELS, SERVICE
from tests.kubernetes.fake.random_faults import FAULTS
from tests.kubernetes.fake.rv_log import Object, RvLog
from tests.kubernetes.fake.slice_history import SliceHistory, counts
from tests.kubernetes.fake.virtual_time import VirtualTimeLoop
from tests.kubernetes.fake.watching import Limits
from tests.kubernetes.fake.world import World, within

SOME = st.lists(st.sampled_from([f"p{i}" for i in range(8)]), min_size=1, max_size=4, unique=True)
ADDRESSES = st.integers(1, 12)
MOSTLY = st.sampled_from([True, True, True, False])
TARGETS = st.sampled_from([8080, 9090, "web"])
FAMILIES = st.sampled_from([("IPv4",), ("IPv4", "IPv6"), ("IPv6", "IPv4")])
PAUSES = st.sampled_from([0.0, 0.01, 0.1, 0.4, 0.7, 3.0, 20.0, 130.0, 700.0])


class Machine(RuleBasedStateMachine):
    """The model: the pods themselves (`expected`), and what slices have shown of each uid (`SliceHistory`)."""

    def __init__(self, steps: Counter[str]) -> None:
        super().__init__()
        self.steps = steps
        self.runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.stack = AsyncExitStack()
        self.pending: list[Callable[[], object]] = []
        self.replica: RvLog | None = None
        self.backup: int | None = None
        self.deceived = False
        self.slow_to_heal = False

    @initialize(max_endpoints=st.sampled_from([1, 3, 100]), page_size=st.sampled_from([None, 1, 2]))
    def begin(self, max_endpoints: int, page_size: int | None) -> None:
        self.world = World(max_endpoints=max_endpoints)
        self.world.settled = False
        self.world.api.page_size = page_size
        self.log = self.world.log
        self.transport = MemoryTransport(self.world.api, split=_halves)
        self.slice_history = SliceHistory(self.world)
        self.runner.run(self._open())
        self.appear(["p0", "p1", "p2", "p3"], 1, True, False, True, 0.1)

    async def _open(self) -> None:
        self.stack.enter_context(self.log.listening(self.slice_history.record))
        discovery = await self.stack.enter_async_context(self.world.discovering(self.transport))
        self.recorder: EventRecorder = await self.stack.enter_async_context(recording_events(discovery))

    # what happens to pods

    @rule(names=SOME, address=ADDRESSES, ready=MOSTLY, web=st.booleans(), ours=MOSTLY, pause=PAUSES)
    def appear(
        self, names: list[str], address: int, ready: bool, web: bool, ours: bool, pause: float
    ) -> None:
        """Creates pods, or replaces them by others of the same name. Two may have one address."""
        ports = {"web": 8000} if web else {"http": 8080}
        labels = LABELS if ours else {"app": "other"}
        for i, name in enumerate(names, start=address):
            self._kill(name)
            self.world.pod(name, f"10.244.0.{i}", f"2001:db8::{i}", ready=ready, ports=ports, labels=labels)
        self._step("appear", pause, sync=pause > 0)

    @rule(names=SOME, state=st.sampled_from(["ready", "not ready", "terminating"]), pause=PAUSES)
    def change(self, names: list[str], state: str, pause: float) -> None:
        for pod in filter(None, (self.log.get("pods", "default", name) for name in names)):
            ports = {p["name"]: p["containerPort"] for p in pod["spec"]["containers"][0]["ports"]}
            how = {"ready": state != "not ready", "terminating": state == "terminating"}
            self.world.pod(pod["metadata"]["name"], ports=ports, labels=pod["metadata"]["labels"], **how)
        self._step(state, pause, sync=pause > 0)

    @rule(names=SOME, pause=PAUSES)
    def vanish(self, names: list[str], pause: float) -> None:
        for name in names:
            self._kill(name)
        self._step("vanish", pause, sync=pause > 0)

    @rule(port=TARGETS, families=FAMILIES, label=st.integers(0, 3))
    def edit_service(self, port: int | str, families: tuple[str, ...], label: int) -> None:
        labels = {"round": str(label)}
        self.world.change_service(ports={"http": port}, families=families, labels=labels)
        self._step("edit service")

    @rule(collected=st.integers(0, 3), pause=PAUSES)
    def service_is_made_again(self, collected: int, pause: float) -> None:
        """Some of its slices are collected in between."""
        self.world.delete_service()
        self.pending = []
        for step in self.world.controller.steps(SERVICE)[:collected]:
            step()
        self._wait(pause)
        self.world.change_service()
        self._step("service made again")

    # what the controller does

    @rule(count=st.integers(1, 4), pause=PAUSES)
    def controller_writes_some(self, count: int, pause: float) -> None:
        for _ in range(count):
            if not self.pending:
                self.pending = self.world.controller.steps(SERVICE)
            if self.pending:
                self.pending.pop(0)()
        self._step("some writes", pause)

    @rule(pause=PAUSES)
    def controller_catches_up(self, pause: float) -> None:
        self._settle_slices()
        self._step("all writes", pause)

    # what happens in between

    @rule(pause=PAUSES)
    def time_passes(self, pause: float) -> None:
        self._step("time", pause)

    @rule(fault=st.sampled_from(FAULTS), times=st.integers(1, 3))
    def fault(self, fault: tuple[Fault, Verb], times: int) -> None:
        self.world.api.faults.add(fault[0], on=fault[1], times=times)
        self._step("fault")

    @rule(forget=st.booleans(), pause=PAUSES)
    def watches_end(self, forget: bool, pause: float) -> None:
        if forget:
            self.log.forget()
            self.log.compact()
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
    @rule()
    def an_event_is_lost(self) -> None:
        with self.log.silently():
            self._settle_slices()
        self.slow_to_heal = True
        self._step("lost event")

    @rule()
    def etcd_is_backed_up(self) -> None:
        self.backup = self.log.rv
        self._step("backup")

    @precondition(lambda self: self.backup is not None and self.backup >= self.log.oldest_read)
    @rule()
    def etcd_is_restored(self) -> None:
        """Without a revision bump: versions are used a second time."""
        assert self.backup is not None
        self.log.restore(self.backup)
        self.pending, self.backup, self.replica = [], None, None
        self.slow_to_heal = True
        self._step("restore")

    @precondition(lambda self: self.replica is None)
    @rule()
    def a_replica_falls_behind(self) -> None:
        self.replica = self.log.fork()
        self._step("replica")

    @precondition(lambda self: self.replica is not None and not self.deceived)
    @rule()
    def the_replica_answers_the_next_list(self) -> None:
        """Once: two consistent lists with an old version mean that etcd was restored."""
        assert self.replica is not None
        stale, self.replica, self.deceived = FakeApi(self.replica), None, True
        self.world.api.faults.add(faults.other_server(stale.serve), on="list")
        self._step("stale list")

    # what must hold

    @invariant()
    def sound(self) -> None:
        """I2 and I7 at every moment; and no event without a slice that caused it."""
        recorder = getattr(self, "recorder", None)
        if recorder is None:
            return
        assert not recorder.violations, recorder.violations
        assert recorder.error is None, recorder.error
        if self.slow_to_heal:
            return  # after a lost event slices are seen together that never existed together
        added, removed = counts(recorder)
        for uid in added:
            assert added[uid] <= self.slice_history.became_available[uid], (
                f"{uid} was added more often than it became available"
            )
            assert removed[uid] <= self.slice_history.became_unavailable[uid], (
                f"{uid} was removed more often than it became unavailable"
            )

    @rule()
    def heal(self) -> None:
        """I4, hence I1: without faults the set becomes right. Then I3: a resync without change is silent."""
        api = self.world.api
        api.faults.clear()
        self.deceived = False
        api.limits = Limits()
        self.transport.down = None
        self._settle_slices()
        longest = 2 * 1860.0 if self.slow_to_heal else 65.0
        self.runner.run(within(longest, lambda: self.recorded() == self.expected()))
        self._wait(longest if self.slow_to_heal else 5.0)
        count = len(self.recorder.events)
        self.world.expire_watches()
        self._wait(40.0)
        assert self.recorded() == self.expected()
        assert len(self.recorder.events) == count, self.recorder.transitions()
        if self.slow_to_heal:
            self.slow_to_heal = False
            self.slice_history.became_available, self.slice_history.became_unavailable = counts(self.recorder)
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
        return {(i.incarnation, i.address, i.port) for i in self.recorder.instances.values()}

    def expected(self) -> set[tuple[str, str, int]]:
        """uid, address and port, judged by the pods and the Service alone."""
        service = self.log.get("services", "default", SERVICE)
        assert service is not None
        target = service["spec"]["ports"][0]["targetPort"]
        pods = [p for p in self.log.objects("pods", "default") if _uid(p) in self.world.uids and _selected(p)]
        found = ((_uid(p), p["status"]["podIP"], _port(p, target)) for p in pods)
        return {(uid, address, port) for uid, address, port in found if port is not None}

    def _settle_slices(self) -> None:
        for step in self.pending:
            step()
        self.pending = []
        self.world.sync()

    def _kill(self, name: str) -> None:
        if self.log.get("pods", "default", name) is not None:
            self.log.delete("pods", "default", name)

    def _step(self, name: str, pause: float = 0.0, *, sync: bool = False) -> None:
        self.steps[name] += 1
        if sync:
            self._settle_slices()
        self._wait(pause)

    def _wait(self, pause: float) -> None:
        self.runner.run(asyncio.sleep(pause))


def _uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def _selected(pod: Object) -> bool:
    return bool(LABELS.items() <= pod["metadata"]["labels"].items())


def _port(pod: Object, target: int | str) -> int | None:
    if isinstance(target, int):
        return target
    named = {p["name"]: p["containerPort"] for p in pod["spec"]["containers"][0]["ports"]}
    return named.get(target)


def _halves(chunk: bytes) -> tuple[bytes, bytes]:
    return chunk[: len(chunk) // 2], chunk[len(chunk) // 2 :]


def walk(histories: int) -> int:
    """Runs so many random histories of at most a hundred steps; returns the number of all steps."""
    steps: Counter[str] = Counter()

    class Counted(Machine):
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
def test_thousands_of_steps_of_pods_slices_and_faults(caplog: pytest.LogCaptureFixture) -> None:
    """`tests/system` walks ten thousand."""
    caplog.set_level(logging.CRITICAL, logger="discovery")  # each fault is one warning
    assert walk(histories=40) >= 2_000
