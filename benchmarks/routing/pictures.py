"""`python -m benchmarks.routing.pictures RESULTS FOLDER`: TTFT over rate as SVG, from what `--rate ... --out RESULTS` wrote."""

import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from benchmarks.routing import results
from benchmarks.routing.results import VirtualResult

COLOURS: Final = {
    "least cost": "#1d4ed8", "oracle": "#6b7280", "the Go picker's weights": "#d97706",
    "the Go picker's sticky configuration": "#b91c1c",
    "the Go picker, sticky": "#f472b6", "bounded hashing": "#0f766e", "blocks in use": "#7c3aed", "round robin": "#9ca3af",
}  # fmt: skip
_DASHES: Final = {"oracle": "6 4", "round robin": "2 3"}
_LEFT, _TOP, _WIDTH, _HEIGHT = 64, 64, 480, 300
_SECONDS: Final = (0.1, 30.0)
"""The same in all pictures."""
_TICKS: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)


def draw(workload: str, runs: Sequence[VirtualResult]) -> str:
    """Medians of the mean TTFT as lines, and ranges over the seeds as bars. ValueError if there are not two rates."""
    found = _by_arm(runs)
    rates = sorted({rate for points in found.values() for rate in points})
    if len(rates) < 2:
        raise ValueError(
            f"{workload!r} has runs with {len(rates)} rates; it takes two at least to draw TTFT over rate"
        )
    seeds = len({one.seed for one in runs})
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 440" font-family="sans-serif" font-size="12" fill="#111827">',
        '<rect width="760" height="440" fill="#ffffff"/>',
        _text(16, 26, f"Time to first token over rate: {workload}", size=16),
        _text(16, 46, "mean TTFT in seconds, on a logarithmic scale; lower is better"),
        *_axes(rates),
    ]
    for number, (arm, points) in enumerate(found.items()):
        parts += [*_line(arm, points, rates), *_legend(arm, number)]
    said = f"Virtual time, five simulated workers, median and range of {seeds} seeds; above 30 s a line leaves the picture."
    parts += [_text(16, 430, said, colour="#6b7280"), "</svg>"]
    return "\n".join(parts) + "\n"


def _by_arm(runs: Sequence[VirtualResult]) -> Mapping[str, Mapping[float, list[float]]]:
    found: dict[str, dict[float, list[float]]] = {}
    for one in sorted(runs, key=lambda run: (list(COLOURS).index(run.arm), run.rate or 0.0, run.seed)):
        found.setdefault(one.arm, {}).setdefault(one.rate or 0.0, []).append(one.figures.ttft)
    return found


def _x(rate: float, rates: Sequence[float]) -> float:
    return _LEFT + _WIDTH * (rate - rates[0]) / (rates[-1] - rates[0])


def _y(seconds: float) -> float:
    least, most = (math.log(bound) for bound in _SECONDS)
    return _TOP + _HEIGHT * (most - math.log(max(seconds, _SECONDS[0]))) / (most - least)


def _axes(rates: Sequence[float]) -> Iterator[str]:
    for seconds in _TICKS:
        y = _y(seconds)
        yield f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e7eb"/>'
        yield _text(_LEFT - 8, y + 4, f"{seconds:g} s", anchor="end")
    bottom = _TOP + _HEIGHT
    yield f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{bottom}" y2="{bottom}" stroke="#111827"/>'
    for rate in rates:
        yield _text(_x(rate, rates), bottom + 18, f"{rate:g}", anchor="middle")
    yield _text(_LEFT + _WIDTH / 2, bottom + 38, "requests a second, over all workers", anchor="middle")


def _line(arm: str, points: Mapping[float, Sequence[float]], rates: Sequence[float]) -> Iterator[str]:
    """Up to the first point above the picture, where the line is cut off at the edge."""
    drawn, paint = [], f'stroke="{COLOURS[arm]}" stroke-width="2" fill="none"'
    before: tuple[float, float] | None = None
    for rate, values in points.items():
        x, middle = _x(rate, rates), _y(statistics.median(values))
        if middle < _TOP:
            if before is not None:
                part = (before[1] - _TOP) / (before[1] - middle)
                drawn.append((before[0] + part * (x - before[0]), float(_TOP)))
            break
        before = x, middle
        drawn.append(before)
        low, high = _y(min(values)), max(_y(max(values)), float(_TOP))
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="{COLOURS[arm]}" opacity="0.4"/>'
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)
    yield f'<polyline points="{places}" {paint} stroke-dasharray="{_DASHES.get(arm, "none")}"/>'


def _legend(arm: str, number: int) -> Iterator[str]:
    x, y = _LEFT + _WIDTH + 20, _TOP + 10 + 22 * number
    dashes = _DASHES.get(arm, "none")
    yield f'<line x1="{x}" x2="{x + 24}" y1="{y}" y2="{y}" stroke="{COLOURS[arm]}" stroke-width="2" stroke-dasharray="{dashes}"/>'
    yield _text(x + 32, y + 4, arm)


def _text(
    x: float, y: float, said: str, *, size: int = 12, anchor: str = "start", colour: str = "#111827"
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"'
    return f"<text {place}>{escape(said)}</text>"


def draw_all(source: Path, folder: Path) -> None:
    """One picture for each workload that ran at several rates; prints their names."""
    runs = [one for one in results.read(source) if one.rate is not None and one.arm in COLOURS]
    if not runs:
        raise ValueError(
            f"{source} has no runs at several rates; make some: benchmarks routing --rate 8 --rate 12 --out {source}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for workload in sorted({one.workload for one in runs}):
        words = "".join(letter if letter.isalnum() else " " for letter in workload.lower()).split()
        picture = folder / f"ttft-{'-'.join(words)}.svg"
        picture.write_text(draw(workload, [one for one in runs if one.workload == workload]))
        print(picture)


def main(arguments: Sequence[str]) -> int:
    try:
        draw_all(Path(arguments[0]), Path(arguments[1]))
    except IndexError:
        raise SystemExit(f"usage: {__doc__}") from None
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: {error}") from error
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
