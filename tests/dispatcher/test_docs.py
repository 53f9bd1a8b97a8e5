"""The examples in README and on the dispatcher's pages are valid, and these name every field and every metric."""

import re
from fractions import Fraction
from pathlib import Path

import pytest

from dispatcher.broker.capacity.budget import from_saturation, spare, system_capacity
from dispatcher.broker.contract.queue import Totals
from dispatcher.cli.batch_file import read_lines
from dispatcher.config.config_file import Config, IntakeConfig, QueueConfig, TargetConfig, read_config
from dispatcher.delivery.route import DEFAULT_PATHS, Route
from dispatcher.gates.catalogue import GATES
from dispatcher.gates.metering.meter import MeterState
from dispatcher.telemetry.metrics import LABELS, PREFIX, BrokerMetrics, DispatcherTelemetry, QueueStatus

ROOT = Path(__file__).parents[2]
PAGES = ("dispatcher", "dispatcher-gates", "dispatcher-operation")
PAGE = "".join((ROOT / "docs" / f"{page}.md").read_text() for page in PAGES)


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
        assert re.search(rf"`[^`]*\b{name}\b[^`]*`", PAGE), f"{name} is not in docs/dispatcher*.md"


def test_every_gate_is_explained() -> None:
    for name in GATES.keys() - {"composite"}:  # the Go processor's word for all-of
        assert f"| `{name}` |" in PAGE


def test_the_batch_line_that_is_shown_is_one(tmp_path: Path) -> None:
    [shown] = re.findall(r'^\{"custom_id".*\}$', PAGE, re.MULTILINE)
    (tmp_path / "batch.jsonl").write_text(shown)
    [line] = read_lines(tmp_path / "batch.jsonl")
    assert line.url == Route().request_path(line.url) == DEFAULT_PATHS[0]


def test_the_budget_that_is_computed_is_right() -> None:
    example = " ".join(re.findall(r"^Example: .*?\n\n", PAGE, re.DOTALL | re.MULTILINE)[0].split())
    servers, each, capacity, saturation, baseline, budget = (
        Fraction(number) for number in re.findall(r"[0-9]+(?:\.[0-9]+)?", example)[:6]
    )
    assert capacity == system_capacity(servers, each)
    assert budget == from_saturation(saturation)
    assert f"= {capacity * spare(budget, baseline)}. N is" in example


def test_every_metric_is_listed_with_its_labels() -> None:
    telemetry = DispatcherTelemetry()
    telemetry.of("batch", "pool").inflight = 1
    meter = MeterState("load", value=0.0, threshold=1.0, available=True, reason="")
    status = QueueStatus("batch", "pool", budget=1.0, totals=Totals(), concurrency=64, meters=[meter])
    shown = {}
    for family in [*BrokerMetrics([status]).collect(), *telemetry.collect()]:
        name = family.name.removeprefix(PREFIX) + ("_total" if family.type == "counter" else "")
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        shown[name] = (family.type, frozenset(labels))
    [section] = re.findall(r"^## Metrics\n(.*)", PAGE, re.DOTALL | re.MULTILINE)
    listed = {}
    for name, kind, labels in re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) ?\| ", section, re.MULTILINE):
        of_a_queue = LABELS if "of a queue" in labels else ()
        listed[name] = (kind, frozenset([*of_a_queue, *re.findall(r"`(\w+)`", labels)]))
    assert listed == shown
