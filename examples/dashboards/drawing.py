"""Draws a dashboard as SVG text, from the answers to its queries."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Final

from examples.dashboards.dashboard import Dashboard, DashboardPanel
from examples.dashboards.prometheus import TimeSeries
from examples.dashboards.scale import all_text, text, ticks

Answers = Mapping[str, Sequence[TimeSeries]]
"""The answer to each query of a dashboard."""

_WIDTH: Final = 1200
_COLUMN: Final = _WIDTH / 24
_ROW: Final = 30
_GAP: Final = 8
_MARGIN: Final = 16
_ABOVE: Final = 64
_LINES: Final = (
    "#2f6fde", "#e07b24", "#3d9a50", "#9a4fc4", "#cf3f4f", "#148f93", "#b08a12", "#6b7280", "#d1559b", "#5b6bd6",
)  # fmt: skip
_NAMED: Final = {"green": "#3d9a50", "orange": "#e07b24", "red": "#cf3f4f", "text": "#1f2328"}
_INK, _FAINT, _GRID, _EDGE, _PAGE = "#1f2328", "#6b7280", "#eceff2", "#dfe3e8", "#f5f6f8"
_FONT: Final = "font-family='system-ui, sans-serif' font-size='11'"
_CHARACTER: Final = 6.3
"""The width of one in a legend or at an axis, at most on average."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The time that is drawn, in Unix time, and the seconds between two points."""

    start: float
    end: float
    step: float


@dataclass(frozen=True, slots=True)
class Drawn:
    """One series of a panel: its name and its points, which are not on top of one another."""

    name: str
    color: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Box:
    """Where something is drawn, in pixels."""

    x: float
    y: float
    width: float
    height: float


def draw(dashboard: Dashboard, answers: Answers, span: TimeRange, note: str) -> str:
    """`note`: a line below the title."""
    bottom = max(panel.place.y + panel.place.height for panel in dashboard.panels)
    width, height = _WIDTH + 2 * _MARGIN, _ABOVE + bottom * _ROW + _MARGIN
    size = f"width='{width}' height='{height}'"
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} viewBox='0 0 {width} {height}' role='img' {_FONT}>",
        f"<title>{escape(dashboard.title)}</title><rect {size} fill='{_PAGE}'/>",
        _text(_MARGIN + 4, 28, dashboard.title, size=18, weight=600),
        _text(_MARGIN + 4, 48, note, color=_FAINT, size=12),
    ]
    for panel in dashboard.panels:
        lines += _panel(panel, answers, span)
    return "\n".join([*lines, "</svg>", ""])


def _panel(panel: DashboardPanel, answers: Answers, span: TimeRange) -> Iterator[str]:
    place = panel.place
    x, y = _MARGIN + place.x * _COLUMN, _ABOVE + place.y * _ROW
    if panel.kind == "row":
        yield _text(x + 4, y + 21, panel.title, size=14, weight=600)
        return
    box = Box(x + _GAP / 2, y + _GAP / 2, place.width * _COLUMN - _GAP, place.height * _ROW - _GAP)
    yield (
        f"<rect x='{box.x:.1f}' y='{box.y:.1f}' width='{box.width:.1f}' height='{box.height:.1f}' rx='4' "
        f"fill='white' stroke='{_EDGE}'/>"
    )
    yield _text(box.x + 12, box.y + 20, panel.title, size=12, weight=600)
    series = list(_series(panel, answers))
    if not any(one.points for one in series):
        yield _text(
            box.x + box.width / 2, box.y + box.height / 2 + 8, "no data", anchor="middle", color=_FAINT
        )
    elif panel.kind == "stat":
        yield from _stat(panel, series[0], span, box)
    else:
        yield from _chart(panel, series, span, box)


def _series(panel: DashboardPanel, answers: Answers) -> Iterator[Drawn]:
    number = 0
    for target in panel.targets:
        for one in answers.get(target.query, ()):
            points = [(at, value) for at, value in one.points if math.isfinite(value)]
            yield Drawn(_legend(target.legend, one.labels), _LINES[number % len(_LINES)], points)
            number += 1


def _legend(legend: str, labels: Mapping[str, str]) -> str:
    name = re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), legend)
    return " ".join(name.split())


def _stat(panel: DashboardPanel, series: Drawn, span: TimeRange, box: Box) -> Iterator[str]:
    """The last value, above what it was before."""
    value = series.points[-1][1]
    color = _NAMED[[name for least, name in panel.colors if value >= least][-1]]
    top = max(value for _, value in series.points) or 1.0
    inner = Box(box.x + 1, box.y + box.height * 0.66, box.width - 2, box.height * 0.34 - 1)
    line = _path(series.points, span, inner, 0.0, top)
    first, floor = _x(series.points[0][0], span, inner), inner.y + inner.height
    yield f"<path d='{line}V{floor:.1f}H{first:.1f}Z' fill='{color}' opacity='0.12'/>"
    yield f"<path d='{line}' fill='none' stroke='{color}' opacity='0.6'/>"
    shown = dict(panel.names).get(f"{value:g}", text(value, panel.unit))
    yield _text(box.x + box.width / 2, box.y + 62, shown, anchor="middle", color=color, size=26, weight=600)


