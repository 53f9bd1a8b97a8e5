"""How programs refuse: in words, with a code that says who can put it right."""

import subprocess
import sys
from pathlib import Path

import pytest

from adsum.command_line import FAILED, WRONG_INPUT, Parser, argument, print_error
from adsum.units import parse_duration
from discovery.errors import ForbiddenError

_LOADED = "import sys, adsum.command_line; print(*sys.modules)"


def test_it_loads_nothing_that_takes_time() -> None:
    loaded = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, text=True, check=True)
    assert not {"discovery", "aiohttp", "asyncio", "anyio"} & set(loaded.stdout.split())


def test_a_file_that_cannot_be_read_is_wrong_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "no.yaml"
    with pytest.raises(OSError, match="No such file") as raised:
        missing.read_text()
    assert print_error(raised.value) == WRONG_INPUT
    said = f"error: {missing} cannot be read: No such file or directory; expected a file that this user can read\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ValueError("port 99999 is not one"), WRONG_INPUT, "port 99999 is not one"),
        (ConnectionRefusedError(111, "Connection refused"), FAILED, "Connection refused"),
        (ForbiddenError("list endpointslices is forbidden"), FAILED, "list endpointslices is forbidden"),
        (RuntimeError(), FAILED, "RuntimeError"),
    ],
)
def test_what_failed_is_said_without_numbers(
    error: Exception, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert print_error(error) == code
    assert capsys.readouterr().err == f"error: {words}\n"


def test_an_argument_that_cannot_be_read_is_told_in_its_reader_s_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = Parser(prog="it")
    parser.add_argument("--time", type=argument(parse_duration))
    assert parser.parse_args(["--time", "1m"]).time == 60
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(["--time", "soon"])
    assert "--time: 'soon' is not a duration; write a number with a unit" in capsys.readouterr().err
