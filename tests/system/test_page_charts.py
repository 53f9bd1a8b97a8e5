"""The `helm install` lines on our pages name charts and values that are there: a real helm renders each."""

import re
import shlex
from pathlib import Path

import pytest

from tests.shown_commands import COMMANDS, PAGES, ROOT, Block, blocks, commands
from tests.system.charts import helm

BLOCKS = [block for page in PAGES for block in blocks(page)]
INSTALLS = [
    (block, command)
    for block in BLOCKS
    if block.language in COMMANDS
    for command in commands(block)
    if re.match(r"helm (install|upgrade) +\S+ +charts/", command)
]


def saved(name: str, page: Path) -> str | None:
    """The file that the page shows under this name."""
    for block in BLOCKS:
        if block.page == page and (block.title == name or block.text.startswith(f"# {name}\n")):
            return block.text
    return None


@pytest.mark.parametrize(("block", "command"), INSTALLS, ids=lambda given: getattr(given, "place", None))
def test_what_a_page_installs_can_be_rendered(block: Block, command: str, tmp_path: Path) -> None:
    _, _, release, chart, *arguments = shlex.split(command.replace("\\\n", " "), comments=True)
    given = iter(arguments)
    rendered = []
    for argument in given:
        if argument != "-f":
            rendered.append(argument)
            continue
        name = next(given)
        path = ROOT / name
        if not path.is_file():
            path = tmp_path / Path(name).name
            path.write_text(saved(name, block.page) or "{}\n")
        rendered += ["-f", str(path)]
    done = helm("template", release, str(ROOT / chart), *rendered)
    assert done.returncode == 0, f"{command}\n{done.stderr}"


def test_there_are_such_lines() -> None:
    assert {shlex.split(command)[3] for _, command in INSTALLS} == {
        "charts/dispatcher",
        "charts/epp",
        "charts/frontend",
        "charts/gateway",
        "charts/worker",
    }
