"""`adsum discovery eds`: candidates as hosts of an Envoy cluster, and the file as it follows a component."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import registry
from adsum.tasks import background
from discovery import Instance, InstanceStatus, Report, SourceDiscovery
from discovery.__main__ import main
from discovery.eds.assignment import Assignment, HealthStatus, LbEndpoint, assign, file_bytes, version
from discovery.eds.assignment_file import AssignmentFile
from discovery.eds.feed import AssignmentFeed, FeedSettings
from discovery.memory import MemorySource, MemoryStore
from discovery.source import ComponentKey
from tests.eventually import eventually
from tests.in_process import run_here
from tests.owner_process import owner
from tests.started import ready, started
from tests.warm_python import WARM_PYTHON

KEY = ComponentKey("prod", "decode")


def candidate(name: str, port: int, status: InstanceStatus = InstanceStatus.NOT_READY) -> Instance:
    return Instance(name, "prod", "decode", "127.0.0.1", port, "1", status)


def ports(path: Path) -> dict[int, str]:
    """What the file says: the health of each port."""
    [resource] = json.loads(path.read_text())["resources"]
    return {
        e["endpoint"]["address"]["socket_address"]["port_value"]: e.get("health_status", "HEALTHY")
        for locality in resource["endpoints"]
        for e in locality["lb_endpoints"]
    }


async def test_what_changes_within_the_interval_is_published_once(
    store: MemoryStore, discovering: SourceDiscovery
) -> None:
    published: list[Assignment] = []
    feed = AssignmentFeed(discovering, FeedSettings(KEY, interval=0.3), [published.append])
    begun = asyncio.get_running_loop().time()
    async with background(feed.run()):
        await feed.first.wait()
        for port in range(9000, 9100):
            store.put(candidate(f"w-{port}", port))
            await asyncio.sleep(0)
        await eventually(lambda: len(published[-1].endpoints) == 100)
        took = asyncio.get_running_loop().time() - begun
    assert len(published) <= 1 + took / 0.3, "none, those of the first moment, and all"


async def test_the_last_assignment_stays_while_the_file_cannot_be_written(
    store: MemoryStore, discovering: SourceDiscovery, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "envoy"
    folder.mkdir()
    path = folder / "endpoints.json"
    store.put(candidate("w-1", 9001))
    feed = AssignmentFeed(
        discovering, FeedSettings(KEY, interval=0), [AssignmentFile(path, "workers").publish]
    )
    async with background(feed.run()):
        await eventually(path.exists)
        folder.rename(tmp_path / "gone")
        store.put(candidate("w-2", 9002))
        await eventually(lambda: "what is published stays" in caplog.text)
        assert ports(tmp_path / "gone" / path.name) == {9001: "UNHEALTHY"}
        (tmp_path / "gone").rename(folder)
        await eventually(lambda: set(ports(path)) == {9001, 9002})
    assert list(folder.iterdir()) == [path], "no temporary file stays"


async def test_who_is_told_over_grpc_does_not_wait_for_a_file_that_cannot_be_written(
    store: MemoryStore, discovering: SourceDiscovery, tmp_path: Path
) -> None:
    folder, told = tmp_path / "envoy", list[Assignment]()
    folder.mkdir()
    file = AssignmentFile(folder / "endpoints.json", "workers")
    store.put(candidate("w-1", 9001))
    feed = AssignmentFeed(discovering, FeedSettings(KEY, interval=0), [file.publish, told.append])
    async with background(feed.run()):
        await eventually(lambda: len(told) == 1)
        folder.rename(tmp_path / "gone")
        store.put(candidate("w-2", 9002))
        await eventually(lambda: len(told[-1].endpoints) == 2)
        store.remove(candidate("w-2", 9002))
        await eventually(lambda: len(told[-1].endpoints) == 1)


class Unsynced(MemorySource):
    """Reports nothing before it is told to."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.reachable = asyncio.Event()

    async def run(self, key: ComponentKey, report: Report) -> None:
        await self.reachable.wait()
        await super().run(key, report)


