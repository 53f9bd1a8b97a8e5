"""The pictures of dashboards: their axes, and every panel drawn from answers that a Prometheus could give."""

import math
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
