"""The alert rules of `charts/`, with their expressions as they are and a short `for`."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import yaml

from examples.dashboards.prometheus import Prometheus
from tests.eventually import asked_until, eventually

ROOT: Final = Path(__file__).parents[2]
RULES: Final = tuple(sorted((ROOT / "charts").glob("*/alerts/*.yaml")))
SCRAPE_SECONDS: Final = 2
_FOR: Final = "5s"
"""In place of minutes. A page that comes late once, on a busy machine, is no fault."""
_QUIET_SECONDS: Final = 8.0


def rules_of(path: Path) -> list[dict[str, Any]]:
    document = yaml.safe_load(path.read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def alerts_of(*stems: str) -> set[str]:
    """The names of the alerts in the files of that name."""
    return {rule["alert"] for path in RULES if path.stem in stems for rule in rules_of(path)}


def shortened(place: Path, *stems: str) -> list[Path]:
    """Copies of these files in which an alert waits no longer than `_FOR`."""
    copies = []
    for path in RULES:
        if path.stem not in stems:
            continue
        document = yaml.safe_load(path.read_text())
        for rule in (rule for group in document["groups"] for rule in group["rules"]):
            if "for" in rule:
                rule["for"] = _FOR
        copy = place / f"{path.stem}-rules.yaml"
        copy.write_text(yaml.safe_dump(document))
        copies.append(copy)
    return copies


class Alarm:
    """Records which alerts were fired, each by its fault."""

    def __init__(self, prometheus: Prometheus) -> None:
        self.fired: set[str] = set()
        self._prometheus = prometheus
        self._apart: frozenset[str] = frozenset()

    async def quiet(self, *, apart: frozenset[str] = frozenset()) -> None:
        """Fails unless at last nothing fires for some seconds: a page that comes late is a reason for a moment. `apart`: alerts
        that a busy machine alone is reason enough for."""
        self._apart = apart
        await eventually(self._has_scraped)
        since = time.monotonic()
        firing: set[str] = set()

        async def stays_quiet() -> bool:
            nonlocal since, firing
            firing = await self._prometheus.firing() - apart
            if firing:
                since = time.monotonic()
            await asyncio.sleep(0.5)
            return time.monotonic() - since > _QUIET_SECONDS

        try:
            await eventually(stays_quiet)
        except AssertionError:
            raise AssertionError(f"{firing} fires in a sound pool") from None

    async def fires(self, *names: str, by: Callable[[], Awaitable[object]]) -> None:
        """The fault `by` makes these alerts fire, none of which did before."""
        missing = set(names)
        try:
            await asked_until(self._prometheus.firing, lambda found: not (found - self._apart) & missing)
        except AssertionError:
            raise AssertionError(f"an earlier fault was enough for one of {names}") from None
        await by()

        async def all_fire() -> bool:
            missing.difference_update(await self._prometheus.firing())
            return not missing

        try:
            await eventually(all_fire)
        except AssertionError:
            raise AssertionError(f"{missing} did not fire") from None
        self.fired.update(names)

    async def _has_scraped(self) -> bool:
        """Whether every page came several times: before, its metrics are absent."""
        pages = await self._prometheus.query("sum_over_time(up[1m])")
        return bool(pages) and all(one.points[-1][1] >= 5 for one in pages)
