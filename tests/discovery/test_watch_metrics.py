"""What a metrics page says of a watched component, over a store that the test writes."""

from dataclasses import replace

from discovery import Instance, InstanceStatus, SourceDiscovery, WatchState
from discovery.memory import MemoryStore
from discovery.watch import WatchHealth
from discovery.watch_metrics import WatchMetrics

A = Instance("a", "n", "c", "127.0.0.1", 9, "one")


def values(metrics: WatchMetrics, instances: dict[str, Instance], state: WatchState) -> dict[str, float]:
    """Each sample under its labels but the component."""
    families = metrics.families(instances, WatchHealth(state, 0.0))
    found = {}
    for family in families:
        for labels, value in family.samples:
            assert labels[0] == "n/c"
            assert len(labels) == len(family.label_names)
            found[" ".join((family.name.removeprefix("adsum_discovery_"), *labels[1:])).strip()] = value
    return found


async def test_each_change_is_counted_and_its_reason(
    store: MemoryStore, discovering: SourceDiscovery
) -> None:
    metrics = WatchMetrics("n/c", lambda: discovering.excluded("n", "c"))
    for one in (A, replace(A, id="b")):
        store.put(one)
    async with discovering.watch("n", "c") as stream:
        metrics.count(await anext(stream))
        metrics.count(await anext(stream))
        store.put(replace(A, labels={"zone": "z"}))
        metrics.count(await anext(stream))
        store.put(replace(A, status=InstanceStatus.DRAINING))
        metrics.count(await anext(stream))
        assert values(metrics, dict(stream.instances), stream.health.state)["instances draining"] == 1
        store.put(replace(A, status=InstanceStatus.NOT_READY))
        store.remove(replace(A, id="b"))
        metrics.count(await anext(stream))
        found = values(metrics, dict(stream.instances), stream.health.state)
    assert [found[f"instances {state}"] for state in ("ready", "draining", "not_ready")] == [0, 0, 1]
    assert {what: count for what, count in found.items() if what.startswith("events")} == {
        "events added": 2,
        "events updated": 1,
        "events removed deleted": 1,
        "events removed not_ready": 0,
        "events removed terminating": 1,
        "events removed replaced": 0,
    }


def test_each_state_has_its_number() -> None:
    instances = {"a": A, "b": replace(A, id="b", reachable=False), "c": replace(A, id="c")}
    metrics = WatchMetrics("n/c", lambda: {"d": None})
    found = values(metrics, instances, WatchState.SYNCED)
    assert (found["instances ready"], found["instances unreachable"], found["instances not_ready"]) == (
        2,
        1,
        1,
    )
    assert found["synced"] == 1
    assert values(metrics, instances, WatchState.DEGRADED)["synced"] == 0
