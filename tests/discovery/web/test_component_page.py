"""What the page of a component says while workers come, change, die and drain, and why one is no instance."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import discovery
from adsum.tasks import background
from discovery import Instance, InstanceStatus, MetadataClient, Report, SourceDiscovery
from discovery.memory import MemorySource, MemoryStore
from discovery.source import ComponentKey
from discovery.watch import WatchHealth, WatchState
from discovery.web.component_follower import ComponentFollower
from discovery.web.component_page import CandidateRows, ComponentState, component_document
from tests.eventually import eventually
from tests.fake_worker import FakeWorker
from tests.free_port import free_port

FIRST, SECOND = (Instance(name, "prod", "decode", "10.0.0.1", 8000, "a") for name in ("first", "second"))
STATE = ComponentState(
    ComponentKey("prod", "decode"),
    "memory://",
    WatchHealth(WatchState.SYNCED, 0.0),
    0.0,
    known={"first": FIRST, "second": SECOND},
    published={"first": FIRST, "second": SECOND},
    models={"first": "m"},
    since={"first": 1.0},
)
GONE = replace(STATE, known={"second": SECOND}, published={"second": SECOND})


def row(state: ComponentState, kept: CandidateRows, name: str = "first") -> dict[str, Any]:
    [found] = [row for row in component_document(state, kept)["candidates"] if row["id"] == name]
    assert isinstance(found, dict)
    return found


def test_a_row_is_kept_while_nothing_about_its_candidate_differs() -> None:
    kept = CandidateRows()
    before = row(STATE, kept)
    assert row(replace(STATE, health_since=2.0, since={"first": 1.0, "second": 3.0}), kept) is before


def test_whatever_differs_is_shown() -> None:
    changes: list[dict[str, Any]] = [
        {"known": {}, "published": {}, "reasons": {"first": "it is dead"}},
        {"published": {"second": SECOND}},
        {"known": {"first": replace(FIRST, status=InstanceStatus.DRAINING)}, "published": {}},
        {"published": {"first": replace(FIRST, reachable=False)}},
        {"published": {"first": replace(FIRST, revision="two", labels={"a": "b"})}},
        {"reasons": {"first": "it shares its address"}},
        {"models": {}},
        {"since": {"first": 2.0}},
    ]
    kept = CandidateRows()
    for change in changes:
        before, changed = row(STATE, kept), replace(STATE, **change)
        after = row(changed, kept)
        assert after != before
        assert after == row(changed, CandidateRows())


def test_a_list_of_many_hosts_is_not_the_source_in_full() -> None:
    hosts = ",".join(f"10.0.0.{n}:8000" for n in range(200))
    shown = component_document(replace(STATE, source=f"static://{hosts}"))["source"]["url"]
    assert shown.startswith("static://10.0.0.0:8000,")
    assert len(shown) < 400


def test_a_candidate_that_is_gone_is_forgotten() -> None:
    kept = CandidateRows()
    component_document(STATE, kept)
    assert [one["id"] for one in component_document(GONE, kept)["candidates"]] == ["second"]
    component_document(STATE, kept)
    assert len(component_document(GONE, kept)["candidates"]) == 1


def test_a_listed_worker_that_has_never_answered_is_unreachable_and_a_registered_one_is_starting() -> None:
    silent = replace(STATE, published={"second": SECOND}, reasons={"first": "Connection refused"})
    for listed, state in ((True, "unreachable"), (False, "pending")):
        document = component_document(replace(silent, listed=listed))
        assert (
            document["candidates"][0] | {"state": state, "reason": "Connection refused"}
            == document["candidates"][0]
        )
        assert document["counts"][state] == 1


KEY = ComponentKey("prod", "decode")


@asynccontextmanager
async def following(service: SourceDiscovery) -> AsyncIterator[ComponentFollower]:
    follower = ComponentFollower(service, KEY, "memory://")
    async with background(follower.run()):
        await eventually(lambda: follower.has_synced)
        yield follower


def document(follower: ComponentFollower) -> dict[str, Any]:
    follower.look()
    return component_document(follower.state())


def rows(follower: ComponentFollower) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in document(follower)["candidates"]}


def states(follower: ComponentFollower) -> dict[str, str]:
    return {id: str(row["state"]) for id, row in rows(follower).items()}


def events(follower: ComponentFollower) -> list[tuple[str, str | None, str | None]]:
    """The oldest first."""
    return [(e["event"], e["id"], e["reason"] or e["detail"]) for e in reversed(follower.log.newest())]


async def test_a_worker_comes_drains_and_leaves(
    worker: FakeWorker, store: MemoryStore, discovering: SourceDiscovery
) -> None:
    here = replace(worker.instance("w-1"), status=InstanceStatus.NOT_READY)
    async with following(discovering) as follower:
        assert document(follower)["counts"] == dict.fromkeys(document(follower)["counts"], 0)
        store.put(here)
        await eventually(lambda: states(follower) == {"w-1": "not_ready"})
        store.put(replace(here, status=InstanceStatus.READY))
        await eventually(lambda: states(follower) == {"w-1": "ready"})
        row = rows(follower)["w-1"]
        assert (row["model"], row["url"], row["reason"]) == ("m", f"http://127.0.0.1:{worker.port}", None)
        store.put(replace(here, status=InstanceStatus.DRAINING))
        await eventually(lambda: states(follower) == {"w-1": "draining"})
        assert rows(follower)["w-1"]["model"] == "m"
        store.remove(here)
        await eventually(lambda: states(follower) == {})
        assert events(follower) == [
            ("registered", "w-1", "its status is not_ready"),
            ("added", "w-1", f"http://127.0.0.1:{worker.port}"),
            ("removed", "w-1", "terminating"),
            ("left", "w-1", None),
        ]


async def test_those_that_are_no_instances_come_first_with_the_reason(
    worker: FakeWorker, store: MemoryStore, discovering: SourceDiscovery
) -> None:
    store.put(worker.instance("a-ready"))
    store.put(Instance("b-starting", "prod", "decode", "127.0.0.1", 9, "1", InstanceStatus.NOT_READY))
    store.put(Instance("c-silent", "prod", "decode", "127.0.0.1", 9, "1"))
    async with following(discovering) as follower:
        expected = {"b-starting": "not_ready", "c-silent": "pending", "a-ready": "ready"}
        await eventually(lambda: states(follower) == expected)
        await eventually(lambda: len([r for r in rows(follower).values() if r["reason"]]) == 2)
        assert list(states(follower))[-1] == "a-ready"
        assert "nothing answers at 127.0.0.1:9" in rows(follower)["b-starting"]["reason"]
        assert "nothing listens on port 9" in rows(follower)["c-silent"]["reason"]
        store.put(Instance("b-starting", "prod", "decode", "127.0.0.1", 9, "1", InstanceStatus.DRAINING))
        await eventually(lambda: states(follower)["b-starting"] == "draining")
        assert "not_ready" not in (rows(follower)["b-starting"]["reason"] or ""), "of before"


class Asked(MemorySource):
    """Counts what is asked of the source to explain."""

    asked = 0

    async def explain(self, key: ComponentKey) -> list[Any]:
        self.asked += 1
        return []


async def test_nobody_is_asked_while_nobody_looks_and_once_while_many_do(store: MemoryStore) -> None:
    store.put(Instance("w-1", "prod", "decode", "127.0.0.1", 9, "1", InstanceStatus.NOT_READY))
    source = Asked(store)
    async with SourceDiscovery(source) as service, following(service) as follower:
        await eventually(lambda: follower.state().known)
        assert source.asked == 0
        for _ in range(50):
            await follower.explained(10)
        assert source.asked == 1


class Away(MemorySource):
    """A source that reports nothing but that it is away."""

    tries = 0

    async def run(self, key: ComponentKey, report: Report) -> None:
        self.tries += 1
        report.degraded("connection refused")
        await super().run(key, _Deaf(report))


class _Deaf:
    def __init__(self, report: Report) -> None:
        self.reader = report.reader

    def __call__(self, snapshot: object) -> None:
        """Not passed on."""

    def degraded(self, reason: str) -> None:
        """Not passed on."""


async def test_a_source_out_of_reach_at_the_start_is_told(store: MemoryStore) -> None:
    away = Away(store)
    async with SourceDiscovery(away, sync_timeout=0.1) as service:
        follower = ComponentFollower(service, KEY, "memory://")
        async with background(follower.run()):
            await eventually(lambda: away.tries >= 4)
            source = document(follower)["source"]
            assert (source["state"], "connection refused" in source["reason"]) == ("degraded", True)
            assert [event for event, _, _ in events(follower)] == ["degraded"], (
                "once, however often it is tried"
            )


async def test_what_others_write_is_cut(store: MemoryStore) -> None:
    labels = {f"label-{n}": "x" * 5000 for n in range(100)}
    store.put(Instance("w-1", "prod", "decode", "127.0.0.1", 9, "i" * 5000, InstanceStatus.NOT_READY, labels))
    client = MetadataClient(timeout=0.5)
    async with SourceDiscovery(MemorySource(store), client=client) as service, following(service) as follower:
        await eventually(lambda: rows(follower))
        row = rows(follower)["w-1"]
        assert len(str(row)) < 20 * 400
        assert len(row["incarnation"]) <= 301


async def test_a_dead_address_of_a_list_is_not_starting() -> None:
    async with discovery.open(f"static://127.0.0.1:{free_port()}") as service, following(service) as follower:
        await eventually(lambda: list(states(follower).values()) == ["unreachable"])
        await eventually(lambda: [row["reason"] is not None for row in rows(follower).values()] == [True])


FEW, MANY = 100, 1600


async def cost(workers: int) -> float:
    """Seconds of processor time, the least of seven. Nobody listens at the workers' ports."""
    store = MemoryStore()
    for n in range(workers):
        store.put(Instance(f"w-{n}", "prod", "decode", f"127.1.{n // 250}.{n % 250 + 1}", 9, "a"))
    async with SourceDiscovery(MemorySource(store)) as service, service.truth("prod", "decode"):
        await eventually(lambda: len(service.missing("prod", "decode")) == workers)
        costs = []
        for _ in range(7):
            began = time.thread_time()
            explained = await service.explain("prod", "decode")
            costs.append(time.thread_time() - began)
            assert len(explained.candidates) == workers
    return min(costs)


async def test_it_costs_the_same_for_each_worker_however_many_there_are() -> None:
    few, many = await cost(FEW), await cost(MANY)
    assert many / MANY < 3 * few / FEW
