"""`python -m benchmarks.picking.plot FIGURES PICTURE`: the comparison as an SVG, from what `--figures` wrote."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from benchmarks.picking.figures import KIBIBYTE, MEBIBYTE, Figures, Work

_WORKS: Final = (
    Work(),
    Work(many=1),
    Work(endpoints=3),
    Work(64 * KIBIBYTE),
    Work(220 * KIBIBYTE),
    Work(MEBIBYTE),
    Work(chunks=200),
    Work(envoy=True),
    Work(64 * KIBIBYTE, envoy=True),
)
_NAMES: Final = {
    "compiled": "adsum, compiled",
    "http2": "adsum",
    "grpc": "adsum on grpc.aio",
    "go": "Go picker (GOMAXPROCS 1)",
}
_COLOURS: Final = {"compiled": "#1e3a8a", "http2": "#2563eb", "grpc": "#9ca3af", "go": "#d97706"}
_LEFT, _WIDTH, _RIGHT = 250, 400, 110
_BAR, _GAP, _TOP, _BOTTOM = 14, 16, 96, 30


def draw(figures: Figures) -> str:
    """Draws processor time per request as bars; each workload has its own scale, because the ratio matters."""
    shown = [(work, costs) for work in _WORKS if (costs := figures.of(work)) is not None]
    names = [name for name in _NAMES if any(name in costs for _, costs in shown)]
    group = len(names) * _BAR + _GAP
    height = _TOP + len(shown) * group + _BOTTOM
    width = _LEFT + _WIDTH + _RIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(16, 26, "Processor time of one pick (shorter is better)", size=16, weight="bold"),
        _text(16, 46, "Each group has a scale of its own: compare the bars of one group.", size=11),
        *_legend(names),
    ]
    for number, (work, costs) in enumerate(shown):
        top = _TOP + number * group
        parts.append(_text(16, top + len(names) * _BAR / 2 + 4, str(work)))
        most = max(figure.cpu for name, figure in costs.items() if name in names)
        for place, name in enumerate(name for name in names if name in costs):
            length = max(1.0, _WIDTH * costs[name].cpu / most)
            y = top + place * _BAR
            parts.append(_rectangle(_LEFT, y + 1, length, _BAR - 2, name))
            parts.append(_text(_LEFT + length + 6, y + _BAR - 3, _time(costs[name].cpu), size=11))
    about = figures.about
    said = f"default profile, 100 endpoints unless another number stands there; {about['machine']}, CPython {about['CPython']}, {about['date']}"
    parts += [_text(16, height - 10, said, size=11, colour="#6b7280"), "</svg>"]
    return "\n".join(parts) + "\n"


def _legend(names: list[str]) -> Iterator[str]:
    x = 16
    for name in names:
        yield _rectangle(x, 62, 12, 12, name)
        yield _text(x + 18, 72, _NAMES[name])
        x += 40 + 8 * len(_NAMES[name])


def _time(microseconds: float) -> str:
    return f"{microseconds:.0f} µs" if microseconds < 1000 else f"{microseconds / 1000:.1f} ms"


def _rectangle(x: float, y: float, width: float, height: float, name: str) -> str:
    place = f'x="{x:.0f}" y="{y:.0f}" width="{width:.1f}" height="{height}"'
    return f'<rect {place} fill="{_COLOURS[name]}"/>'


def _text(
    x: float, y: float, said: str, *, size: int = 13, weight: str = "normal", colour: str = "#111827"
) -> str:
    style = f'font-size="{size}" font-weight="{weight}" fill="{colour}"'
    return f'<text x="{x:.0f}" y="{y:.0f}" {style}>{escape(said)}</text>'


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(draw(Figures.read(Path(sys.argv[1]))))
