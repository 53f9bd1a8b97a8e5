"""One instance's record and lock: what a join that fails leaves, what a heartbeat says, and which dead ones a worker removes."""

import asyncio
import logging
import os
import resource
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import registry
from discovery import Instance, RegistrationError
from discovery.filesystem.record import TEMPORARY_SUFFIX, Record, boot_id, read_record
from discovery.instance import InstanceStatus
from registry.filesystem.cleanup import Cleanup
from registry.filesystem.files import HeldLock, component_lock, write_record
from registry.filesystem.membership import FilesystemMembership
from tests.eventually import eventually
from tests.held_records import hold, write


def an_instance(incarnation: str = "one") -> Instance:
    return Instance("a", "prod", "decode", "127.0.0.1", 80, incarnation)


def names(component: Path) -> set[str]:
    return {path.name for path in component.iterdir()}


async def test_a_cancelled_join_registers_nobody_later(tmp_path: Path, component: Path) -> None:
    membership = FilesystemMembership(tmp_path)
    with component_lock(component):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(membership.join(an_instance()), 0.1)
        await asyncio.wait_for(membership.leave(), 20)
    await asyncio.sleep(0.1)
    assert names(component) == {".lock"}
    again = FilesystemMembership(tmp_path)
    await again.join(an_instance())
    await again.leave()


async def test_a_join_that_is_cancelled_at_any_moment_leaves_nothing(tmp_path: Path, component: Path) -> None:
    for steps in range(40):
        membership = FilesystemMembership(tmp_path)
        join = asyncio.create_task(membership.join(an_instance()))
        for _ in range(steps):
            await asyncio.sleep(0.0002)
        join.cancel()
        await asyncio.wait([join])
        await membership.leave()
        assert names(component) <= {".lock"}


async def test_a_record_that_nobody_would_read_is_refused(tmp_path: Path) -> None:
    async with registry.open(f"file://{tmp_path}", labels={"a": "x" * 70_000}) as opened:
        with pytest.raises(RegistrationError, match="has 70.* bytes, readers accept 65536"):
            await opened.register_instance("prod", "decode")
    assert not (tmp_path / "prod" / "decode").exists()


async def test_a_full_disk_leaves_no_lock_behind(tmp_path: Path, component: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(RegistrationError, match="a cannot be registered in .*: File too large"):
            await FilesystemMembership(tmp_path).join(an_instance())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(component) == {".lock"}


async def test_an_absent_root_is_told_once_and_never_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "registry")
    root = tmp_path / "root"
    root.mkdir()
    membership = FilesystemMembership(root)
    await membership.join(an_instance())
    shutil.rmtree(root)
    await eventually(lambda: caplog.records)
    await asyncio.sleep(2.2)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"a: its heartbeat cannot be written: the root {root} does not exist" in caplog.text
    assert not root.exists()
    root.mkdir()
    await eventually(lambda: (root / "prod" / "decode" / "a.json").exists())
    await eventually(lambda: "a: its heartbeat is written again" in caplog.text)
    await membership.leave()


