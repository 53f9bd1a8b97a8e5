"""A root directory among several users of one machine: who may announce, who may look, and what is said."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from registry.filesystem.files import HeldLock
from tests.held_records import hold

PROGRAM = Path(__file__).with_name("user_process.py")
GROUP = 30000


@dataclass(frozen=True)
class User:
    uid: int
    groups: tuple[int, ...] = (GROUP,)
    umask: int = 0o077

    def command(self, *arguments: str) -> list[str]:
        groups = ",".join(map(str, self.groups))
        return [sys.executable, str(PROGRAM), str(self.uid), groups, f"{self.umask:o}", *arguments]

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            timeout=120,
            env=os.environ | environment,
        )

    def list(self, root: Path) -> list[str]:
        """The ids that this user sees."""
        done = self.run("list", "prod", "decode", "--discovery", f"file://{root}")
        assert done.returncode == 0, done.stderr
        return [line.split()[0] for line in done.stdout.splitlines()[1:]]

    @contextmanager
    def working(self, root: Path, instance_id: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            self.command("register", str(root), instance_id),
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        try:
            lines = []
            while "joined" not in (line := process.stdout.readline()):
                lines.append(line)
                assert line, "".join(lines)
            yield process
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    def refused(self, root: Path, instance_id: str = "x", **environment: str) -> str:
        done = self.run("register", str(root) if root.name else "", instance_id, **environment)
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr


ALICE, BOB = User(20001), User(20002)
STRANGER = User(20003, groups=())


@pytest.fixture(scope="session", autouse=True)
def prepared() -> None:
    """These tests need root, and nothing that is built."""
    if os.geteuid() != 0:
        pytest.skip("only root can be several users")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody can reach; pytest closes its own ones to others."""
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        yield Path(made)


def a_root(place: Path, owner: int, mode: int) -> Path:
    root = place / "root"
    root.mkdir()
    os.chown(root, owner, GROUP)
    root.chmod(mode)
    return root


@pytest.fixture
def shared(place: Path) -> Path:
    return a_root(place, 0, 0o2775)


def a_living_record(component: Path, instance_id: str, owner: int) -> HeldLock:
    """A record of `owner`'s whose lock we hold."""
    lock = hold(component, instance_id)
    for made in (component / f"{instance_id}.json", component / f"{instance_id}.lock"):
        os.chown(made, owner, -1)
        made.chmod(0o644)
    return lock


def test_workers_of_two_users_share_a_component(shared: Path) -> None:
    with ALICE.working(shared, "alice"), BOB.working(shared, "bob"):
        assert ALICE.list(shared) == BOB.list(shared) == ["alice", "bob"]
        assert STRANGER.list(shared) == ["alice", "bob"], "who may read may look"


def test_what_is_made_is_as_open_as_the_root(shared: Path) -> None:
    with ALICE.working(shared, "alice"):
        for made in (shared / "prod", shared / "prod" / "decode"):
            assert stat.S_IMODE(made.stat().st_mode) == 0o2775
            assert made.stat().st_gid == GROUP
        for name, mode in (("alice.json", 0o644), ("alice.lock", 0o644), (".lock", 0o664)):
            assert stat.S_IMODE((shared / "prod" / "decode" / name).stat().st_mode) == mode, name


def test_a_closed_group_stays_closed(place: Path) -> None:
    root = a_root(place, ALICE.uid, 0o2770)
    with ALICE.working(root, "alice"), BOB.working(root, "bob"):
        assert BOB.list(root) == ["alice", "bob"]
        assert stat.S_IMODE((root / "prod" / "decode").stat().st_mode) == 0o2770
        done = STRANGER.run("list", "prod", "decode", "--discovery", f"file://{root}")
        assert done.returncode != 0
        assert "Traceback" not in done.stderr


def test_a_reader_who_was_first_is_in_nobodys_way(shared: Path) -> None:
    assert BOB.list(shared) == []
    assert list(shared.iterdir()) == []
    with ALICE.working(shared, "alice"):
        assert BOB.list(shared) == ["alice"]


def test_a_reader_may_look_where_it_may_not_write(place: Path) -> None:
    root = a_root(place, 0, 0o755)
    assert STRANGER.list(root) == []
    component = root / "prod" / "decode"
    component.mkdir(parents=True)
    for level in (component.parent, component):
        os.chown(level, ALICE.uid, -1)
        level.chmod(0o755)
    with ALICE.working(root, "alice"):
        before = {p.name for p in component.iterdir()}
        assert STRANGER.list(root) == ["alice"]
        assert {p.name for p in component.iterdir()} == before


