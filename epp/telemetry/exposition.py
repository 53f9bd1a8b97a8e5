"""Renders the metrics page once for all concurrent requests, and caches it for a moment.

A page of 33,000 lines takes half a second and 5 MB; twenty concurrent requests would delay picks by seconds.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import anyio.to_thread
from prometheus_client import Metric, exposition
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

CACHE_FACTOR: Final = 10.0
"""A page is cached this many times as long as it took to render: requests use a tenth of a core at most."""
MAX_CACHE_TIME: Final = 5.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class ExpositionFormat:
    """One syntax of the page, with its encoder."""

    content_type: str
    encode: Callable[[Collector], bytes]


TEXT_FORMAT: Final = ExpositionFormat(exposition.CONTENT_TYPE_PLAIN_0_0_4, exposition.generate_latest)
OPEN_METRICS: Final = ExpositionFormat(openmetrics.CONTENT_TYPE_LATEST, openmetrics.generate_latest)


def negotiate_format(accept: str) -> ExpositionFormat:
    """OpenMetrics 1 if the Accept header names it, else the text format 0.0.4, which every scraper reads.

    Quality values are ignored. There are only two formats, since a page is cached for each.
    """
    # bounded: a header field as aiohttp bounds it: 8,190 bytes
    for one in accept.split(","):
        # bounded: a part of the same
        kind, *parameters = (part.strip().lower() for part in one.split(";"))
        versions = [part.partition("=")[2].strip(' "') for part in parameters if part.startswith("version")]
        if kind == "application/openmetrics-text" and (not versions or versions[0].startswith("1.")):
            return OPEN_METRICS
    return TEXT_FORMAT


class Exposition:
    """`counters` may be read in any thread, `gauges` only on the event loop."""

    def __init__(self, counters: Collector, gauges: Collector) -> None:
        self._counters = counters
        self._gauges = gauges
        self._rendering = asyncio.Lock()
        self._cached: dict[ExpositionFormat, bytes] = {}

    async def page(self, format: ExpositionFormat) -> bytes:
        """The page, new or cached."""
        cached = self._cached.get(format)
        if cached is not None:
            return cached
        async with self._rendering:
            cached = self._cached.get(format)
            return cached if cached is not None else await self._render(format)

    async def _render(self, format: ExpositionFormat) -> bytes:
        started = time.monotonic()
        page = _RenderedPage(self._counters, list(self._gauges.collect()))
        body = self._cached[format] = await anyio.to_thread.run_sync(format.encode, page)
        pause = min(CACHE_FACTOR * (time.monotonic() - started), MAX_CACHE_TIME)
        asyncio.get_running_loop().call_later(pause, self._cached.pop, format, None)
        return body


@dataclass(frozen=True, slots=True)
class _RenderedPage(Collector):
    counters: Collector
    gauges: Sequence[Metric]

    def collect(self) -> Iterator[Metric]:
        yield from self.gauges
        yield from self.counters.collect()