async def test_an_id_that_somebody_took_is_an_error_in_the_log(
    tmp_path: Path, component: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = FilesystemMembership(tmp_path), FilesystemMembership(tmp_path)
    await first.join(an_instance())

    async def is_taken() -> bool:
        for path in component.iterdir():
            path.unlink(missing_ok=True)
        with suppress(RegistrationError):  # the first one's heartbeat was quicker, and put its files back
            await second.join(an_instance("two"))
            return True
        return False

    await eventually(is_taken)
    await eventually(lambda: [record for record in caplog.records if record.levelname == "ERROR"])
    assert "a: its files were removed, and the instance id 'a' is held by a living process" in caplog.text
    await first.leave()
    # a heartbeat of the second one may be on its way
    settled = {name for name in names(component) if not name.endswith(TEMPORARY_SUFFIX)}
    assert settled == {".lock", "a.json", "a.lock"}, "what is another's stays"
    await second.leave()


class SlowDisk:
    """Writes records while it `answers`, else once it does; `error`: what a write raises then."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.error: OSError | None = None

    def write(self, directory: Path, record: Record, *, mode: int) -> None:
        self.answers.wait()
        if self.error is not None:
            raise self.error
        write_record(directory, record, mode=mode)


def with_status(status: InstanceStatus) -> Instance:
    return replace(an_instance(), status=status)


def written(component: Path) -> InstanceStatus:
    return read_record(component / "a.json").status


async def test_a_disk_that_does_not_answer_holds_up_nothing_and_gets_the_last_status(
    tmp_path: Path, component: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SlowDisk()
    membership = FilesystemMembership(tmp_path, write=disk.write)
    await membership.join(with_status(InstanceStatus.NOT_READY))
    membership.update(with_status(InstanceStatus.READY))
    assert written(component) is InstanceStatus.READY, "at once, if the disk answers"
    disk.answers.clear()
    safety = threading.Timer(30, disk.answers.set)
    safety.start()
    before = time.monotonic()
    for status in [InstanceStatus.NOT_READY, InstanceStatus.READY] * 20 + [InstanceStatus.DRAINING]:
        membership.update(with_status(status))
    assert time.monotonic() - before < 10, "40 writes did not wait for the disk"
    assert written(component) is InstanceStatus.READY
    assert [record.getMessage() for record in caplog.records] == [
        "a: its status is not written yet, the disk has not answered for 0.1 s; it is written once it does"
    ]
    safety.cancel()
    disk.answers.set()
    await eventually(lambda: written(component) is InstanceStatus.DRAINING)
    await membership.leave()
    assert names(component) == {".lock"}


async def test_a_write_that_fails_is_raised_and_one_that_fails_late_is_repeated(
    tmp_path: Path, component: Path
) -> None:
    disk = SlowDisk()
    membership = FilesystemMembership(tmp_path, write=disk.write)
    await membership.join(with_status(InstanceStatus.READY))
    disk.error = OSError(28, "No space left on device")
    with pytest.raises(RegistrationError, match="the record of a cannot be written: No space left on device"):
        membership.update(with_status(InstanceStatus.DRAINING))
    disk.answers.clear()
    membership.update(with_status(InstanceStatus.NOT_READY))
    disk.answers.set()  # it fails now
    await asyncio.sleep(0.1)
    assert written(component) is InstanceStatus.READY
    disk.error = None
    await eventually(lambda: written(component) is InstanceStatus.NOT_READY)
    await membership.leave()


async def test_leaving_waits_for_the_disk_and_nothing_is_written_after_it(
    tmp_path: Path, component: Path
) -> None:
    disk = SlowDisk()
    membership = FilesystemMembership(tmp_path, write=disk.write)
    await membership.join(with_status(InstanceStatus.READY))
    disk.answers.clear()
    membership.update(with_status(InstanceStatus.DRAINING))
    leaving = asyncio.create_task(membership.leave())
    assert not (await asyncio.wait([leaving], timeout=0.3))[0]
    disk.answers.set()
    await leaving
    assert names(component) == {".lock"}
    with pytest.raises(RegistrationError, match="a has left"):
        membership.update(with_status(InstanceStatus.READY))


@pytest.fixture
def cleanup(component: Path) -> Cleanup:
    return Cleanup(component, boot_id(), lambda: False)


def test_the_dead_of_this_host_are_removed_and_the_living_stay(component: Path, cleanup: Cleanup) -> None:
    write(component, "dead")
    (component / "dead.lock").touch()
    write(component, "lockless")
    (component / "foreign.json").write_text("{}")
    lock = hold(component, "alive")
    assert cleanup.run(0.0) >= 10
    assert names(component) == {".lock", "alive.json", "alive.lock", "foreign.json"}
    lock.release()


def test_another_hosts_record_is_removed_after_sixty_seconds_of_silence(
    component: Path, cleanup: Cleanup
) -> None:
    path = write(component, "a", host="other")
    cleanup.run(0.0)
    cleanup.run(59.0)
    write(component, "a", host="other", counter=1)
    cleanup.run(70.0)
    cleanup.run(129.0)
    assert path.exists()
    cleanup.run(131.0)
    assert not path.exists()


def test_another_hosts_record_that_was_replaced_stays(component: Path, cleanup: Cleanup) -> None:
    path = write(component, "a", host="other")
    cleanup.run(0.0)
    write(component, "a", host="other", incarnation="two")
    cleanup.run(100.0)
    assert path.exists()


def test_litter_is_removed_and_nothing_else(component: Path, cleanup: Cleanup) -> None:
    old, young = (component / f".a.{digit * 32}.tmp" for digit in "01")
    for path in (old, young, component / "dead.lock", component / "NOTES.lock", component / ".draft.tmp"):
        path.touch()
    for path in (old, component / ".draft.tmp"):
        os.utime(path, (path.stat().st_mtime - 120,) * 2)
    locks = [HeldLock(component / "b.lock"), hold(component, "c")]
    cleanup.run(0.0)
    assert names(component) == {".lock", young.name, "NOTES.lock", ".draft.tmp", "b.lock", "c.lock", "c.json"}
    for lock in locks:
        lock.release()


def test_while_somebody_registers_nothing_is_removed(component: Path, cleanup: Cleanup) -> None:
    path = write(component, "dead")
    with component_lock(component):
        cleanup.run(0.0)
    assert path.exists()
    cleanup.run(1.0)
    assert not path.exists()


def test_thousands_of_dead_are_removed_a_few_at_a_time(component: Path, cleanup: Cleanup) -> None:
    for number in range(1500):
        write(component, f"w{number}")
    assert cleanup.run(0.0) == 0.0, "the next look is at the next heartbeat"
    assert len(names(component)) == 501
    assert cleanup.run(2.0) == 10.0
    assert names(component) == {".lock"}