def _chart(panel: DashboardPanel, series: Sequence[Drawn], span: TimeRange, box: Box) -> Iterator[str]:
    legend, rows = _place_legend(series, box)
    stacks = _stacked(series) if panel.stacked else series
    highest = max(value for one in stacks for _, value in one.points)
    highest = max(highest, panel.limit or 0.0)
    lowest = panel.lowest if panel.lowest is not None else min(v for one in stacks for _, v in one.points)
    marks = ticks(lowest, panel.highest if panel.highest is not None else highest or 1.0)
    names = all_text(marks, panel.unit)
    left = 22 + _CHARACTER * max(map(len, names))
    inner = Box(box.x + left, box.y + 34, box.width - left - 16, box.height - 58 - 16 * rows)
    yield from _grid(dict(zip(marks, names, strict=True)), span, inner)
    for one in reversed(stacks) if panel.stacked else stacks:
        yield from _line(one, span, inner, marks, filled=panel.stacked)
    if panel.limit is not None:
        y = _y(panel.limit, inner, marks[0], marks[-1])
        right = inner.x + inner.width
        yield f"<path d='M{inner.x:.1f} {y:.1f}H{right:.1f}' stroke='{_NAMED['red']}' stroke-dasharray='6 4'/>"
    yield from legend


def _line(one: Drawn, span: TimeRange, inner: Box, marks: Sequence[float], *, filled: bool) -> Iterator[str]:
    for run in _runs(one.points, span.step):
        line = _path(run, span, inner, marks[0], marks[-1])
        if filled:
            floor, first = inner.y + inner.height, _x(run[0][0], span, inner)
            yield f"<path d='{line}V{floor:.1f}H{first:.1f}Z' fill='white'/>"
            yield f"<path d='{line}V{floor:.1f}H{first:.1f}Z' fill='{one.color}' opacity='0.3'/>"
        yield f"<path d='{line}' fill='none' stroke='{one.color}' stroke-width='1.6' stroke-linejoin='round'/>"


def _grid(marks: Mapping[float, str], span: TimeRange, inner: Box) -> Iterator[str]:
    for mark, name in marks.items():
        y = _y(mark, inner, min(marks), max(marks))
        yield f"<path d='M{inner.x:.1f} {y:.1f}H{inner.x + inner.width:.1f}' stroke='{_GRID}'/>"
        yield _text(inner.x - 8, y + 4, name, anchor="end", color=_FAINT)
    for second in ticks(0.0, span.end - span.start, 3):
        if second > span.end - span.start:
            continue
        x, floor = _x(span.start + second, span, inner), inner.y + inner.height
        yield _text(x, floor + 16, f"{second:g} s", anchor="middle" if second else "start", color=_FAINT)


def _place_legend(series: Sequence[Drawn], box: Box) -> tuple[list[str], int]:
    """The legend in at most two rows, and how many it needs; what has no room is counted."""
    rows: list[list[tuple[float, Drawn | str]]] = [[]]
    x, right = box.x + 14, box.x + box.width - 14
    for number, one in enumerate(series):
        name = _cut(one.name, int((right - box.x - 28) / _CHARACTER))
        width = 26 + _CHARACTER * len(name)
        rest = len(series) - number
        full = len(rows) == 2 and rest > 1 and x + width > right - 60
        if full:
            rows[-1].append((x, f"and {rest} more"))
            break
        if x + width > right and rows[-1]:
            rows.append([])
            x = box.x + 14
        rows[-1].append((x, replace(one, name=name)))
        x += width
    lines = []
    for number, row in enumerate(rows):
        y = box.y + box.height - 10 - 16 * (len(rows) - 1 - number)
        for x, entry in row:
            if isinstance(entry, str):
                lines.append(_text(x, y, entry, color=_FAINT))
                continue
            lines.append(
                f"<rect x='{x:.1f}' y='{y - 5:.1f}' width='10' height='3' rx='1' fill='{entry.color}'/>"
            )
            lines.append(_text(x + 14, y, entry.name))
    return lines, len(rows)


def _cut(name: str, longest: int) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def _stacked(series: Sequence[Drawn]) -> list[Drawn]:
    """Each on top of those before it."""
    below: dict[float, float] = {}
    found = []
    for one in series:
        points = []
        for at, value in one.points:
            below[at] = below.get(at, 0.0) + value
            points.append((at, below[at]))
        found.append(Drawn(one.name, one.color, points))
    return found


def _runs(points: Sequence[tuple[float, float]], step: float) -> Iterator[list[tuple[float, float]]]:
    """The points without a gap between them."""
    run: list[tuple[float, float]] = []
    for point in points:
        if run and point[0] - run[-1][0] > step * 1.5:
            yield run
            run = []
        run.append(point)
    if run:
        yield run


def _path(
    points: Sequence[tuple[float, float]], span: TimeRange, box: Box, lowest: float, highest: float
) -> str:
    placed = ((_x(at, span, box), _y(value, box, lowest, highest)) for at, value in points)
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in placed)


def _x(at: float, span: TimeRange, box: Box) -> float:
    return box.x + box.width * (at - span.start) / (span.end - span.start)


def _y(value: float, box: Box, lowest: float, highest: float) -> float:
    share = (value - lowest) / (highest - lowest)
    return box.y + box.height * (1 - min(max(share, 0.0), 1.0))


def _text(  # noqa: PLR0913
    x: float, y: float, text: str, *, anchor: str = "start", color: str = _INK, size: int = 11, weight: int = 400
) -> str:  # fmt: skip
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-size='{size}' font-weight='{weight}' "
        f"fill='{color}'>{escape(text)}</text>"
    )
