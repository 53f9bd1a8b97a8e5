"""The directory as truth: real locks, real processes, real deaths."""

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from discovery import (
    Instance,
    InstanceAddedEvent,
    InstanceRemovedEvent,
    RegistrationError,
    SourceDiscovery,
    WatchState,
)
from discovery.filesystem.file_events import is_network_filesystem
from discovery.filesystem.root import RootError
from discovery.filesystem.source import FilesystemSource
from registry.filesystem.membership import FilesystemMembership
from tests.eventually import eventually
from tests.owner_process import owner


def an_instance(instance_id: str = "a", incarnation: str = "one") -> Instance:
    return Instance(instance_id, "prod", "decode", "127.0.0.1", 80, incarnation)


@pytest.fixture
async def discovering(tmp_path: Path) -> AsyncIterator[SourceDiscovery]:
    async with SourceDiscovery(FilesystemSource(tmp_path)) as service:
        yield service


async def test_a_killed_owner_leaves_no_ghost_and_the_next_worker_removes_its_record(
    tmp_path: Path, component: Path, discovering: SourceDiscovery
) -> None:
    async with discovering.watch("prod", "decode") as stream:
        with owner(tmp_path, "a") as process:
            assert isinstance(await anext(stream), InstanceAddedEvent)
            process.send_signal(signal.SIGKILL)
            removed = await anext(stream)
            assert isinstance(removed, InstanceRemovedEvent)
            assert removed.reason == "deleted"
            assert {p.name for p in component.iterdir()} == {".lock", "a.json", "a.lock"}, (
                "a reader only reads"
            )
            with owner(tmp_path, "b"):
                await eventually(lambda: not [p for p in component.iterdir() if p.name.startswith("a.")])


async def test_a_forked_child_does_not_keep_a_dead_owner_alive(
    tmp_path: Path, discovering: SourceDiscovery
) -> None:
    with owner(tmp_path, "a", "fork") as process:
        async with discovering.watch("prod", "decode") as stream:
            assert isinstance(await anext(stream), InstanceAddedEvent)
            process.send_signal(signal.SIGKILL)
            assert isinstance(await anext(stream), InstanceRemovedEvent)
    # the child, which nobody waits for, is told to end by its closed standard output at the latest after 60 s


async def test_a_stopped_owner_counts_as_alive(tmp_path: Path, discovering: SourceDiscovery) -> None:
    with owner(tmp_path, "a") as process:
        process.send_signal(signal.SIGSTOP)
        assert [i.id for i in await discovering.list_instances("prod", "decode")] == ["a"]
        process.send_signal(signal.SIGCONT)


async def test_two_processes_never_share_an_id(tmp_path: Path, discovering: SourceDiscovery) -> None:
    with owner(tmp_path, "a"):
        with pytest.raises(RegistrationError, match="'a' is held by a living process"):
            await FilesystemMembership(tmp_path).join(an_instance())
        assert len(await discovering.list_instances("prod", "decode")) == 1


async def test_a_dead_owners_id_can_be_taken_at_once(tmp_path: Path, discovering: SourceDiscovery) -> None:
    with owner(tmp_path, "a") as process:
        process.kill()
        process.wait()
        membership = FilesystemMembership(tmp_path)
        await membership.join(an_instance(incarnation="two"))
        [instance] = await discovering.list_instances("prod", "decode")
        assert instance.incarnation == "two"
        await membership.leave()


async def test_leaving_removes_the_files_at_once(
    tmp_path: Path, component: Path, discovering: SourceDiscovery
) -> None:
    membership = FilesystemMembership(tmp_path)
    await membership.join(an_instance())
    assert {p.name for p in component.iterdir()} == {".lock", "a.json", "a.lock"}
    await membership.leave()
    await membership.leave()
    assert {p.name for p in component.iterdir()} == {".lock"}
    assert await discovering.list_instances("prod", "decode") == []


