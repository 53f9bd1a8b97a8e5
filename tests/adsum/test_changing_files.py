import os
from pathlib import Path

import pytest

from adsum.changing_files import ChangingFile


def write(path: Path, text: str, seconds: float) -> None:
    path.write_text(text)
    os.utime(path, (seconds, seconds))


def test_it_is_read_again_when_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    times: list[str] = []

    def read(path: Path) -> int:
        times.append(path.read_text())
        return int(path.read_text())

    file = ChangingFile(path, read)
    with pytest.raises(FileNotFoundError):
        file()
    write(path, "1", 1000)
    assert (file(), file()) == (1, 1)
    write(path, "x", 2000)
    for _ in range(2):
        with pytest.raises(ValueError, match="invalid literal"):
            file()
    path.unlink()
    with pytest.raises(FileNotFoundError):
        file()
    write(path, "2", 3000)
    assert (file(), file()) == (2, 2)
    assert times == ["1", "x", "2"]


def test_a_change_of_just_now_may_be_followed_by_one_that_looks_the_same(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("1")
    file = ChangingFile(path, lambda path: path.read_text())
    assert file() == "1"
    when = path.stat()
    with path.open("r+") as same:
        same.write("2")
    os.utime(path, ns=(when.st_atime_ns, when.st_mtime_ns))
    assert file() == "2"
