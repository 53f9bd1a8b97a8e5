"""Reads the parts of a Grafana dashboard that a picture of it needs. Pure but for `read`."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

CHARTS: Final = Path(__file__).parents[2] / "charts"
DASHBOARDS: Final = tuple(sorted(CHARTS.glob("*/dashboards/*.json")))

_VARIABLE: Final = re.compile(r"\$(\w+)|\$\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Target:
    """One query of a panel; `legend` in Grafana's syntax, with `{{label}}`."""

    query: str
    legend: str

    def asked(self, rate_interval: str) -> str:
        """The query with its variables filled in: everything, for those that select."""
        values = {"__rate_interval": rate_interval}
        return _VARIABLE.sub(lambda found: values.get(found[1] or found[2], ".*"), self.query)


@dataclass(frozen=True, slots=True)
class Place:
    """In Grafana's grid of 24 columns; a row is 30 pixels high there."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class DashboardPanel:
    """`kind`: Grafana's type of it, `row` for a heading. `limit`: where a dashed line is drawn."""

    title: str
    kind: str
    place: Place
    targets: Sequence[Target]
    unit: str
    stacked: bool
    lowest: float | None
    highest: float | None
    limit: float | None
    colors: tuple[tuple[float, str], ...]
    """From which value on a number has which color."""
    names: tuple[tuple[str, str], ...]
    """Texts in place of numbers."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    uid: str
    title: str
    panels: Sequence[DashboardPanel]


def read(path: Path) -> Dashboard:
    """Raises KeyError and ValueError for what is no dashboard."""
    document = json.loads(path.read_text())
    return Dashboard(document["uid"], document["title"], tuple(map(_panel, document["panels"])))


def _panel(found: dict[str, Any]) -> DashboardPanel:
    grid, defaults = found["gridPos"], found.get("fieldConfig", {}).get("defaults", {})
    custom = defaults.get("custom", {})
    steps = defaults.get("thresholds", {}).get("steps", ())
    limits = [step["value"] for step in steps if step["value"]]
    dashed = custom.get("thresholdsStyle", {}).get("mode") == "dashed"
    return DashboardPanel(
        title=found["title"],
        kind=found["type"],
        place=Place(grid["x"], grid["y"], grid["w"], grid["h"]),
        targets=tuple(Target(one["expr"], one["legendFormat"]) for one in found.get("targets", ())),
        unit=defaults.get("unit", ""),
        stacked=custom.get("stacking", {}).get("mode") == "normal",
        lowest=defaults.get("min"),
        highest=defaults.get("max"),
        limit=limits[0] if dashed and limits else None,
        colors=tuple((float(step["value"] or "-inf"), step["color"]) for step in steps),
        names=tuple(_names(defaults.get("mappings", ()))),
    )


def _names(mappings: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for mapping in mappings:
        for value, shown in mapping["options"].items():
            yield value, shown["text"]
