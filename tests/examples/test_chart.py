"""The pictures are well-formed, and every point is where it belongs."""

import re
import xml.etree.ElementTree as ET

import pytest

from examples.chart import Band, Kind, Mark, Panel, Series, chart

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
