"""Random histories of pods, slices and faults against a model: invariants I1-I4 and I7 of README.md.

Virtual time and production constants; the controller writes one slice at a time, so readers see what lies between.
"""

import logging
from collections import Counter
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import initialize, invariant, precondition, rule

from discovery import InstanceAddedEvent, InstanceRemovedEvent
from tests.kubernetes.fake import faults
from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.event_recorder import EventRecorder
from tests.kubernetes.fake.faults import FAULTS, Fault, Verb
from tests.kubernetes.fake.histories import PAUSES, Histories, walk
from tests.kubernetes.fake.objects import LABELS, SERVICE
from tests.kubernetes.fake.rv_log import Object, RvLog
from tests.kubernetes.fake.world import World


class SliceHistory:
    """How often slices began to show a uid as available, and as not available.

    If several slices have the pod, each may be the one that counts: then both are counted.
    """

    def __init__(self, world: World) -> None:
        self.became_available: Counter[str] = Counter()
        self.became_unavailable: Counter[str] = Counter()
        self._world = world
        self._available: set[str] = set()
        self._doubtful: set[str] = set()
        self._known: set[str] = set()
        self.record()

    def record(self) -> None:
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
        self.became_available.update(yes - self._available)
        self.became_unavailable.update(no - self._doubtful)
        self._available, self._doubtful = yes, no


def counts(recorder: EventRecorder) -> tuple[Counter[str], Counter[str]]:
    """How often each uid was Added, and Removed."""
    events = [event for _, event in recorder.events]
    added = Counter(e.instance.incarnation for e in events if isinstance(e, InstanceAddedEvent))
    removed = Counter(e.instance.incarnation for e in events if isinstance(e, InstanceRemovedEvent))
    return added, removed


SOME = st.lists(st.sampled_from([f"p{i}" for i in range(8)]), min_size=1, max_size=4, unique=True)

ADDRESSES = st.integers(1, 12)

MOSTLY = st.sampled_from([True, True, True, False])

TARGETS = st.sampled_from([8080, 9090, "web"])

FAMILIES = st.sampled_from([("IPv4",), ("IPv4", "IPv6"), ("IPv6", "IPv4")])