async def test_a_source_out_of_reach_at_the_start_is_waited_for_and_the_old_file_stays(
    store: MemoryStore, tmp_path: Path
) -> None:
    path = tmp_path / "endpoints.json"
    path.write_text("the last good one")
    source = Unsynced(store)
    async with SourceDiscovery(source, sync_timeout=0.05) as service:
        feed = AssignmentFeed(service, FeedSettings(KEY), [AssignmentFile(path, "workers").publish])
        async with background(feed.run()):
            await asyncio.sleep(0.2)
            assert path.read_text() == "the last good one"
            store.put(candidate("w-1", 9001))
            source.reachable.set()
            await feed.first.wait()
    assert ports(path) == {9001: "UNHEALTHY"}


def test_a_file_with_the_same_endpoints_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.json"
    AssignmentFile(path, "workers").publish(Assignment())
    written = path.stat()
    AssignmentFile(path, "workers").publish(Assignment())
    assert path.stat().st_ino == written.st_ino, "Envoy would read it again"
    assert oct(written.st_mode & 0o777) == oct(0o666 & ~_umask()), "Envoy may be another user"


def test_a_link_in_a_folder_of_all_is_not_followed(tmp_path: Path) -> None:
    path, other = tmp_path / "endpoints.json", tmp_path / "other"
    other.write_text("of another user")
    planted = tmp_path / f".endpoints.json.{os.getpid()}.tmp"
    planted.symlink_to(other)
    AssignmentFile(path, "workers").publish(Assignment())
    assert other.read_text() == "of another user"
    assert ports(path) == {}
    assert not path.is_symlink()


def _umask() -> int:
    old = os.umask(0)
    os.umask(old)
    return old


@asynccontextmanager
async def feeding(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, str]]]:
    """The process, and what its ready line says."""
    async with started(WARM_PYTHON, "-m", "discovery", "eds", "prod", "decode", *arguments) as running:
        yield running, await ready(running)


async def test_a_worker_from_before_it_is_ready_to_its_death(tmp_path: Path) -> None:
    root, path = f"file://{tmp_path}/root", tmp_path / "endpoints.json"
    (tmp_path / "root").mkdir(mode=0o700)
    async with feeding("--discovery", root, "--out", str(path)) as (running, said):
        assert (said, ports(path)) == ({"file": str(path)}, {})
        async with registry.open(root, address="127.0.0.1").register_instance("prod", "decode") as handle:
            await eventually(lambda: ports(path) == {handle.instance.port: "UNHEALTHY"})
            handle.set_metadata({"transport": {"http": {"port": 8000}}})
            handle.set_ready("ready")
            await eventually(lambda: ports(path) == {8000: "HEALTHY"})
        await eventually(lambda: ports(path) == {})
        with owner(tmp_path / "root", "w-0") as process:
            await eventually(lambda: set(ports(path)) == {80})
            process.kill()
            await eventually(lambda: ports(path) == {})
        running.send_signal(signal.SIGTERM)
        assert await running.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "needs --out FILE, --listen ADDRESS, or both"),
        (["--out", "/nowhere/at/all.json"], "/nowhere/at is not a directory"),
        (["--out", "x.pb"], "expected .json or .yaml"),
        (["--once", "--listen", "127.0.0.1:0"], "--once needs --out FILE"),
        (["--listen", "18000"], "argument --listen: '18000' is not ADDRESS:PORT"),
        (["--out", "x.json", "--interval", "-1"], "expected seconds, 0 or more"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments: list[str], complaint: str, tmp_path: Path) -> None:
    said = _run("--discovery", f"file://{tmp_path}", *arguments)
    assert said.returncode == 2
    assert complaint in said.stderr
    assert said.stderr.count("\n") == 1


