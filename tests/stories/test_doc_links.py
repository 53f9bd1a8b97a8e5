"""Every link in a page of the docs leads to a file and to a heading in it; the reference has every public name."""

import re
from pathlib import Path
from types import ModuleType

import pytest

import discovery
import registry

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")],
    key=lambda page: page.as_posix(),
)
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(page: Path) -> set[str]:
    """Returns the fragments that GitHub derives from the headings of a page."""
    without_code = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", without_code, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    for path, fragment in _LINK.findall(page.read_text()):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{path} does not exist"
        if target.suffix == ".png":  # GitHub and the site show one of two pictures, by the reader's theme
            assert fragment in ("", "gh-light-mode-only", "gh-dark-mode-only"), f"{path}#{fragment}"
        else:
            assert not fragment or fragment in anchors(target), f"{path} has no heading #{fragment}"


def test_every_page_is_one_click_from_the_start_page() -> None:
    start = ROOT / "docs" / "index.md"
    linked = {start.parent / path for path, _ in _LINK.findall(start.read_text())}
    assert set((ROOT / "docs").glob("*.md")) - {start} <= linked
    assert "](docs/index.md" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("package", [discovery, registry], ids=lambda package: package.__name__)
def test_the_reference_has_all_public_names(package: ModuleType) -> None:
    """They stand in the order in which a reader needs them."""
    text = (ROOT / "docs" / "reference" / f"{package.__name__}-api.md").read_text()
    assert sorted(re.findall(r"^        - (\w+)$", text, re.MULTILINE)) == sorted(package.__all__)
