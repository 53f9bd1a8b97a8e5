"""The watch of a directory while the ground moves: no descriptors, no directory, no root, no patience."""

import asyncio
import os
import random
import shutil
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path

import anyio
import pytest

import registry
from discovery import (
    DiscoveryTimeoutError,
    Instance,
    InstanceAddedEvent,
    Snapshot,
    SourceDiscovery,
    WatchState,
)
from discovery.filesystem.file_events import FileEvents
from discovery.filesystem.source import FilesystemSource
from discovery.source import ComponentKey
from registry.filesystem.membership import FilesystemMembership
from tests.eventually import eventually
from tests.held_records import descriptors_left, hold, open_descriptors, write


@pytest.fixture
async def discovering(tmp_path: Path) -> AsyncIterator[SourceDiscovery]:
    async with SourceDiscovery(FilesystemSource(tmp_path), sync_timeout=60.0) as service:
        yield service


async def test_without_descriptors_the_last_set_stays_and_the_watch_is_degraded(
    component: Path, discovering: SourceDiscovery
) -> None:
    lock = hold(component, "a")
    async with discovering.watch("prod", "decode") as stream:
        assert isinstance(await anext(stream), InstanceAddedEvent)
        aside = write(component, "a", counter=1).rename(component / "aside")
        write(component, "a")
        await asyncio.sleep(0.1)
        with descriptors_left(0), ExitStack() as taken:
            aside.rename(component / "a.json")

            def degraded() -> bool:
                # a look that was under way gave one back: take it, and have it look again
                with suppress(OSError):
                    taken.callback(os.close, os.open(os.devnull, os.O_RDONLY))
                os.utime(component / "a.json")
                return stream.health.state is WatchState.DEGRADED

            await eventually(degraded)
            assert "Too many open files; this process may have" in (stream.health.reason or "")
            assert "ulimit -n" in (stream.health.reason or "")
            assert set(stream.instances) == {"a"}
        await eventually(lambda: stream.health.state is WatchState.SYNCED)
        assert set(stream.instances) == {"a"}
    lock.release()


async def test_closing_and_cancelling_at_any_moment_leak_no_descriptor(
    component: Path, discovering: SourceDiscovery
) -> None:
    locks = [hold(component, f"w{number}") for number in range(150)]
    assert len(await discovering.list_instances("prod", "decode")) == 150
    before = open_descriptors()
    for _ in range(15):
        with anyio.move_on_after(random.uniform(0.001, 0.008)):
            await discovering.list_instances("prod", "decode")
        with suppress(TimeoutError):
            await asyncio.wait_for(discovering.list_instances("prod", "decode"), random.uniform(0.001, 0.008))
        async with discovering.watch("prod", "decode"):
            await asyncio.sleep(random.uniform(0, 0.01))
    # a loop's own few may come and go; one lost scan would be 150
    await eventually(lambda: open_descriptors() <= before + 4)
    assert len(await discovering.list_instances("prod", "decode")) == 150
    for lock in locks:
        lock.release()


async def test_many_watched_components_block_no_other(tmp_path: Path, discovering: SourceDiscovery) -> None:
    async with AsyncExitStack() as watches, registry.open(f"file://{tmp_path}") as registering:
        streams = [
            await watches.enter_async_context(discovering.watch("prod", f"c{number}")) for number in range(45)
        ]
        async with asyncio.timeout(90):
            handle = await registering.register_instance("prod", "c44")
            handle.set_ready("ready")
            assert isinstance(await anext(streams[-1]), InstanceAddedEvent)
            await asyncio.to_thread(time.monotonic)


async def test_a_directory_that_is_removed_at_any_moment_does_not_end_the_watch(
    tmp_path: Path, component: Path, discovering: SourceDiscovery
) -> None:
    async with discovering.watch("prod", "decode") as stream:
        event = asyncio.create_task(anext(stream))
        until = time.monotonic() + 1.0

        def storm() -> None:
            while time.monotonic() < until and not event.done():
                shutil.rmtree(tmp_path / "prod", ignore_errors=True)
                time.sleep(0.0005)

        await asyncio.to_thread(storm)
        membership = FilesystemMembership(tmp_path)
        await membership.join(Instance("a", "prod", "decode", "127.0.0.1", 80, "one"))
        membership.update(Instance("a", "prod", "decode", "127.0.0.1", 80, "one"))
        async with asyncio.timeout(90):
            assert isinstance(await event, InstanceAddedEvent)
        await membership.leave()


async def test_a_named_root_that_is_removed_is_not_created_again(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    async with SourceDiscovery(FilesystemSource(root)) as service, service.watch("prod", "decode") as stream:
        shutil.rmtree(root)
        await eventually(lambda: stream.health.state is WatchState.DEGRADED)
        await eventually(lambda: f"the root {root} does not exist: mkdir" in (stream.health.reason or ""))
        assert not root.exists()
        root.mkdir()
        await eventually(lambda: stream.health.state is WatchState.SYNCED)


@pytest.mark.parametrize("umask", [0, 0o077])
@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755])
async def test_new_directories_have_the_roots_permissions(tmp_path: Path, mode: int, umask: int) -> None:
    tmp_path.chmod(mode)
    before = os.umask(umask)
    membership = FilesystemMembership(tmp_path)
    try:
        await membership.join(Instance("a", "prod", "decode", "127.0.0.1", 80, "one"))
    finally:
        os.umask(before)
    for made in ("prod", "prod/decode"):
        assert (tmp_path / made).stat().st_mode & 0o7777 == mode
    for made in (".lock", "a.lock", "a.json"):
        assert (tmp_path / "prod/decode" / made).stat().st_mode & 0o7777 == mode & 0o644
    await membership.leave()


async def test_a_first_scan_that_fails_is_retried_and_reported(
    component: Path, discovering: SourceDiscovery
) -> None:

    async def is_said() -> bool:
        with pytest.raises(DiscoveryTimeoutError) as caught:
            await discovering.list_instances("prod", "decode", timeout=2.0)
        return "Too many open files" in str(caught.value)

    with descriptors_left(1):
        await eventually(is_said)
    assert await discovering.list_instances("prod", "decode") == []


class CountingReport:
    """Counts the snapshots."""

    def __init__(self) -> None:
        self.snapshots = 0

    def __call__(self, snapshot: Snapshot) -> None:
        self.snapshots += 1

    def degraded(self, reason: str) -> None: ...


async def test_a_run_that_ends_while_the_next_begins_does_not_affect_it(tmp_path: Path) -> None:
    source, key = FilesystemSource(tmp_path), ComponentKey("prod", "decode")
    runs = []
    for _ in range(2):
        told = CountingReport()
        runs.append(asyncio.create_task(source.run(key, told)))
        await eventually(lambda told=told: told.snapshots)
    for run in runs:
        run.cancel()
        await asyncio.wait([run])
        source.suspect(key, "a")
    assert all(run.cancelled() for run in runs)


async def test_file_events_come_from_a_thread_that_ends_with_them(tmp_path: Path) -> None:
    look = asyncio.Event()
    threads = threading.active_count()
    async with FileEvents(tmp_path, look) as events:
        assert events.take_changes() is None
        assert events.take_changes() == frozenset()
        (tmp_path / "a.json").touch()
        (tmp_path / "b.txt").touch()
        async with asyncio.timeout(90):
            await look.wait()
        assert events.take_changes() == frozenset(["a.json"])
    assert threading.active_count() <= threads
    for _ in range(100):  # however short the moment between a thread's last word and its end
        async with FileEvents(tmp_path, look):
            pass
        assert threading.active_count() <= threads