async def test_removed_files_come_back_while_the_owner_lives(
    tmp_path: Path, component: Path, discovering: SourceDiscovery
) -> None:
    membership = FilesystemMembership(tmp_path)
    await membership.join(an_instance())
    async with discovering.watch("prod", "decode") as stream:
        assert isinstance(await anext(stream), InstanceAddedEvent)
        event = asyncio.create_task(anext(stream))

        def is_noticed() -> bool:
            # again where its heartbeat was quicker than our look
            shutil.rmtree(component, ignore_errors=True)
            return event.done()

        await eventually(is_noticed)
        assert isinstance(await event, InstanceRemovedEvent)
        assert isinstance(await anext(stream), InstanceAddedEvent)
    await membership.leave()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"version": 1, "instance_id": "b', "not a valid record"),
        (b"", "not a valid record"),
        (b'{"version": 2}', "not a valid record"),
        (b"\xff\x00", "not a valid record"),
        (b"x" * 100_000, "larger than 65536 bytes"),
    ],
)
async def test_a_half_written_or_foreign_file_is_reported_and_skipped(
    tmp_path: Path, component: Path, discovering: SourceDiscovery, content: bytes, reason: str
) -> None:
    (component / "b.json").write_bytes(content)
    (component / "README").write_text("not a record at all")
    with owner(tmp_path, "a"):
        assert [i.id for i in await discovering.list_instances("prod", "decode")] == ["a"]
        explanation = await discovering.explain("prod", "decode")
        [broken] = [candidate for candidate in explanation.candidates if candidate.id == "b"]
        assert reason in (broken.reason or "")
        assert (component / "b.json").exists(), "what is not ours is not removed"


async def test_a_missing_root_that_was_named_is_a_clear_error(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    async with SourceDiscovery(FilesystemSource(missing)) as service:
        with pytest.raises(RootError, match=f"the root {missing} does not exist: mkdir"):
            await service.list_instances("prod", "decode")
    with pytest.raises(RegistrationError, match="does not exist"):
        await FilesystemMembership(missing).join(an_instance())


async def test_the_default_root_is_made_for_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ADSUM_ROOT", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    async with SourceDiscovery(FilesystemSource()) as service, service.watch("prod", "decode") as stream:
        assert (await service.explain("prod", "decode")).candidates == ()
        assert list(tmp_path.iterdir()) == [], "a reader makes nothing"
        membership = FilesystemMembership()
        await membership.join(an_instance())
        assert isinstance(await anext(stream), InstanceAddedEvent)
        assert (tmp_path / "adsum").stat().st_mode & 0o777 == 0o700
        await membership.leave()


async def test_a_reader_creates_nothing_and_sees_what_is_created(
    tmp_path: Path, discovering: SourceDiscovery
) -> None:
    assert await discovering.list_instances("typo", "nobody") == []
    assert (await discovering.explain("typo", "nobody")).candidates == ()
    async with discovering.watch("prod", "decode") as stream:
        assert list(tmp_path.iterdir()) == []
        with owner(tmp_path, "a"):
            assert isinstance(await anext(stream), InstanceAddedEvent)
        assert isinstance(await anext(stream), InstanceRemovedEvent)
        shutil.rmtree(tmp_path / "prod")
        await asyncio.sleep(0.6)
        assert list(tmp_path.iterdir()) == []
        assert stream.health.state is WatchState.SYNCED
        with owner(tmp_path, "b"):
            assert (await anext(stream)).instance_id == "b"


async def test_a_directory_that_others_can_write_to_later_is_noticed(
    tmp_path: Path, component: Path, discovering: SourceDiscovery
) -> None:
    with owner(tmp_path, "a"):
        async with discovering.watch("prod", "decode") as stream:
            component.chmod(0o777)
            await eventually(lambda: stream.health.state is WatchState.DEGRADED, within=90)
            assert f"{component} can be written by everyone" in (stream.health.reason or "")
            assert set(stream.instances) == {"a"}, "what was known goes on serving"
            component.chmod(0o700)
            await eventually(lambda: stream.health.state is WatchState.SYNCED, within=90)


def test_the_kernels_own_filesystems_are_not_network_ones(tmp_path: Path) -> None:
    assert not is_network_filesystem(tmp_path)
    assert not is_network_filesystem(Path("/proc"))
