"""Reads one number from a metrics page in Prometheus' text format."""

import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Final

import aiohttp

from adsum.prometheus_page import has_labels, match_sample, name_ends
from dispatcher.broker.capacity.budget import parse_decimal
from dispatcher.gates.credentials import GateSourceError, SourceCredentials
from dispatcher.gates.metering.fetch import FetchedPage, fetch, sample_age
from dispatcher.gates.metering.target_source import Sample

_MAX_LINES: Final = 20_000
"""Lines that begin with the metric's name, including longer names: parsing blocks the event loop."""


class MetricsPageReader:
    """Reads the sum of several metrics; `combine` reduces the samples of one metric that have the labels.

    `absent`: the value of a metric without samples; None: that is an error.
    """

    def __init__(
        self,
        page: "MetricsPage",
        metrics: Sequence[str],
        labels: Mapping[str, str],
        combine: Callable[[Iterable[Fraction]], Fraction],
        absent: Fraction | None = None,
    ) -> None:
        self._page = page
        self._metrics = metrics
        self._labels = labels
        self._combine = combine
        self._absent = absent

    async def read(self) -> Sample:
        page = await self._page.read()
        total, age = Fraction(0), 0.0
        for metric in self._metrics:
            found = list(samples(page.body, metric, self._labels))
            if not found and self._absent is None:
                raise GateSourceError(f"the page has no {metric} with the labels {dict(self._labels)}")
            total += self._combine(value for value, _ in found) if found else self._absent or Fraction(0)
            age = max([age, *(sample_age(at / 1000, page.served_at) for _, at in found if at is not None)])
        return Sample(total, age)


class MetricsPage:
    """A metrics page at a URL."""

    def __init__(self, session: aiohttp.ClientSession, url: str, credentials: SourceCredentials) -> None:
        self._session = session
        self._url = url
        self._access = credentials
        self._tls: ssl.SSLContext | bool = credentials.tls()

    async def read(self) -> FetchedPage:
        """Raises GateSourceError."""
        return await fetch(self._session, self._url, self._access, tls=self._tls)


def samples(page: bytes, metric: str, labels: Mapping[str, str]) -> Iterator[tuple[Fraction, int | None]]:
    """Value and time (Unix milliseconds, if the page has it) of each sample that has the labels.

    Raises GateSourceError if one of them is malformed or negative: a sum without it would be a wrong load.
    """
    key = b"\n" + metric.encode()
    if page.count(key) + page.startswith(key[1:]) > _MAX_LINES:
        raise GateSourceError(f"more than {_MAX_LINES} lines begin with {metric}")
    for start in name_ends(page, key, _MAX_LINES):
        newline = page.find(b"\n", start)
        stop = newline if newline >= 0 else len(page)
        found = match_sample(page, start, stop)
        behind = b"" if found is None else page[found.end() : stop].lstrip(b" \t\r")
        if found is None or (behind and not behind.startswith(b"#")):
            rest = page[start : min(stop, start + 40)].decode(errors="replace")
            raise GateSourceError(f"a line of {metric} is no sample, after the name it has {rest!r}")
        inside, number, time = found.groups(b"")
        if not has_labels(inside, labels):
            continue
        text = number.decode(errors="replace")
        value = parse_decimal(text)
        if value is None or value < 0:
            raise GateSourceError(f"{metric} is {text[:40]}, expected a finite number from 0 on")
        yield value, int(time) if time else None
