"""Which directories are taken, and what one look at a directory sees: what is odd, what is old, what is in short supply."""

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from discovery.filesystem.directory import ComponentDirectory
from discovery.filesystem.record import boot_id
from discovery.filesystem.root import (
    CheckedDirectory,
    RootError,
    check_directory,
    check_root,
    find_component,
    find_root,
)
from discovery.source import ComponentKey
from registry.filesystem.files import HeldLock
from tests.held_records import descriptors_left, hold, open_descriptors, write


@pytest.fixture
def directory(component: Path) -> Iterator[ComponentDirectory]:
    with closing(ComponentDirectory(component, boot_id())) as opened:
        yield opened


def ids(directory: ComponentDirectory, now: float = 0.0) -> list[str]:
    return sorted(directory.scan(now).instances)


def test_a_reader_short_of_descriptors_degrades_and_keeps_its_cache(
    component: Path, directory: ComponentDirectory
) -> None:
    with closing_lock(hold(component, "a")):
        assert ids(directory) == ["a"]
        write(component, "a", counter=1)
        with descriptors_left(0), pytest.raises(OSError, match="Too many open files"):
            directory.scan(1.0, {"a.json"})
        [candidate] = directory.scan(2.0, ()).candidates
        assert candidate.reason is None
        assert ids(directory, 3.0) == ["a"]


def test_a_first_scan_without_descriptors_is_no_empty_set(
    component: Path, directory: ComponentDirectory
) -> None:
    with closing_lock(hold(component, "a")):
        with descriptors_left(1), pytest.raises(OSError, match="Too many open files"):
            directory.scan(0.0)
        assert ids(directory, 1.0) == ["a"]


def test_more_workers_than_descriptors_are_all_seen(component: Path, directory: ComponentDirectory) -> None:
    with ExitStack() as locks:
        for number in range(60):
            locks.enter_context(closing_lock(hold(component, f"w{number}")))
        with descriptors_left(20):
            assert len(ids(directory)) == 60
            before = open_descriptors()
            assert len(ids(directory, 1.0)) == 60
            assert open_descriptors() == before


def test_a_worker_that_renews_its_lock_does_not_flap(component: Path, directory: ComponentDirectory) -> None:
    first = hold(component, "a")
    assert ids(directory) == ["a"]
    with closing_lock(HeldLock(component / "aside")):
        (component / "aside").rename(component / "a.lock")
        first.release()
        [candidate] = directory.scan(1.0, ()).candidates
        assert candidate.reason is None


def test_special_files_are_rejected_without_blocking(component: Path, directory: ComponentDirectory) -> None:
    os.mkfifo(component / "pipe.json")
    (component / "folder.json").mkdir()
    write(component, "b")
    os.mkfifo(component / "b.lock")
    with closing_lock(hold(component, "a")):
        assert ids(directory) == ["a"]
        reasons = {c.id: c.reason for c in directory.scan(1.0).candidates}
        assert reasons["pipe"] == reasons["folder"] == "its record cannot be used: not a regular file"


@pytest.mark.parametrize(
    "address", ["foo:bar", "a..b", "x/y", "a b", "u:p@127.0.0.1", "a\0b", "fe80::1%lo", "*", "", "0.0.0.0"]
)
def test_a_record_with_an_invalid_address_is_rejected(
    component: Path, directory: ComponentDirectory, address: str
) -> None:
    (component / "bad.lock").touch()
    path = write(component, "bad")
    path.write_text(path.read_text().replace('"127.0.0.1"', f'"{address}"'.replace("\0", "\\u0000")))
    [candidate] = directory.scan(0.0).candidates
    assert candidate.instance is None
    assert "not a valid record: address: Value error" in (candidate.reason or "")


def test_control_characters_in_file_names_are_escaped(component: Path, directory: ComponentDirectory) -> None:
    (component / "x\x1b[2J\n.json").touch()
    (component / os.fsdecode(b"\xff.json")).touch()
    assert {c.id for c in directory.scan(0.0).candidates} == {r"x\x1b[2J\n", r"\udcff"}


