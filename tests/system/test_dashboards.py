"""Every query of the dashboards in `charts/`, asked of a real Prometheus that scraped a real run."""

import asyncio
import math
import re
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

from adsum.tasks import cancel_and_wait
from examples.dashboards.dashboard import DASHBOARDS, read
from examples.dashboards.prometheus import TimeSeries
from examples.dashboards.stage import Stage
from tests.eventually import eventually

_WITHIN = 300.0
"""Seconds for a run of 36 seconds and the questions about it."""


def has_points(found: list[TimeSeries]) -> bool:
    return any(math.isfinite(value) for series in found for _, value in series.points)


def labels_missing(legend: str, found: list[TimeSeries]) -> set[str]:
    """The labels that the legend names and no series has."""
    named = set(re.findall(r"\{\{(\w+)\}\}", legend))
    return {label for label in named if not any(label in series.labels for series in found)}


async def test_every_panel_shows_what_a_real_run_did(tmp_path: Path) -> None:
    queries = {
        (path.stem, panel.title, target)
        for path in DASHBOARDS
        for panel in read(path).panels
        for target in panel.targets
    }
    assert len(queries) > 80
    async with Stage(tmp_path) as stage:
        began = time.time()
        running = asyncio.create_task(stage.run(36))

        async def all_answered() -> bool:
            for key in list(queries):
                target = key[2]
                now = time.time()
                found = await stage.prometheus.query_range(target.asked("10s"), began, now, 1)
                if has_points(found) and not labels_missing(target.legend, found):
                    queries.discard(key)
            if running.done():
                running.result()
            return not queries

        try:
            await eventually(all_answered, _WITHIN)
        except AssertionError as error:
            raise AssertionError(f"no points, or not with the legend's labels: {queries}") from error

        async def both_read() -> bool:
            readers = await stage.prometheus.query("adsum_discovery_synced == 1")
            return {one.labels["job"] for one in readers} == {"picker", "discovery"}

        await eventually(both_read)
        await cancel_and_wait(running)


async def test_the_pictures_are_drawn_from_a_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.dashboards", "--seconds", "3", "--out", str(tmp_path)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.communicate()
    assert process.returncode == 0
    pictures = [Path(line) for line in said.decode().splitlines()]
    assert [picture.name for picture in pictures] == [f"dashboard-{path.stem}.svg" for path in DASHBOARDS]
    for picture in pictures:
        text = picture.read_text()
        ET.fromstring(text)
        assert "<path" in text
