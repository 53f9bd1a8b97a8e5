"""What the page of a component says while workers come, change, die and drain; and why one is no instance."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import discovery
from adsum.tasks import background
from discovery import Instance, InstanceStatus, MetadataClient, Report, SourceDiscovery
from discovery.memory import MemorySource, MemoryStore
from discovery.source import ComponentKey
from discovery.web.component_follower import ComponentFollower
from discovery.web.component_page import component_document
from tests.eventually import eventually
from tests.fake_worker import FakeWorker
from tests.free_port import free_port

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
    return [(e.kind, e.id, e.reason or e.detail) for e in reversed(follower.log.newest())]


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
    async with (
        discovery.open(f"static://127.0.0.1:{free_port()}") as service,
        following(service) as follower,
    ):
        await eventually(lambda: list(states(follower).values()) == ["unreachable"])
        await eventually(lambda: [row["reason"] is not None for row in rows(follower).values()] == [True])