def test_a_record_from_before_a_reboot_needs_a_new_heartbeat(
    component: Path, directory: ComponentDirectory
) -> None:
    path = write(component, "a", host="another-boot")
    os.utime(path, (path.stat().st_mtime - 100,) * 2)
    [candidate] = directory.scan(0.0).candidates
    assert "silent for more than 6 s" in (candidate.reason or "")
    assert path.exists(), "it may be that only its clock is off"
    write(component, "a", host="another-boot", counter=1)
    assert ids(directory, 1.0) == ["a"]


def test_another_hosts_worker_is_judged_by_its_counter_and_our_clock(
    component: Path, directory: ComponentDirectory
) -> None:
    write(component, "a", host="another-host")
    assert ids(directory, 0.0) == ids(directory, 5.0) == ["a"]
    write(component, "a", host="another-host", counter=1)
    assert ids(directory, 10.0) == ["a"]
    assert ids(directory, 16.5) == []
    [silent] = directory.scan(17.0).candidates
    assert "silent for more than 6 s" in (silent.reason or "")
    write(component, "a", host="another-host", counter=100)
    assert ids(directory, 18.0) == ["a"]


def test_unknown_keys_are_tolerated_and_a_foreign_path_is_not(
    component: Path, directory: ComponentDirectory
) -> None:
    record = write(component, "a", host="another-host")
    (component / "b.json").write_text(record.read_text())
    record.write_text(json.dumps(json.loads(record.read_text()) | {"newer": {"x": 1}}))
    assert ids(directory) == ["a"]
    [foreign] = [c for c in directory.scan(0.0).candidates if c.id == "b"]
    assert "foreign record" in (foreign.reason or "")


@pytest.mark.parametrize("lock", ["absent", "free"])
def test_a_dead_worker_is_alive_with_its_next_record(
    component: Path, directory: ComponentDirectory, lock: str
) -> None:
    write(component, "a")
    if lock == "free":
        (component / "a.lock").touch()
    [dead] = directory.scan(0.0).candidates
    assert dead.instance is None
    assert "its process has ended" in (dead.reason or "")
    (component / "a.lock").unlink(missing_ok=True)
    with closing_lock(hold(component, "a")):
        assert sorted(directory.scan(1.0, {"a.json"}).instances) == ["a"]


def test_dead_workers_take_no_descriptors(component: Path, directory: ComponentDirectory) -> None:
    for number in range(40):
        write(component, f"w{number}")
        (component / f"w{number}.lock").touch()
    before = open_descriptors()
    assert ids(directory) == []
    assert open_descriptors() == before + 1, "the directory itself"


def test_a_link_is_no_record_and_no_lock(
    component: Path, directory: ComponentDirectory, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    with closing_lock(hold(component, "a")):
        (component / "a.json").rename(elsewhere)
        (component / "a.json").symlink_to(elsewhere)
        [candidate] = directory.scan(0.0).candidates
        assert candidate.reason is not None
        assert candidate.reason.startswith("its record cannot be used")
        (component / "a.json").unlink()
        elsewhere.rename(component / "a.json")
        (component / "a.lock").rename(elsewhere)
        (component / "a.lock").symlink_to(elsewhere)
        [candidate] = directory.scan(1.0).candidates
        assert candidate.reason is not None
        assert candidate.reason.startswith("its lock cannot be probed")


def test_a_replaced_directory_is_detected(component: Path, directory: ComponentDirectory) -> None:
    assert ids(directory) == []
    for _ in range(5):  # the number of the removed one is given to the next, on most file systems
        component.rmdir()
        component.mkdir()
    with pytest.raises(FileNotFoundError, match=re.escape(f"{component} was removed, or replaced")):
        directory.scan(1.0)


def closing_lock(lock: HeldLock) -> "closing[_Closing]":
    return closing(_Closing(lock))


class _Closing:
    def __init__(self, lock: HeldLock) -> None:
        self.close = lock.release


KEY = ComponentKey("prod", "decode")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "prod" / "decode").mkdir(parents=True)
    for level in (tmp_path, tmp_path / "prod", tmp_path / "prod/decode"):
        level.chmod(0o755)
    return tmp_path


def found(root: Path) -> CheckedDirectory | None:
    return find_component(check_root(root), KEY)


