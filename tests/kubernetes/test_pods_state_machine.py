"""Random histories of Pods, a pool and faults against a model: as test_state_machine.py, for Pods that a pool selects."""

import logging
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import initialize, precondition, rule

from tests.kubernetes.fake.faults import FAULTS, Fault, Verb
from tests.kubernetes.fake.histories import PAUSES, Histories, walk
from tests.kubernetes.fake.world import POOL, PodWorld

SOME = st.lists(st.sampled_from([f"p{i}" for i in range(6)]), min_size=1, max_size=3, unique=True)
LABELS = st.sampled_from([{"app": "a"}, {"app": "b"}, {"app": "a", "tier": "x"}])
PORTS = st.sampled_from([(8000,), (8001,), (8000, 8001), (8001, 8000, 8002)])
ACTIVE = st.sampled_from([None, None, None, "8000", "8001,8002", ""])


class PodHistories(Histories):
    """The model: the Pods and the pool themselves (`expected`)."""

    world: PodWorld

    @initialize(page_size=st.sampled_from([None, 1, 2]), there=st.booleans())
    def begin(self, page_size: int | None, there: bool) -> None:
        self.world = PodWorld()
        self.world.api.page_size = page_size
        if there:
            self.world.pool(8000, app="a")
        for i in range(4):
            self.world.pod(f"p{i}", labels={"app": "a"})
        self.runner.run(self.open(POOL))

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
        self.step("appear", pause)

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
        self.step(how, pause)

    @rule(labels=LABELS, ports=PORTS, pause=PAUSES)
    def edit_pool(self, labels: dict[str, str], ports: tuple[int, ...], pause: float) -> None:
        self.world.pool(*ports, **labels)
        self.step("edit pool", pause)

    @precondition(lambda self: self._pool() is not None)
    @rule(pause=PAUSES)
    def delete_pool(self, pause: float) -> None:
        self.world.delete_pool()
        self.step("delete pool", pause)

    @rule(
        fault=st.sampled_from(FAULTS),
        resource=st.sampled_from(["pods", "inferencepools"]),
        times=st.integers(1, 3),
    )
    def fault(self, fault: tuple[Fault, Verb], resource: str, times: int) -> None:
        self.world.api.faults.add(fault[0], on=fault[1], times=times, resource=resource)
        self.step("fault")

    @precondition(lambda self: not self.slow_to_heal)
    @rule(labels=LABELS, ports=PORTS)
    def events_are_lost(self, labels: dict[str, str], ports: tuple[int, ...]) -> None:
        with self.world.log.silently():
            self.world.pool(*ports, **labels)
            self.world.pod("p0", labels=labels)
        self.slow_to_heal = True
        self.step("lost events")

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


@pytest.mark.timeout(600)  # finding the shortest failing history takes long
def test_thousands_of_steps_of_pods_pool_and_faults(caplog: pytest.LogCaptureFixture) -> None:
    """`tests/system` walks more."""
    caplog.set_level(logging.CRITICAL, logger="discovery")  # each fault is one warning
    assert walk(PodHistories, histories=25) >= 1_200