def test_who_may_not_write_is_told_who_it_is_and_what_to_do(shared: Path) -> None:
    closed = shared / "prod"
    closed.mkdir()
    os.chown(closed, ALICE.uid, -1)
    closed.chmod(0o755)
    said = BOB.refused(shared)
    assert f"{closed} exists, but user 20002 may not write to it" in said
    assert "cannot be created" not in said
    assert f"chmod g+ws {closed}" in said


def test_who_is_not_in_the_group_is_told_so(shared: Path) -> None:
    said = STRANGER.refused(shared)
    assert f"{shared} exists, but user 20003 may not write to it" in said
    assert "group 30000" in said


def test_nobody_registers_where_only_the_owner_writes(place: Path) -> None:
    root = a_root(place, 0, 0o755)
    said = BOB.refused(root)
    assert f"{root} exists, but user 20002 may not write to it" in said
    assert "chmod 2775" in said


@pytest.mark.parametrize(("level", "mode"), [("root", 0o775), ("root", 0o1777), ("prod/decode", 0o770)])
def test_a_level_that_others_can_write_to_is_refused(place: Path, level: str, mode: int) -> None:
    """Other levels and modes: tests/discovery/filesystem/test_directory.py."""
    root = a_root(place, ALICE.uid, 0o755)
    component = root / "prod" / "decode"
    component.mkdir(parents=True)
    for each in (root, component.parent, component):
        os.chown(each, ALICE.uid, GROUP)
        each.chmod(0o755)
    opened = root if level == "root" else root / level
    opened.chmod(mode)
    assert f"{opened} can be written by " in ALICE.refused(root)
    done = ALICE.run("list", "prod", "decode", "--discovery", f"file://{root}")
    assert done.returncode != 0
    assert f"{opened} can be written by " in done.stderr
    assert "chmod" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("level", ["prod", "prod/decode"])
def test_another_users_link_is_not_followed(place: Path, level: str) -> None:
    root = a_root(place, 0, 0o2775)
    elsewhere = place / "elsewhere"
    (elsewhere / "decode").mkdir(parents=True)
    link = root / level
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(elsewhere)
    os.chown(link, BOB.uid, -1, follow_symlinks=False)
    assert f"{link} is a link" in ALICE.refused(root)
    done = ALICE.run("list", "prod", "decode", "--discovery", f"file://{root}")
    assert f"{link} is a link" in done.stderr


def test_the_default_root_is_no_link_of_another_user(place: Path) -> None:
    place.chmod(0o1777)
    target = place / "target"
    target.mkdir(mode=0o700)
    os.chown(target, ALICE.uid, -1)
    link = place / f"adsum-{ALICE.uid}"
    link.symlink_to(target)
    os.chown(link, BOB.uid, -1, follow_symlinks=False)
    surroundings = {"TMPDIR": str(place), "XDG_RUNTIME_DIR": "", "ADSUM_ROOT": ""}
    assert f"{link} is a link of user 20002" in ALICE.refused(Path(), **surroundings)
    assert list(target.iterdir()) == []
    done = ALICE.run("list", "prod", "decode", "--discovery", "file://", **surroundings)
    assert f"{link} is a link of user 20002" in done.stderr


def test_a_record_of_a_user_who_may_not_write_there_does_not_count(place: Path) -> None:
    root = a_root(place, ALICE.uid, 0o755)
    with ALICE.working(root, "alice"):
        lock = a_living_record(root / "prod" / "decode", "bob", BOB.uid)
        assert ALICE.list(root) == ["alice"]
        done = ALICE.run("explain", "prod", "decode", "--discovery", f"file://{root}")
        assert "bob is not an instance" in done.stdout
        assert "belongs to user 20002" in done.stdout
        lock.release()


def test_only_workers_remove_what_the_dead_left_also_another_users(shared: Path) -> None:
    with ALICE.working(shared, "alice") as worker:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    record = shared / "prod" / "decode" / "alice.json"
    assert BOB.list(shared) == []
    assert record.exists(), "a reader removes nothing"
    with BOB.working(shared, "bob"):
        until = time.monotonic() + 90
        while record.exists():
            assert time.monotonic() < until
            time.sleep(0.05)
        assert BOB.list(shared) == ["bob"]


def test_a_dead_users_id_can_be_taken_by_another(shared: Path) -> None:
    with ALICE.working(shared, "x") as worker:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    with BOB.working(shared, "x"):
        assert BOB.list(shared) == ["x"]
