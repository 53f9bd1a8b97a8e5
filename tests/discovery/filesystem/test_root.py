"""Which directories are taken: those in which only people that the owner means can announce workers."""

import os
import stat
from pathlib import Path

import pytest

from discovery.filesystem.root import (
    CheckedDirectory,
    RootError,
    check_directory,
    check_root,
    find_component,
    find_root,
)
from discovery.source import ComponentKey

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
