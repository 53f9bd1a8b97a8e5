"""What the README and docs/dispatcher.md show is sound, and nothing that a file may say is missing there."""

import re
from pathlib import Path

import pytest

from dispatcher.config.config_file import Config, IntakeConfig, QueueConfig, TargetConfig, read_config
from dispatcher.gates.catalogue import GATES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "dispatcher.md").read_text()


@pytest.mark.parametrize("page", ["README.md", "docs/dispatcher.md"])
def test_the_configurations_shown_are_sound(page: str) -> None:
    shown = [
        text
        for text in re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
        if "broker:" in text
    ]
    assert shown
    for text in shown:
        assert read_config(text, {}).queues


@pytest.mark.parametrize("section", [Config, TargetConfig, QueueConfig, IntakeConfig])
def test_every_field_is_explained(section: type[Config]) -> None:
    for name in section.model_fields:
        assert re.search(rf"`[^`]*\b{name}\b[^`]*`", PAGE), f"{name} is not in docs/dispatcher.md"


def test_every_gate_is_explained() -> None:
    for name in GATES.keys() - {"composite"}:  # the Go processor's word for all-of
        assert f"| `{name}` |" in PAGE
