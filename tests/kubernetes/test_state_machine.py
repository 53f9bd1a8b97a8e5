"""Random histories of pods, slices and faults against a model: invariants I1-I4 and I7 (`Machine` says which is where).

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

from discovery import InstanceAddedEvent, InstanceRemovedEvent
from tests.kubernetes.fake import faults
from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.faults import Fault, Verb
from tests.kubernetes.fake.memory_transport import MemoryTransport
from tests.kubernetes.fake.objects import LABELS, SERVICE
from tests.kubernetes.fake.rv_log import Object, RvLog
from tests.kubernetes.fake.status import StatusError, expired, too_large
from tests.kubernetes.fake.virtual_time import VirtualTimeLoop
from tests.kubernetes.fake.watching import Limits
from tests.kubernetes.fake.witness import Witness, witnessing
from tests.kubernetes.fake.world import World, within

NAMES = st.sampled_from([f"p{i}" for i in range(8)])
ADDRESSES = st.sampled_from([(f"10.244.0.{i}", f"2001:db8::{i}") for i in range(1, 12)])
TARGETS = st.sampled_from([8080, 9090, "web"])
FAMILIES = st.sampled_from([("IPv4",), ("IPv4", "IPv6"), ("IPv6", "IPv4")])
PAUSES = st.sampled_from([0.0, 0.01, 0.1, 0.4, 0.7, 3.0, 20.0, 130.0, 700.0])
BUSY = StatusError(429, "TooManyRequests", "busy", retry_after=1)
INTERNAL = StatusError(500, "InternalError", "leader changed")
CUTS = [
    *(faults.cut(after=n, inside=0.5, how="reset") for n in (0, 1)),
    *(faults.cut(after=n, inside=None, how="fin") for n in (0, 1)),
]
FAULTS: list[tuple[Fault, Verb]] = [
    *((cut, "any") for cut in CUTS),
    (faults.cut(inside=0.5, how="end"), "any"),
    (faults.cut(inside=None, how="end"), "watch"),
    (faults.broken_before_headers, "any"),
    (faults.no_answer, "any"),
    (faults.html(200), "any"),
    (faults.html(503), "any"),
    (faults.refuses(BUSY), "any"),
    (faults.in_stream(BUSY), "watch"),
    (faults.refuses(INTERNAL), "any"),
    (faults.in_stream(INTERNAL), "watch"),
    (faults.refuses(expired("too old")), "any"),
    (faults.in_stream(expired("too old")), "watch"),
    (faults.refuses(too_large(9999, 1)), "any"),
    (faults.in_stream(too_large(9999, 1)), "watch"),
    (faults.refuses(StatusError(403, "Forbidden", "no")), "any"),
    (faults.says(b'{"type":"MODIFIED","object":{}}\n'), "watch"),
    (faults.preceded(b"{]\n"), "watch"),
    (faults.drip(50), "any"),
]


class Machine(RuleBasedStateMachine):
    """The model is the pods themselves (`expected`), and what the slices ever said of a uid (`Evidence`)."""

    def __init__(self, steps: Counter[str]) -> None:
        super().__init__()
        self.steps = steps
        self.runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.stack = AsyncExitStack()
        self.pending: list[Callable[[], object]] = []
        self.replica: RvLog | None = None
        self.slow_to_heal = False

    @initialize(max_endpoints=st.sampled_from([1, 3, 100]), page_size=st.sampled_from([None, 1, 2]))
    def begin(self, max_endpoints: int, page_size: int | None) -> None:
        self.world = World(max_endpoints=max_endpoints)
        self.world.settled = False
        self.world.api.page_size = page_size
        self.log = self.world.log
        self.transport = MemoryTransport(self.world.api, split=_halves)
        self.evidence = Evidence(self.world)
        self.runner.run(self._open())

    async def _open(self) -> None:
        self.stack.enter_context(self.log.listening(self.evidence.look))
        discovery = await self.stack.enter_async_context(self.world.discovering(self.transport))
        self.witness: Witness = await self.stack.enter_async_context(witnessing(discovery))

    # what happens to pods

    @rule(name=NAMES, address=ADDRESSES, ready=st.booleans(), web=st.booleans(), ours=st.integers(0, 5))
    def appear(self, name: str, address: tuple[str, str], ready: bool, web: bool, ours: int) -> None:
        """A pod is made, or made again under its name: another uid."""
        if self.log.get("pods", "default", name) is not None:
            self.log.delete("pods", "default", name)
        ports = {"web": 8000} if web else {"http": 8080}
        self.world.pod(name, *address, ready=ready, ports=ports, labels=LABELS if ours else {"app": "other"})
        self._step("appear")

    @rule(name=NAMES, ready=st.booleans(), terminating=st.booleans())
    def change(self, name: str, ready: bool, terminating: bool) -> None:
        pod = self.log.get("pods", "default", name)
        if pod is not None:
            ports = {p["name"]: p["containerPort"] for p in pod["spec"]["containers"][0]["ports"]}
            labels = pod["metadata"]["labels"]
            self.world.pod(name, ready=ready, terminating=terminating, ports=ports, labels=labels)
        self._step("change")

    @rule(name=NAMES)
    def vanish(self, name: str) -> None:
        if self.log.get("pods", "default", name) is not None:
            self.log.delete("pods", "default", name)
        self._step("vanish")

    @rule(port=TARGETS, families=FAMILIES, label=st.integers(0, 3))
    def edit_service(self, port: int | str, families: tuple[str, ...], label: int) -> None:
        labels = {"round": str(label)}
        self.world.change_service(ports={"http": port}, families=families, labels=labels)
        self._step("edit service")

    @rule()
    def delete_service(self) -> None:
        if self.log.get("services", "default", SERVICE) is not None:
            self.world.delete_service()
        self._step("delete service")

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

    @rule(down=st.booleans())
    def network(self, down: bool) -> None:
        self.transport.down = "connection refused" if down else None
        if down:
            self.world.api.end_watches()
        self._step("network")

    @rule(longest=st.sampled_from([None, 0.5, 5.0, 60.0]), bookmarks=st.sampled_from([1.0, 60.0]))
    def limits(self, longest: float | None, bookmarks: float) -> None:
        self.world.api.limits = Limits(bookmarks, longest)
        self._step("limits")

    @rule()
    def an_event_is_lost(self) -> None:
        with self.log.silently():
            self._settle_slices()
        self.slow_to_heal = True
        self._step("lost event")

    @rule()
    def a_replica_falls_behind(self) -> None:
        self.replica = self.log.fork()
        self._step("replica")

    @precondition(lambda self: self.replica is not None)
    @rule()
    def the_replica_answers_the_next_list(self) -> None:
        """Once: who is told the same old version twice by consistent lists must believe that etcd was restored."""
        assert self.replica is not None
        stale, self.replica = FakeApi(self.replica), None
        self.world.api.faults.add(faults.elsewhere(stale.serve), on="list")
        self._step("stale list")

    # what must hold

    @invariant()
    def sound(self) -> None:
        """I2 and I7 at every moment; and nothing is told that no slice ever said."""
        witness = getattr(self, "witness", None)
        if witness is None:
            return
        assert not witness.broken, witness.broken
        assert witness.error is None, witness.error
        if self.slow_to_heal:
            return  # after a lost event slices are seen together that never stood together
        added, removed = _counts(witness)
        for uid in added:
            assert added[uid] <= self.evidence.came[uid], f"{uid} was told more often than it came"
            assert removed[uid] <= self.evidence.went[uid], f"{uid} was removed more often than it went"

    @rule()
    def heal(self) -> None:
        """I4, hence I1: when all is well again, so is the set. Then I3: a resync without change is silent."""
        api = self.world.api
        api.faults.clear()
        api.limits = Limits()
        self.transport.down = None
        self._settle_slices()
        longest = 2 * 1860.0 if self.slow_to_heal else 65.0
        self.runner.run(within(longest, lambda: self.told() == self.expected()))
        self._wait(5.0)
        told = len(self.witness.events)
        self.world.lose_watches()
        self._wait(40.0)
        assert self.told() == self.expected()
        assert len(self.witness.events) == told, self.witness.story()
        if self.slow_to_heal:
            self.slow_to_heal = False
            self.evidence.came, self.evidence.went = _counts(self.witness)
        self._step("heal")

    def teardown(self) -> None:
        try:
            if hasattr(self, "witness"):
                self._end()
        finally:
            self.runner.close()

    def _end(self) -> None:
        try:
            self.heal()
        finally:
            self.runner.run(self.stack.aclose())

    def told(self) -> set[tuple[str, str, int]]:
        return {(i.incarnation, i.address, i.port) for i in self.witness.told.values()}

    def expected(self) -> set[tuple[str, str, int]]:
        """uid, address and port, judged by the pods and the Service alone."""
        service = self.log.get("services", "default", SERVICE)
        if service is None:
            return set()
        target = service["spec"]["ports"][0]["targetPort"]
        pods = [p for p in self.log.objects("pods", "default") if _uid(p) in self.world.uids and _selected(p)]
        found = ((_uid(p), p["status"]["podIP"], _port(p, target)) for p in pods)
        return {(uid, address, port) for uid, address, port in found if port is not None}

    def _settle_slices(self) -> None:
        for step in self.pending:
            step()
        self.pending = []
        self.world.sync()

    def _step(self, name: str, pause: float = 0.0) -> None:
        self.steps[name] += 1
        self._wait(pause)

    def _wait(self, pause: float) -> None:
        self.runner.run(asyncio.sleep(pause))


class Evidence:
    """How often slices began to say that a uid is available (`came`), and that it is not (`went`).

    Lenient where several slices speak of it: each may be the one that counts.
    """

    def __init__(self, world: World) -> None:
        self.came: Counter[str] = Counter()
        self.went: Counter[str] = Counter()
        self._world = world
        self._available: set[str] = set()
        self._doubtful: set[str] = set()
        self._known: set[str] = set()
        self.look()

    def look(self) -> None:
        yes: set[str] = set()
        no: set[str] = set()
        uids_of: dict[str, set[str]] = {}
        for found in self._world.slices():
            for endpoint in found["endpoints"] or ():
                target = endpoint["targetRef"]
                uids_of.setdefault(target["name"], set()).add(target["uid"])
                conditions = endpoint["conditions"]
                good = conditions["ready"] and conditions["serving"] and not conditions["terminating"]
                (yes if good and found["ports"] else no).add(target["uid"])
        for several in uids_of.values():
            no |= several if len(several) > 1 else set()
        self._known |= yes
        no |= self._known - yes
        self.came.update(yes - self._available)
        self.went.update(no - self._doubtful)
        self._available, self._doubtful = yes, no


def _counts(witness: Witness) -> tuple[Counter[str], Counter[str]]:
    events = [event for _, event in witness.events]
    added = Counter(e.instance.incarnation for e in events if isinstance(e, InstanceAddedEvent))
    removed = Counter(e.instance.incarnation for e in events if isinstance(e, InstanceRemovedEvent))
    return added, removed


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


def test_ten_thousand_steps_of_pods_slices_and_faults(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="discovery")  # each fault is one warning
    steps: Counter[str] = Counter()

    class Counted(Machine):
        def __init__(self) -> None:
            super().__init__(steps)

    run_state_machine_as_test(
        Counted,
        settings=settings(
            max_examples=150,
            stateful_step_count=100,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert steps.total() >= 10_000, steps
