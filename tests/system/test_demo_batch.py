"""`make demo-batch`, shorter: its own claims are the assertions."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.stories.demo_batch import PLOT, demo, ended, left


@pytest.mark.timeout(120)
async def test_the_demo_claims_nothing_that_did_not_hold(tmp_path: Path) -> None:
    async with demo(tmp_path, "--port", "0", "--requests", "300", "--alone", "2") as process:
        code, output = await ended(process)
    assert code == 0, output
    assert "✗" not in output
    assert output.count("✓") == 6
    assert "300 answers to 300 requests, 0 without, 0 with two" in output
    assert "without batch" in output
    assert "with batch" in output
    ET.parse(tmp_path / PLOT)
    assert not left(tmp_path)