class SliceHistories(Histories):
    """The model: the pods themselves (`expected`), and what slices have shown of each uid (`SliceHistory`)."""

    world: World

    def __init__(self, steps: Counter[str]) -> None:
        super().__init__(steps)
        self.pending: list[Callable[[], object]] = []
        self.replica: RvLog | None = None
        self.backup: int | None = None
        self.deceived = False

    @initialize(max_endpoints=st.sampled_from([1, 3, 100]), page_size=st.sampled_from([None, 1, 2]))
    def begin(self, max_endpoints: int, page_size: int | None) -> None:
        self.world = World(max_endpoints=max_endpoints)
        self.world.settled = False
        self.world.api.page_size = page_size
        self.log = self.world.log
        self.slice_history = SliceHistory(self.world)
        self.stack.enter_context(self.log.listening(self.slice_history.record))
        self.runner.run(self.open())
        self.appear(["p0", "p1", "p2", "p3"], 1, True, False, True, 0.1)

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
        self.step("appear", pause, settle=pause > 0)

    @rule(names=SOME, state=st.sampled_from(["ready", "not ready", "terminating"]), pause=PAUSES)
    def change(self, names: list[str], state: str, pause: float) -> None:
        for pod in filter(None, (self.log.get("pods", "default", name) for name in names)):
            ports = {p["name"]: p["containerPort"] for p in pod["spec"]["containers"][0]["ports"]}
            how = {"ready": state != "not ready", "terminating": state == "terminating"}
            self.world.pod(pod["metadata"]["name"], ports=ports, labels=pod["metadata"]["labels"], **how)
        self.step(state, pause, settle=pause > 0)

    @rule(names=SOME, pause=PAUSES)
    def vanish(self, names: list[str], pause: float) -> None:
        for name in names:
            self._kill(name)
        self.step("vanish", pause, settle=pause > 0)

    @rule(port=TARGETS, families=FAMILIES, label=st.integers(0, 3))
    def edit_service(self, port: int | str, families: tuple[str, ...], label: int) -> None:
        labels = {"round": str(label)}
        self.world.change_service(ports={"http": port}, families=families, labels=labels)
        self.step("edit service")

    @rule(collected=st.integers(0, 3), pause=PAUSES)
    def service_is_made_again(self, collected: int, pause: float) -> None:
        """Some of its slices are collected in between."""
        self.world.delete_service()
        self.pending = []
        for step in self.world.controller.steps(SERVICE)[:collected]:
            step()
        self.wait(pause)
        self.world.change_service()
        self.step("service made again")

    # what the controller does

    @rule(count=st.integers(1, 4), pause=PAUSES)
    def controller_writes_some(self, count: int, pause: float) -> None:
        for _ in range(count):
            if not self.pending:
                self.pending = self.world.controller.steps(SERVICE)
            if self.pending:
                self.pending.pop(0)()
        self.step("some writes", pause)

    @rule(pause=PAUSES)
    def controller_catches_up(self, pause: float) -> None:
        self.settle()
        self.step("all writes", pause)

    # what happens in between

    @rule(fault=st.sampled_from(FAULTS), times=st.integers(1, 3))
    def fault(self, fault: tuple[Fault, Verb], times: int) -> None:
        self.world.api.faults.add(fault[0], on=fault[1], times=times)
        self.step("fault")

    @precondition(lambda self: not self.slow_to_heal)
    @rule()
    def an_event_is_lost(self) -> None:
        with self.log.silently():
            self.settle()
        self.slow_to_heal = True
        self.step("lost event")

    @rule()
    def etcd_is_backed_up(self) -> None:
        self.backup = self.log.rv
        self.step("backup")

    @precondition(lambda self: self.backup is not None and self.backup >= self.log.oldest_read)
    @rule()
    def etcd_is_restored(self) -> None:
        """Without a revision bump: versions are used a second time."""
        assert self.backup is not None
        self.log.restore(self.backup)
        self.pending, self.backup, self.replica = [], None, None
        self.slow_to_heal = True
        self.step("restore")

    @precondition(lambda self: self.replica is None)
    @rule()
    def a_replica_falls_behind(self) -> None:
        self.replica = self.log.fork()
        self.step("replica")

    @precondition(lambda self: self.replica is not None and not self.deceived)
    @rule()
    def the_replica_answers_the_next_list(self) -> None:
        """Once: two consistent lists with an old version mean that etcd was restored."""
        assert self.replica is not None
        stale, self.replica, self.deceived = FakeApi(self.replica), None, True
        self.world.api.faults.add(faults.other_server(stale.serve), on="list")
        self.step("stale list")

    # what must hold

    @invariant()
    def sound(self) -> None:
        """No event without a slice that caused it."""
        super().sound()
        if self.slow_to_heal or not hasattr(self, "recorder"):
            return  # after a lost event slices are seen together that never existed together
        added, removed = counts(self.recorder)
        for uid in added:
            assert added[uid] <= self.slice_history.became_available[uid], (
                f"{uid} was added more often than it became available"
            )
            assert removed[uid] <= self.slice_history.became_unavailable[uid], (
                f"{uid} was removed more often than it became unavailable"
            )

    def healed(self) -> None:
        self.deceived = False
        if self.slow_to_heal:
            self.slice_history.became_available, self.slice_history.became_unavailable = counts(self.recorder)

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

    def settle(self) -> None:
        for step in self.pending:
            step()
        self.pending = []
        self.world.sync()

    def _kill(self, name: str) -> None:
        if self.log.get("pods", "default", name) is not None:
            self.log.delete("pods", "default", name)


def _uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def _selected(pod: Object) -> bool:
    return bool(LABELS.items() <= pod["metadata"]["labels"].items())


def _port(pod: Object, target: int | str) -> int | None:
    if isinstance(target, int):
        return target
    named = {p["name"]: p["containerPort"] for p in pod["spec"]["containers"][0]["ports"]}
    return named.get(target)


@pytest.mark.timeout(600)  # finding the shortest failing history takes long
def test_thousands_of_steps_of_pods_slices_and_faults(caplog: pytest.LogCaptureFixture) -> None:
    """`tests/system` walks ten thousand."""
    caplog.set_level(logging.CRITICAL, logger="discovery")  # each fault is one warning
    assert walk(SliceHistories, histories=40) >= 2_000