def test_once_writes_the_file_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.json"
    said = _run("--discovery", "static://127.0.0.1:9", "--out", str(path), "--once")
    assert (said.returncode, ports(path)) == (0, {9: "UNHEALTHY"})
    taken = _run("--discovery", "static://127.0.0.1:9", "--listen", "192.0.2.1:1")
    assert taken.returncode == 1
    assert "cannot listen on 192.0.2.1:1" in taken.stderr


_run = partial(run_here, main, "eds", "prod", "decode")


def worker(name: str, port: int = 8000, **changes: Any) -> Instance:
    return Instance(
        name, "prod", "decode", **{"address": "10.0.0.1", "port": port, "incarnation": "1"} | changes
    )


def hosts(*known: Instance, published: tuple[Instance, ...] = (), name: str | None = None) -> list[Any]:
    found = assign({i.id: i for i in known}, {i.id: i for i in published}, name)
    return [(e.address, e.port, e.health) for e in found.endpoints]


@pytest.mark.parametrize(
    ("candidate", "published", "health"),
    [
        ({}, {"serving_port": None}, HealthStatus.HEALTHY),
        ({}, {"reachable": False}, HealthStatus.UNHEALTHY),
        ({}, None, HealthStatus.UNHEALTHY),
        ({"status": InstanceStatus.NOT_READY}, None, HealthStatus.UNHEALTHY),
        ({"status": InstanceStatus.DRAINING}, None, HealthStatus.DRAINING),
        ({}, {"incarnation": "another life"}, HealthStatus.UNHEALTHY),
    ],
)
def test_who_gets_requests_that_no_pick_decides(
    candidate: dict[str, Any], published: dict[str, Any] | None, health: HealthStatus
) -> None:
    members = () if published is None else (worker("w", **published),)
    assert hosts(worker("w", **candidate), published=members) == [("10.0.0.1", 8000, health)]


@pytest.mark.parametrize(
    ("document", "name", "port"), [(None, None, 8000), (None, "http", 8001), (9000, "http", 9000)]
)
def test_the_port_is_the_one_that_the_picker_names(document: int | None, name: str | None, port: int) -> None:
    registered = worker("w", ports={"http": 8001})
    member = worker("w", ports={"http": 8001}, serving_port=document)
    assert hosts(registered, published=(member,), name=name) == [("10.0.0.1", port, HealthStatus.HEALTHY)]


def test_an_address_stands_once_with_its_best_health() -> None:
    leaving, ready = worker("a", status=InstanceStatus.DRAINING), worker("b")
    assert hosts(leaving, ready, published=(ready,)) == [("10.0.0.1", 8000, HealthStatus.HEALTHY)]
    assert hosts(ready, leaving, published=(ready,)) == [("10.0.0.1", 8000, HealthStatus.HEALTHY)]


def test_a_host_name_is_left_out_and_told() -> None:
    found = assign({"w": worker("w", address="w.example"), "v": worker("v", address="fd00::1")}, {})
    assert [e.address for e in found.endpoints] == ["fd00::1"]
    assert found.without_ip == ("w",)


def test_the_file_is_what_envoy_calls_a_discovery_response() -> None:
    endpoints = (
        LbEndpoint("", "10.0.0.1", 8000),
        LbEndpoint("", "10.0.0.2", 8000, HealthStatus.UNHEALTHY),
        LbEndpoint("east", "fd00::1", 8000),
    )
    text = json.loads(file_bytes("workers", endpoints))
    assert text["version_info"] == version("workers", endpoints) != version("workers", endpoints[1:])
    [resource] = text["resources"]
    assert resource["@type"] == "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
    assert resource["cluster_name"] == "workers"
    nowhere, east = resource["endpoints"]
    assert east["locality"] == {"zone": "east"}
    assert [e.get("health_status") for e in nowhere["lb_endpoints"]] == [None, "UNHEALTHY"]
    address = {"socket_address": {"address": "fd00::1", "port_value": 8000}}
    assert east["lb_endpoints"] == [{"endpoint": {"address": address}}]
