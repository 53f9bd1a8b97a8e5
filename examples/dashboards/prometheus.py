"""Starts a Prometheus that scrapes metrics pages, and asks it."""

import asyncio
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from adsum.tasks import ResourceOwner
from examples.demo.processes import DemoError, DemoProcess
from examples.ports import free_port

_READY_TIMEOUT: Final = 90.0
SCRAPE_SECONDS: Final = 1
"""Between two scrapes, where nobody says otherwise."""


@dataclass(frozen=True, slots=True)
class TimeSeries:
    """One series of an answer: its labels, and points of Unix time and value."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


class PrometheusError(Exception):
    """Prometheus refused a query; the text is its own."""


class Prometheus(ResourceOwner):
    """Entering starts it; leaving terminates it. `pages`: job → `host:port`, or `host:port/path`. `every`: seconds between two
    scrapes, and between two evaluations of the `rules`.

    Raises DemoError if there is no Prometheus or it does not start.
    """

    def __init__(
        self, root: Path, pages: Mapping[str, str], rules: Sequence[Path] = (), *, every: int = SCRAPE_SECONDS
    ) -> None:
        self._root = root
        self._pages = pages
        self._rules = rules
        self._every = f"{every}s"
        self._url = ""
        self._session: aiohttp.ClientSession | None = None

    async def query(self, query: str) -> list[TimeSeries]:
        """What the query gives now. Raises PrometheusError."""
        found = await self._get("query", {"query": query})
        return [TimeSeries(one["metric"], [_point(one["value"])]) for one in _series(found)]

    async def query_range(self, query: str, start: float, end: float, step: float) -> list[TimeSeries]:
        """What the query gives at each step, in Unix time. Raises PrometheusError."""
        asked = {"query": query, "start": f"{start}", "end": f"{end}", "step": f"{step}"}
        found = await self._get("query_range", asked)
        return [
            TimeSeries(one["metric"], [_point(value) for value in one["values"]]) for one in _series(found)
        ]

    async def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        found = await self._get("alerts", {})
        return {one["labels"]["alertname"] for one in found["alerts"] if one["state"] == "firing"}

    async def _open(self) -> None:
        program = shutil.which("prometheus")
        if program is None:
            raise DemoError("there is no `prometheus` on PATH: install Debian's package prometheus")
        address = f"127.0.0.1:{free_port()}"
        self._url = f"http://{address}/api/v1"
        config = self._root / "prometheus.yaml"
        config.write_text(json.dumps(self._document()))
        options = (
            f"--config.file={config}",
            f"--storage.tsdb.path={self._root / 'prometheus'}",
            f"--web.listen-address={address}",
            "--log.level=warn",
        )
        process = await DemoProcess.start("prometheus", [program, *options], self._root, prints_ready=False)
        self._stack.push_async_callback(process.terminate)
        session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60.0))
        self._session = await self._stack.enter_async_context(session)
        try:
            async with asyncio.timeout(_READY_TIMEOUT):
                while not await self._is_ready(f"http://{address}/-/ready"):
                    if not process.alive:
                        raise process.exit_error()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise DemoError(f"Prometheus does not answer:\n{process.log_tail()}") from None

    def _document(self) -> dict[str, Any]:
        """The configuration file: what is scraped how often, and the rules."""
        every = self._every
        jobs = [_job(name, *page.partition("/")[::2]) for name, page in self._pages.items()]
        return {
            "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
            "rule_files": [str(rules) for rules in self._rules],
            "scrape_configs": jobs,
        }

    async def _is_ready(self, url: str) -> bool:
        assert self._session is not None
        try:
            async with self._session.get(url) as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    async def _get(self, what: str, asked: Mapping[str, str]) -> dict[str, Any]:
        assert self._session is not None
        async with self._session.get(f"{self._url}/{what}", params=asked) as answer:
            document: dict[str, Any] = await answer.json()
        if document["status"] != "success":
            raise PrometheusError(f"{document.get('error')}: {asked.get('query')}")
        data: dict[str, Any] = document["data"]
        return data


def _job(name: str, address: str, path: str) -> dict[str, Any]:
    return {
        "job_name": name,
        "metrics_path": f"/{path or 'metrics'}",
        "static_configs": [{"targets": [address]}],
    }


def _series(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Of an answer; a scalar counts as one series without labels."""
    if found["resultType"] == "scalar":
        return [{"metric": {}, "value": found["result"]}]
    result: list[dict[str, Any]] = found["result"]
    return result


def _point(value: Sequence[Any]) -> tuple[float, float]:
    at, text = value
    return float(at), float(text)
