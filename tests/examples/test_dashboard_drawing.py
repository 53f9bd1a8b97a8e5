"""The pictures of dashboards: well-formed, every point where it belongs, and every panel drawn."""

import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.chart import Band, Kind, Mark, Panel, Series, chart
from examples.dashboards.dashboard import DASHBOARDS, Target, read
from examples.dashboards.drawing import TimeRange, draw
from examples.dashboards.prometheus import TimeSeries
from examples.dashboards.scale import all_text, text, ticks

SPAN = TimeRange(100.0, 160.0, 1.0)
DRAWN = "{http://www.w3.org/2000/svg}"


@given(st.floats(0, 1e9), st.floats(1e-6, 1e9))
def test_an_axis_reaches_as_far_as_its_values(lowest: float, span: float) -> None:
    marks = ticks(lowest, lowest + span)
    assert marks[0] == lowest
    assert marks[-1] >= lowest + span * 0.999
    assert len(marks) <= 6


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.125, "percentunit", "12.5 %"),
        (0.0018, "s", "1.8 ms"),
        (250, "ms", "250 ms"),
        (90, "s", "90 s"),
        (300, "s", "5 min"),
        (12.34, "reqps", "12.3 req/s"),
        (20_000, "short", "20 K"),
        (3_500_000, "short", "3.5 M"),
        (0, "s", "0 s"),
    ],
)
def test_numbers_have_units_that_fit(value: float, unit: str, shown: str) -> None:
    assert text(value, unit) == shown


def test_the_labels_of_an_axis_have_one_unit() -> None:
    assert all_text([0, 0.5, 1.0, 1.5], "s") == ["0", "0.5 s", "1 s", "1.5 s"]
    assert all_text([0, 5, 10], "ms") == ["0", "5 ms", "10 ms"]


def test_the_variables_of_a_query_select_everything() -> None:
    asked = Target('rate(m{job=~"$job"}[$__rate_interval])', "").asked("5s")
    assert asked == 'rate(m{job=~".*"}[5s])'


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: str(path.stem))
@pytest.mark.parametrize("count", [0, 1, 3, 30])
def test_every_panel_is_drawn(path: Path, count: int) -> None:
    dashboard = read(path)
    points = [(100.0 + second, second % 7 / 3) for second in range(60) if second % 20]
    points[3] = (points[3][0], math.nan)
    labels = {"queue_id": "<q & a>", "model_server_endpoint": "worker-1", "instance": "x" * 300}
    series = [TimeSeries(labels, points) for _ in range(count)]
    answers = {target.query: series for panel in dashboard.panels for target in panel.targets}
    picture = ET.fromstring(draw(dashboard, answers, SPAN, "a note"))
    shown = [element.text for element in picture.iter(f"{DRAWN}text")]
    for panel in dashboard.panels:
        assert panel.title in shown
    assert ("no data" in shown) is (count == 0)
    right = float(picture.attrib["width"])
    for element in picture.iter(f"{DRAWN}text"):
        assert 0 <= float(element.attrib["x"]) < right


SVG = "{http://www.w3.org/2000/svg}"


def paths(text: str, color: str) -> list[str]:
    """The outlines that are drawn in that color."""
    found = [path for path in ET.fromstring(text).iter(f"{SVG}path") if color in path.attrib.values()]
    return [path.attrib["d"] for path in found]


def panel(kind: Kind, *points: tuple[float, float]) -> Panel:
    return Panel("a panel", 4.0, [Series("s", "#123456", kind, points)])


def test_names_are_escaped_and_shown() -> None:
    names = ["a < b", "c & d", "e > f", 'g "h"']
    text = chart(
        names[0],
        [Panel(names[1], 1.0, [Series(names[2], "red", Kind.LINE, [])], [Band(names[3], "blue", 0.5, 1.0)])],
        10.0,
        [Mark(5.0, "i'j")],
    )
    shown = [element.text for element in ET.fromstring(text).iter(f"{SVG}text")]
    assert {*names, "i'j"} <= set(shown)


@pytest.mark.parametrize(
    ("kind", "outline"),
    [
        (Kind.LINE, r"M56\.0 (\S+)L470\.0 (\S+)L884\.0 (\S+)"),
        (Kind.STEPS, r"M56\.0 (\S+)H470\.0V(\S+)H884\.0V(\S+)"),
        (Kind.AREA, r"M56\.0 (\S+)L470\.0 (\S+)L884\.0 ([0-9.]+)V\S+H56\.0Z"),
        (Kind.DASHES, r"M56\.0 (\S+)L470\.0 (\S+)L884\.0 (\S+)"),
    ],
)
def test_a_series_runs_over_the_whole_width_and_to_scale(kind: Kind, outline: str) -> None:
    text = chart("t", [panel(kind, (0.0, 0.0), (5.0, 2.0), (10.0, 4.0))], 10.0)
    *_, drawn = paths(text, "#123456")
    found = re.fullmatch(outline, drawn)
    assert found is not None, drawn
    bottom, middle, top = map(float, found.groups())
    assert bottom - middle == middle - top == 85.0


def test_what_is_out_of_range_stays_inside() -> None:
    text = chart("t", [panel(Kind.LINE, (-1.0, -1.0), (11.0, 5.0))], 10.0)
    inside = chart("t", [panel(Kind.LINE, (0.0, 0.0), (10.0, 4.0))], 10.0)
    assert paths(text, "#123456") == paths(inside, "#123456")


@pytest.mark.parametrize(("seconds", "shown"), [(3.0, ["0 s", "1 s", "2 s", "3 s"]), (65.0, ["0 s", "5 s"])])
def test_the_seconds_are_shown_but_not_too_many(seconds: float, shown: list[str]) -> None:
    texts = [
        element.text for element in ET.fromstring(chart("t", [panel(Kind.LINE)], seconds)).iter(f"{SVG}text")
    ]
    ticks = [text for text in texts if text is not None and re.fullmatch(r"\d+ s", text)]
    assert ticks[: len(shown)] == shown
    assert len(ticks) <= 15
