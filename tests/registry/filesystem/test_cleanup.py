"""What a worker that registers removes: what is dead for certain, and nothing else."""

import os
from pathlib import Path

import pytest

from discovery.filesystem.record import boot_id
from registry.filesystem.cleanup import Cleanup
from registry.filesystem.files import HeldLock, component_lock
from tests.held_records import hold, write


@pytest.fixture
def cleanup(component: Path) -> Cleanup:
    return Cleanup(component, boot_id(), lambda: False)


def names(component: Path) -> set[str]:
    return {path.name for path in component.iterdir()}


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
