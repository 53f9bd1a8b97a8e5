"""No comment stands behind a closing bracket: the formatter moves one there when it splits the line that the comment is of."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = ("adsum", "discovery", "registry", "epp", "dispatcher")
FOLDERS = (*PROGRAMS, "examples", "benchmarks", "release", "tests")
BEHIND_A_BRACKET = re.compile(r"^[ ]*[)\]}].*[ ]{2}# (?!fmt: skip).*", re.MULTILINE)


def test_comments_stand_where_they_belong() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    behind = {path: found for path in files if (found := BEHIND_A_BRACKET.findall(path.read_text()))}
    assert not behind, "move each above its statement"
