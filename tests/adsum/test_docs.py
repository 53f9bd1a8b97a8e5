"""docs/command-line.md lists every exit code that our programs have."""

import re
from pathlib import Path

from adsum import command_line

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()


def test_the_page_lists_the_exit_codes() -> None:
    named = {value for name, value in vars(command_line).items() if name.isupper() and type(value) is int}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)} == named
