"""`make demo-batch`, shorter: its own claims are the assertions."""

import xml.etree.ElementTree as ET
from pathlib import Path

from tests.stories.demo_batch import PLOT, demo, left


async def test_the_demo_claims_nothing_that_did_not_hold(tmp_path: Path) -> None:
    """No answer is ever lost; how the users fared may be a busy machine's doing, but not in each of three runs."""
    for _ in range(3):
        async with demo(tmp_path, "--port", "0", "--requests", "300", "--alone", "2") as process:
            printed, _ = await process.communicate()
        output = printed.decode()
        assert "✓ every batch request was answered, and once: 300 answers to 300 requests" in output, output
        assert "✓ the broker counted the same: submitted 300, succeeded 300" in output, output
        assert output.count("✓") + output.count("✗") == 6
        assert (process.returncode == 0) is ("✗" not in output)
        assert "without batch" in output
        assert "with batch" in output
        ET.parse(tmp_path / PLOT)
        assert not left(tmp_path)
        if process.returncode == 0:
            return
    raise AssertionError(output)
