"""Draws charts over time as SVG text: panels one below the other, with areas, lines and steps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape

_WIDTH, _HEIGHT = 900, 170
_LEFT, _RIGHT, _ABOVE, _BELOW = 56, 16, 46, 30
_INK, _GRID = "#24292f", "#d8dee4"
_FONT = "font-family='system-ui, sans-serif' font-size='12'"

Point = tuple[float, float]
"""Seconds and value."""


class Kind(StrEnum):
    """How a series is drawn; STEPS keep a value until the next point."""

    AREA = "area"
    LINE = "line"
    DASHES = "dashes"
    STEPS = "steps"


@dataclass(frozen=True, slots=True)
class Series:
    """Points in order of time; `color` in SVG's syntax."""

    name: str
    color: str
    kind: Kind
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Band:
    """A highlighted range of values, with its name inside."""

    name: str
    color: str
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of axes from 0 to `top`; later series are drawn over earlier ones."""

    title: str
    top: float
    series: Sequence[Series]
    bands: Sequence[Band] = ()
    percent: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A named moment, in seconds; a vertical line through all panels."""

    at: float
    name: str


def chart(title: str, panels: Sequence[Panel], seconds: float, marks: Sequence[Mark] = ()) -> str:
    """The SVG text; time runs from 0 to `seconds`."""
    height = 34 + len(panels) * (_HEIGHT + _ABOVE) + _BELOW
    size = f"width='{_WIDTH}' height='{height}'"
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} viewBox='0 0 {_WIDTH} {height}' role='img' {_FONT}>",
        f"<title>{escape(title)}</title><rect {size} fill='white'/>",
        _text(_LEFT, 24, title, size=16),
    ]
    for number, panel in enumerate(panels):
        lines += _Axes(34 + _ABOVE + number * (_HEIGHT + _ABOVE), panel, seconds).render(marks)
    lines += [
        _text(x, height - 12, f"{second} s", anchor="middle") for x, second in _ticks(seconds, _width())
    ]
    return "\n".join([*lines, "</svg>", ""])


@dataclass(frozen=True, slots=True)
class _Axes:
    """One panel on the page, its upper edge at `above`."""

    above: float
    panel: Panel
    seconds: float

    def render(self, marks: Sequence[Mark]) -> Iterator[str]:
        yield _text(_LEFT, self.above - 26, self.panel.title, size=13)
        yield from self._legend()
        yield from self._grid()
        for band in self.panel.bands:
            top, bottom = self._y(band.high), self._y(band.low)
            yield f"<rect x='{_LEFT}' y='{top:.1f}' width='{_width()}' height='{bottom - top:.1f}' fill='{band.color}'/>"
            yield _text(_WIDTH - _RIGHT - 6, top + 15, band.name, anchor="end")
        for series in self.panel.series:
            yield self._path(series)
        for mark in marks:
            x, right = self._x(mark.at), mark.at > self.seconds / 2
            yield f"<path d='M{x:.1f} {self.above}V{self.above + _HEIGHT}' stroke='{_INK}' stroke-dasharray='2 3'/>"
            yield _text(
                x - 4 if right else x + 4, self.above + 34, mark.name, anchor="end" if right else "start"
            )

    def _path(self, series: Series) -> str:
        points = [(self._x(at), self._y(value)) for at, value in series.points]
        if not points:
            return ""
        if series.kind is Kind.STEPS:
            path = _move_to(points[0]) + "".join(f"H{x:.1f}V{y:.1f}" for x, y in points[1:])
        else:
            path = _move_to(points[0]) + "".join(f"L{x:.1f} {y:.1f}" for x, y in points[1:])
        if series.kind is Kind.AREA:
            floor = self.above + _HEIGHT
            return f"<path d='{path}V{floor}H{points[0][0]:.1f}Z' fill='{series.color}'/>"
        dashes = " stroke-dasharray='6 4'" if series.kind is Kind.DASHES else ""
        return f"<path d='{path}' fill='none' stroke='{series.color}' stroke-width='1.5'{dashes}/>"

    def _legend(self) -> Iterator[str]:
        x = float(_LEFT)
        for series in self.panel.series:
            yield f"<rect x='{x:.0f}' y='{self.above - 17}' width='10' height='10' fill='{series.color}'/>"
            yield _text(x + 15, self.above - 8, series.name)
            x += 36 + 6.4 * len(series.name)

    def _grid(self) -> Iterator[str]:
        for part in range(5):
            value = self.panel.top * part / 4
            y = self._y(value)
            yield f"<path d='M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}' stroke='{_GRID}'/>"
            yield _text(
                _LEFT - 8, y + 4, f"{value:.0%}" if self.panel.percent else f"{value:g}", anchor="end"
            )
        for x, _ in _ticks(self.seconds, _width()):
            yield f"<path d='M{x:.1f} {self.above}V{self.above + _HEIGHT}' stroke='{_GRID}'/>"

    def _x(self, second: float) -> float:
        return _LEFT + _width() * min(max(second / self.seconds, 0.0), 1.0)

    def _y(self, value: float) -> float:
        return self.above + _HEIGHT * (1 - min(max(value / self.panel.top, 0.0), 1.0))


def _width() -> float:
    return _WIDTH - _LEFT - _RIGHT


def _ticks(seconds: float, width: float) -> Iterator[tuple[float, int]]:
    """The x coordinate and the second of each tick, at most 15 of them."""
    step = next(step for step in (1, 2, 5, 10, 20, 60, 600) if seconds / step <= 14)
    for second in range(0, int(seconds) + 1, step):
        yield _LEFT + width * second / seconds, second


def _move_to(point: Point) -> str:
    return f"M{point[0]:.1f} {point[1]:.1f}"


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-size='{size}' fill='{_INK}'>"
        f"{escape(text)}</text>"
    )
