"""The pictures of `python -m benchmarks.routing.pictures`: TTFT over rate."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.picking.figures import Figures as PickingFigures
from benchmarks.picking.plot import draw
from benchmarks.routing import pictures
from benchmarks.routing.figures import Answer, Figures
from benchmarks.routing.results import VirtualResult
from tests.in_process import run_here

_SVG = "{http://www.w3.org/2000/svg}"


def runs(arm: str, ttft_by_rate: dict[float, float]) -> list[VirtualResult]:
    """Two seeds, of which the second takes twice as long."""
    found = []
    for rate, ttft in ttft_by_rate.items():
        for seed in (0, 1):
            figures = Figures.of([Answer(0.0, ttft * (1 + seed), 50.0, "w0", 1, 0)])
            found.append(VirtualResult("shared, Zipf", arm, seed, rate, None, figures))
    return found


def test_a_line_shows_medians_and_leaves_the_picture_where_it_is_cut_off() -> None:
    drawn = pictures.draw(
        "shared, Zipf", [*runs("oracle", {5.0: 0.2, 10.0: 0.4}), *runs("round robin", {5.0: 5.0, 10.0: 90.0})]
    )
    root = ET.fromstring(drawn)
    lines = [one.attrib["points"].split() for one in root.iter(f"{_SVG}polyline")]
    heights = [[float(point.split(",")[1]) for point in line] for line in lines]
    oracle, turns = heights
    assert oracle[0] > oracle[1] > turns[0] > turns[1] == 64.0
    said = [one.text for one in root.iter(f"{_SVG}text")]
    assert {"oracle", "round robin", "requests a second, over all workers", "1 s"} <= set(said)
    assert any("median and range of 2 seeds" in (text or "") for text in said)


class Picture:
    """What was drawn, by what people see of it."""

    def __init__(self, drawn: str) -> None:
        root = ET.fromstring(drawn)
        self.said = {one.text: one.attrib for one in root.iter(f"{_SVG}text")}
        self.lines = list(root.iter(f"{_SVG}polyline"))
        self.straight = [one.attrib for one in root.iter(f"{_SVG}line")]

    def height(self, tick: str) -> float:
        """That of the line beside a tick's text, which stands 4 lower than it."""
        return float(self.said[tick]["y"]) - 4

    def bars(self, colour: str) -> list[tuple[float, float]]:
        """Upright lines of that colour: where they begin and end."""
        return [
            (float(one["y1"]), float(one["y2"]))
            for one in self.straight
            if one["stroke"] == colour and one["x1"] == one["x2"]
        ]

    def legend(self, arm: str) -> str:
        """The colour beside the arm's name."""
        (found,) = [
            one["stroke"] for one in self.straight if float(one["y1"]) == float(self.said[arm]["y"]) - 4
        ]
        return found


def test_points_stand_over_their_rates_at_the_height_of_their_seconds() -> None:
    # medians of two seeds: 1 s and 1.5 s
    drawn = Picture(pictures.draw("long tail", runs("oracle", {10.0: 1.0, 5.0: 2 / 3})))
    (line,) = drawn.lines
    points = [[float(number) for number in point.split(",")] for point in line.attrib["points"].split()]
    assert points[0][0] + 100 < points[1][0]
    assert [x for x, _ in points] == [float(drawn.said[rate]["x"]) for rate in ("5", "10")]
    assert points[0][1] == pytest.approx(drawn.height("1 s"), abs=0.2)
    assert drawn.height("2 s") < points[1][1] < drawn.height("1 s")
    bar = drawn.bars(line.attrib["stroke"])[1]
    assert bar == pytest.approx((drawn.height("1 s"), drawn.height("2 s")), abs=0.2)
    assert "Time to first token over rate: long tail" in drawn.said


def test_a_line_has_the_colour_of_its_name() -> None:
    both = {arm: runs(arm, {5.0: 0.2, 10.0: 0.4}) for arm in ("round robin", "oracle")}
    drawn = Picture(pictures.draw("long tail", [*both["round robin"], *both["oracle"]]))
    assert [one.attrib["stroke"] for one in drawn.lines] == [
        drawn.legend("oracle"),
        drawn.legend("round robin"),
    ]
    assert drawn.legend("oracle") != drawn.legend("round robin")


def test_what_has_no_colour_or_no_rate_is_left_out(tmp_path: Path) -> None:
    given = runs("oracle", {5.0: 0.2, 10.0: 0.4}) + runs("random", {5.0: 0.3, 10.0: 0.4})
    given += [replace(one, workload="fan-out", rate=None) for one in given]
    (tmp_path / "runs.jsonl").write_text("".join(one.line() + "\n" for one in given))
    pictures.draw_all(tmp_path / "runs.jsonl", tmp_path / "pictures")
    (picture,) = (tmp_path / "pictures").iterdir()
    assert "random" not in Picture(picture.read_text()).said


def test_one_rate_is_no_line() -> None:
    with pytest.raises(ValueError, match="it takes two at least"):
        pictures.draw("shared, Zipf", runs("oracle", {5.0: 0.2}))


def test_each_workload_gets_a_file_of_its_name(tmp_path: Path) -> None:
    both = runs("oracle", {5.0: 0.2, 10.0: 0.4})
    both += [replace(one, workload="long tail") for one in both]
    (tmp_path / "runs.jsonl").write_text("".join(one.line() + "\n" for one in both))
    pictures.draw_all(tmp_path / "runs.jsonl", tmp_path / "pictures")
    assert {one.name for one in (tmp_path / "pictures").iterdir()} == {
        "ttft-long-tail.svg",
        "ttft-shared-zipf.svg",
    }


@pytest.mark.parametrize(
    ("arguments", "said"), [((), "usage"), (("absent.jsonl", "pictures"), "no runs at several rates")]
)
def test_a_mistake_is_named(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    arguments = tuple(str(tmp_path / one) for one in arguments)
    found = run_here(pictures.main, *arguments)
    assert found.returncode == 1
    assert said in found.stderr


ROOT = Path(__file__).parents[2]


def test_the_committed_picture_is_of_the_committed_figures() -> None:
    drawn = draw(PickingFigures.read(ROOT / "benchmarks" / "picking.json"))
    assert drawn == (ROOT / "docs" / "picking.svg").read_text()


def test_it_says_its_scales_the_endpoints_and_the_threads() -> None:
    drawn = (ROOT / "docs" / "picking.svg").read_text()
    assert "Each group has a scale of its own" in drawn
    assert "Go picker (GOMAXPROCS 1)" in drawn
    for work in ("1 KB, 32 in flight<", "1 KB, one at a time<", "1 KB, 32 in flight, 3 endpoints<"):
        assert work in drawn
