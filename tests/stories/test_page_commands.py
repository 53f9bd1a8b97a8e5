"""Every command on our pages is run by a test, or the page says what it needs that our tests do not have."""

import re

import pytest

from tests.shown_commands import COMMANDS, PAGES, ROOT, Block, blocks, commands
from tests.system.page_scenarios import SCENARIOS

BLOCKS = [block for page in PAGES for block in blocks(page)]
SHOWN = [block for block in BLOCKS if block.language in COMMANDS]
LANGUAGES = {"sh", "console", "text", "bash", "python", "yaml", "toml", "json", "ini", "promql"}
NEEDED = {
    "a GPU",
    "a Kubernetes cluster",
    "a Prometheus that knows the pool",
    "a machine with nothing else to do",
    "a package index",
    "Docker",
    "Docker, an image registry and a Kubernetes cluster",
    "Slurm",
    "systemd",
    "zsh",
}
"""What our tests do not have. A new entry here is a command that nobody runs."""


def test_there_are_pages_with_commands() -> None:
    assert len(SHOWN) > 30
    assert any(block.page.name == "README.md" for block in SHOWN)


def test_every_block_says_what_it_is() -> None:
    """Without a language nobody knows whether it is to be typed."""
    assert [block.place for block in BLOCKS if block.language not in LANGUAGES] == []


@pytest.mark.parametrize("block", SHOWN, ids=lambda block: block.place)
def test_a_command_is_run_or_says_what_it_needs(block: Block) -> None:
    assert commands(block)
    if block.needs is not None:
        assert block.needs in NEEDED
    elif block.run_by:
        for path in block.run_by:
            assert (ROOT / path).is_file(), f"there is no {path}"
    else:
        page = block.page.relative_to(ROOT).as_posix()
        assert page in SCENARIOS, (
            f"nothing runs the commands at {block.place}: add {page} to tests/system/page_scenarios.py, or say above them "
            f"*Needs ...*, or <!-- run by: tests/... -->"
        )


def test_every_scenario_has_commands_to_run() -> None:
    typed = {
        block.page.relative_to(ROOT).as_posix() for block in SHOWN if not block.needs and not block.run_by
    }
    assert typed | {page for page, scenario in SCENARIOS.items() if scenario.then} == set(SCENARIOS)


def test_every_fence_is_read() -> None:
    """A fence that the pattern does not see would be a command that no test knows."""
    fences = {page: len(re.findall(r"^ *```", page.read_text(), re.MULTILINE)) for page in PAGES}
    assert fences == {page: 2 * len(blocks(page)) for page in PAGES}
