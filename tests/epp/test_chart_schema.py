"""What the charts let through is what the code knows."""

import json
from pathlib import Path

from epp.scraping.engines import ENGINES

CHARTS = Path(__file__).parents[2] / "charts"


def test_the_worker_chart_takes_the_engines_that_the_picker_knows() -> None:
    schema = json.loads((CHARTS / "worker" / "values.schema.json").read_text())
    known = {engine.name for engine in ENGINES}
    assert set(schema["properties"]["engine"]["enum"]) == {"", *known}
    comments = (CHARTS / "worker" / "values.yaml").read_text().split()
    assert known <= {word.strip(".,") for word in comments}
