"""The blocks of our pages: which are commands, and what each says about who runs it.

Above a block of commands stands one of these, or nothing: then `tests/system` runs it as it stands.

    *Needs a GPU.*                                    visible: what nobody has who runs our tests
    <!-- run by: tests/stories/test_extending.py -->  invisible: another test runs it
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from release.site.outside_pages import OUTSIDE

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = sorted([*(ROOT / "docs").rglob("*.md"), *OUTSIDE])
COMMANDS: Final = ("sh", "console")
"""`console`: lines that begin with `$ ` are commands, the others what they print."""
NEEDS: Final = re.compile(r"\*Needs (.+)\.\*")
RUN_BY: Final = re.compile(r"<!-- run by: (.+) -->")
_FENCE: Final = re.compile(
    r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE
)
_TITLE: Final = re.compile(r'title="([^"]+)"')
_HERE_DOCUMENT: Final = re.compile(r"<<'?(\w+)'?")


@dataclass(frozen=True)
class Block:
    """`language`: empty if none is given. `title`: the file that it shows."""

    page: Path
    line: int
    language: str
    title: str | None
    text: str
    above: str

    @property
    def needs(self) -> str | None:
        found = NEEDS.fullmatch(self.above)
        return found[1] if found else None

    @property
    def run_by(self) -> list[str]:
        found = RUN_BY.fullmatch(self.above)
        return found[1].split() if found else []

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for fence in _FENCE.finditer(text):
        language, _, rest = fence["info"].strip().partition(" ")
        title = _TITLE.search(rest)
        above = text[: fence.start()].rstrip("\n").rpartition("\n")[2].strip()
        body = "\n".join(line.removeprefix(fence["indent"]) for line in fence["text"].splitlines())
        line = text.count("\n", 0, fence.start()) + 1
        found.append(Block(page, line, language, title[1] if title else None, body, above))
    return found


def commands(block: Block) -> list[str]:
    """One for each line, joined where a line goes on behind a backslash or with a here-document."""
    lines = block.text.splitlines()
    if block.language == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    found: list[str] = []
    open_until: str | None = None
    for line in lines:
        goes_on = bool(found) and (found[-1].endswith("\\") or open_until is not None)
        if goes_on:
            found[-1] += f"\n{line}"
        elif line.strip() and not line.lstrip().startswith("#"):
            found.append(line)
        if open_until is not None:
            open_until = None if line == open_until else open_until
        elif here := _HERE_DOCUMENT.search(line):
            open_until = here[1]
    return found


def printed(block: Block) -> list[str]:
    """What a block of `console` shows that its commands print."""
    return [line for line in block.text.splitlines() if not line.startswith("$ ")]
