"""docs/alerts.md has a section for each alert of `charts/`, and each alert names its section."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "alerts.md").read_text()
SECTIONS = dict(re.findall(r"^### (Adsum\w+)\n\n(.*?)(?=^#|\Z)", PAGE, re.DOTALL | re.MULTILINE))
FILES = sorted((ROOT / "charts").glob("*/alerts/*.yaml"))
RULES = [
    rule
    for path in FILES
    for group in yaml.load(path.read_text(), yaml.CSafeLoader)["groups"]
    for rule in group["rules"]
]
DASHBOARDS = sorted((ROOT / "charts").glob("*/dashboards/*.json"))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_each_alert_has_its_section(rule: dict[str, Any]) -> None:
    name, said = rule["alert"], rule["annotations"]
    assert said["runbook_url"] == f"docs/alerts.md#{name.lower()}"
    assert set(said) == {"summary", "description", "runbook_url"}
    section = SECTIONS[name]
    assert section.startswith(f"*{rule['labels']['severity'].capitalize()}.* ")
    assert "\n- Look at: " in section
    assert "\n- Do: " in section


def test_there_is_no_section_too_many() -> None:
    names = [rule["alert"] for rule in RULES]
    assert sorted(names) == sorted(SECTIONS)
    assert len(names) > 20


def test_the_page_lists_every_file() -> None:
    for path in (*FILES, *DASHBOARDS):
        assert f"`{path.relative_to(ROOT)}`" in PAGE


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: str(path.stem))
def test_panels_lie_side_by_side_and_say_what_they_show(path: Path) -> None:
    document = json.loads(path.read_text())
    taken: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        grid = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["description"], panel["title"]
        for target in panel.get("targets", ()):
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    ids = [panel["id"] for panel in document["panels"]]
    assert len(set(ids)) == len(ids)


def test_each_dashboard_has_an_identity_of_its_own() -> None:
    documents = [json.loads(path.read_text()) for path in DASHBOARDS]
    assert len({document["uid"] for document in documents}) == len(documents)
    assert all("adsum" in document["tags"] for document in documents)