@pytest.mark.parametrize("mode", [0o700, 0o711, 0o750, 0o755, 0o2700, 0o2755, 0o2770, 0o2775, 0o3775])
def test_a_private_root_and_one_shared_with_a_group_are_accepted(root: Path, mode: int) -> None:
    root.chmod(mode)
    level = found(root)
    assert level is not None
    assert (level.path, level.mode) == (root / "prod" / "decode", 0o755)


@pytest.mark.skipif(os.getuid() != 0, reason="needs another group, which only root can give")
@pytest.mark.parametrize("mode", [0o770, 0o775, 0o720, 0o1770])
def test_a_group_that_writes_by_accident_is_refused(root: Path, mode: int) -> None:
    os.chown(root, -1, 12345)
    root.chmod(mode)
    with pytest.raises(RootError, match=f"can be written by group .*chmod g-w {root} .*chmod g.s {root}"):
        check_root(root)


@pytest.mark.skipif(os.getuid() != 0, reason="whether a user has a group of its own is the system's choice")
def test_a_group_of_the_owner_alone_is_the_owner(root: Path) -> None:
    """The default on systems whose umask is 002."""
    for level in (root, root / "prod", root / "prod/decode"):
        level.chmod(0o775)
    checked = found(root)
    assert checked is not None
    assert not checked.is_group_writable


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o2777, 0o702])
@pytest.mark.parametrize("level", ["", "prod", "prod/decode"])
def test_no_level_can_be_written_by_everyone(root: Path, level: str, mode: int) -> None:
    (root / level).chmod(mode)
    with pytest.raises(RootError, match=f"the directory {root / level} can be written by everyone"):
        found(root)


@pytest.mark.parametrize("level", ["prod", "prod/decode"])
def test_a_group_writes_below_a_root_only_where_it_writes_to_the_root(root: Path, level: str) -> None:
    (root / level).chmod(0o2775)
    with pytest.raises(RootError, match=f"{root / level} can be written by group .*, the root {root} cannot"):
        found(root)
    root.chmod(0o2775)
    assert found(root)


@pytest.mark.skipif(os.getuid() != 0, reason="needs another group, which only root can give")
def test_another_group_than_the_roots_is_refused(root: Path) -> None:
    root.chmod(0o2775)
    os.chown(root / "prod", -1, 12345)
    (root / "prod").chmod(0o2775)
    with pytest.raises(RootError, match="can be written by group 12345"):
        found(root)


@pytest.mark.parametrize("level", ["prod", "prod/decode"])
def test_a_link_below_the_root_is_not_followed(
    root: Path, tmp_path_factory: pytest.TempPathFactory, level: str
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "moved"
    (root / level).rename(elsewhere)
    (root / level).symlink_to(elsewhere)
    with pytest.raises(RootError, match=f"{root / level} is a link of user {os.getuid()}"):
        found(root)


def test_a_link_of_ones_own_is_a_root(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    link = tmp_path_factory.mktemp("links") / "link"
    link.symlink_to(root)
    assert stat.S_IMODE(root.stat().st_mode) == check_root(link).mode
    root.chmod(0o777)
    with pytest.raises(RootError, match="can be written by everyone"):
        check_root(link)


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user's link, which only root can make")
def test_a_link_of_another_user_is_no_root(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    link = tmp_path_factory.mktemp("links") / "link"
    link.symlink_to(root)
    os.chown(link, 12345, -1, follow_symlinks=False)
    with pytest.raises(RootError, match=f"{link} is a link of user 12345, who can turn it elsewhere"):
        check_root(link)


def test_missing_directories_are_not_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_component(check_root(tmp_path), KEY) is None
    monkeypatch.setenv("ADSUM_ROOT", str(tmp_path / "nowhere"))
    assert find_root(None) is None
    with pytest.raises(RootError, match=f"the root {tmp_path / 'nowhere'} does not exist: mkdir"):
        find_root(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "prod").touch()
    with pytest.raises(RootError, match=f"{tmp_path / 'prod'} is not a directory"):
        check_directory(tmp_path / "prod", check_root(tmp_path))


def test_which_owners_a_directory_allows() -> None:
    own, shared = CheckedDirectory(Path(), 1000, 1000, 0o755), CheckedDirectory(Path(), 1000, 1000, 0o2775)
    assert [own.allows_owner(uid) for uid in (1000, 0, 1001)] == [True, True, False]
    assert shared.allows_owner(1001)
