"""The picture of the comparison says by itself what it compares."""

from pathlib import Path

from benchmarks.picking.figures import Figures
from benchmarks.picking.plot import draw

ROOT = Path(__file__).parents[2]


def test_the_committed_picture_is_of_the_committed_figures() -> None:
    drawn = draw(Figures.read(ROOT / "benchmarks" / "picking.json"))
    assert drawn == (ROOT / "docs" / "picking.svg").read_text()


def test_it_says_its_scales_the_endpoints_and_the_threads() -> None:
    drawn = (ROOT / "docs" / "picking.svg").read_text()
    assert "Each group has a scale of its own" in drawn
    assert "Go picker (GOMAXPROCS 1)" in drawn
    for work in ("1 KB, 32 in flight<", "1 KB, one at a time<", "1 KB, 32 in flight, 3 endpoints<"):
        assert work in drawn
