"""The play as a picture: how full the pool was, what the budget said, what was sent."""

from collections.abc import Iterator

from examples.chart import Band, Kind, Mark, Panel, Point, Series, chart
from examples.demo_batch.summary import Play

_BATCH, _INTERACTIVE, _BUDGET, _LINE = "#f0a35e", "#3f7fbf", "#4a9a62", "#b3261e"
_FREE = "#f3e8e7"


def picture(play: Play) -> str:
    """As SVG."""
    title = f"{play.requests} batch requests beside interactive users, {play.capacity} places"
    seconds = play.samples[-1].at - play.begun
    marks = [
        Mark(play.submitted - play.begun, "the batch begins"),
        Mark(play.answered - play.begun, "all answered"),
    ]
    return chart(title, [_saturation(play), _budget(play), _dispatches(play)], seconds, marks)


def _saturation(play: Play) -> Panel:
    share = play.line / play.capacity
    everybody = [(s.at - play.begun, s.load / play.capacity) for s in play.samples]
    users = [(s.at - play.begun, min(s.interactive, s.load) / play.capacity) for s in play.samples]
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


def _budget(play: Play) -> Panel:
    points = [(s.at - play.begun, s.budget) for s in play.samples]
    return Panel(
        "Dispatch budget of the gate: max(0, D - B)",
        1.0,
        [Series("budget", _BUDGET, Kind.STEPS, points)],
        percent=True,
    )


def _dispatches(play: Play) -> Panel:
    points = list(_rates(play))
    top = max((rate for _, rate in points), default=1.0)
    return Panel("Dispatches a second", -(-top // 40) * 40.0, [Series("sent", _BATCH, Kind.STEPS, points)])


def _rates(play: Play) -> Iterator[Point]:
    """Over half a second each."""
    before = play.samples[0]
    for sample in play.samples:
        if sample.at - before.at >= 0.5:
            yield before.at - play.begun, (sample.sent - before.sent) / (sample.at - before.at)
            before = sample
