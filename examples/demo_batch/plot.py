"""Plots a run: the pool's saturation, the dispatch budget, the dispatches."""

from collections.abc import Iterator

from examples.chart import Band, Kind, Mark, Panel, Point, Series, chart
from examples.demo_batch.summary import BatchRun

_BATCH, _INTERACTIVE, _BUDGET, _LINE = "#f0a35e", "#3f7fbf", "#4a9a62", "#b3261e"
_FREE = "#f3e8e7"


def plot(run: BatchRun) -> str:
    """The plot as SVG text."""
    title = f"{run.requests} batch requests beside interactive users, {run.capacity} places"
    seconds = run.samples[-1].at - run.started
    marks = [
        Mark(run.submitted - run.started, "the batch begins"),
        Mark(run.answered - run.started, "all answered"),
    ]
    return chart(title, [_saturation(run), _budget(run), _dispatches(run)], seconds, marks)


def _saturation(run: BatchRun) -> Panel:
    share = run.line / run.capacity
    everybody = [(s.at - run.started, s.load / run.capacity) for s in run.samples]
    users = [(s.at - run.started, min(s.interactive, s.load) / run.capacity) for s in run.samples]
    line = [(0.0, share), (everybody[-1][0], share)]
    return Panel(
        "Saturation: places of the pool that are taken",
        1.0,
        [
            Series("batch", _BATCH, Kind.AREA, everybody),
            Series("interactive", _INTERACTIVE, Kind.AREA, users),
            Series(f"1 - B = {share:.0%}", _LINE, Kind.DASHES, line),
        ],
        [Band("the baseline, kept free for interactive requests", _FREE, share, 1.0)],
        percent=True,
    )


def _budget(run: BatchRun) -> Panel:
    points = [(s.at - run.started, s.budget) for s in run.samples]
    return Panel(
        "Dispatch budget of the gate: max(0, D - B)",
        1.0,
        [Series("budget", _BUDGET, Kind.STEPS, points)],
        percent=True,
    )


def _dispatches(run: BatchRun) -> Panel:
    points = list(_rates(run))
    top = max((rate for _, rate in points), default=1.0)
    return Panel("Dispatches a second", -(-top // 40) * 40.0, [Series("sent", _BATCH, Kind.STEPS, points)])


def _rates(run: BatchRun) -> Iterator[Point]:
    """Dispatches a second, each measured over at least half a second."""
    before = run.samples[0]
    for sample in run.samples:
        if sample.at - before.at >= 0.5:
            yield before.at - run.started, (sample.sent - before.sent) / (sample.at - before.at)
            before = sample
