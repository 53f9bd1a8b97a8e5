"""Reads one number of a target: from an instant query of Prometheus, or from a metrics page in its text format."""

import json
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from fractions import Fraction
from math import isinf
from time import time
from typing import Any, Final, Protocol

import aiohttp

from adsum.addresses import authority
from adsum.prometheus_page import has_labels, match_sample, name_ends
from discovery.metadata.connections import connection_problem
from dispatcher.broker.capacity.budget import parse_decimal
from dispatcher.gates.parameters import GateSourceError, MetricParameters

MAX_BYTES: Final = 8 * 1024 * 1024
"""Bytes of a document."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A number and its age in seconds."""

    value: Fraction
    age: float = 0.0


class SampleReader(Protocol):
    """Reads one number of a target."""

    async def read(self) -> Sample:
        """Take one sample; raises `dispatcher.gates.parameters.GateSourceError` if there is none to be had."""


@dataclass(frozen=True, slots=True)
class FetchedPage:
    """`served_at`: Unix seconds by the server's clock, from its Date header, else by ours."""

    body: bytes
    served_at: float


class WebPage:
    """A page that a source serves; raises OSError if the file of its certificate authorities cannot be read."""

    def __init__(self, session: aiohttp.ClientSession, url: str, source: MetricParameters) -> None:
        self._session = session
        self._url = url
        self._source = source
        self._tls: ssl.SSLContext | bool = source.tls()

    async def read(self, query: Mapping[str, str] | None = None) -> FetchedPage:
        """Raises GateSourceError for any status but 200.

        Redirects are not followed: the bearer token would go to a host that the operator did not name.
        """
        headers = self._source.headers()
        try:
            async with self._session.get(
                self._url, params=query, headers=headers, ssl=self._tls, allow_redirects=False
            ) as answer:
                if answer.status != 200:
                    raise GateSourceError(
                        f"{answer.url.origin()} answered with status {answer.status}, expected 200"
                    )
                return FetchedPage(await _read_body(answer), _served_at(answer.headers.get("Date", "")))
        except aiohttp.ClientConnectorError as error:
            where = authority(error.host, error.port or 0)
            raise GateSourceError(f"{where}: {connection_problem(error)}") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise GateSourceError(str(error) or type(error).__name__) from error


async def _read_body(answer: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > MAX_BYTES:
            raise GateSourceError(f"more than {MAX_BYTES} bytes")
    return bytes(body)


def sample_age(at: float, served_at: float) -> float:
    """Seconds from the Unix time `at` of a sample to when it was served; raises GateSourceError for a time in the future."""
    if not at <= served_at + MAX_CLOCK_SKEW or isinf(at):
        raise GateSourceError(f"its time is {at:.14g}, expected Unix seconds that are not in the future")
    return max(0.0, served_at - at)


MAX_CLOCK_SKEW: Final = 300.0
"""Seconds by which the clock that dated a sample may be ahead of the server's."""


def _served_at(date: str) -> float:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        # email.utils raises all of these for malformed dates
        return time()


MAX_DENOMINATOR: Final = 10**9
"""Prometheus divides in floating point and prints all digits: 0.6666666666666666 was 2/3."""


class PrometheusReader:
    """Reads the first of `queries` that has a sample. A result of several samples is an error: it is unclear which is meant.

    An instant query returns a sample with the time of the query, not of the scrape. So the gate's `lag` must cover the
    time from the target into Prometheus.
    """

    def __init__(self, api: WebPage, queries: Sequence[str]) -> None:
        self._api = api
        self._queries = queries

    async def read(self) -> Sample:
        for query in self._queries:
            document = await self._api.read({"query": query})
            found = _only_sample(document.body)
            if found is not None:
                value, at = found
                return Sample(value, sample_age(at, document.served_at))
        raise GateSourceError(f"Prometheus has no sample of {' nor of '.join(self._queries)}")


def _only_sample(body: bytes) -> tuple[Fraction, float] | None:
    """Value and Unix time of the only sample; None without one."""
    try:
        answer = json.loads(body)
        if answer["status"] != "success":
            raise GateSourceError(f"Prometheus says {answer.get('error', 'no success')!s:.200}")
        time_and_text = _only_point(answer["data"])
        if time_and_text is None:
            return None
        at, text = float(time_and_text[0]), time_and_text[1]
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise GateSourceError(f"not an answer of Prometheus: {type(error).__name__}") from error
    value = parse_decimal(text) if isinstance(text, str) else None
    if value is None:
        raise GateSourceError(f"the sample is {text!s:.40}, expected a finite number")
    return value.limit_denominator(MAX_DENOMINATOR), at


def _only_point(data: dict[str, Any]) -> Any:
    kind, result = data["resultType"], data["result"]
    if kind == "scalar":
        return result
    if kind != "vector":
        raise GateSourceError(f"the query gives a {kind!s:.20}, expected an instant vector or a scalar")
    if len(result) > 1:
        raise GateSourceError(
            f"the query gives {len(result)} samples, expected one: aggregate them, as with max(...)"
        )
    return result[0]["value"] if result else None


_MAX_LINES: Final = 20_000
"""Lines that begin with the metric's name, including longer names: parsing blocks the event loop."""


@dataclass(frozen=True, slots=True)
class MetricsPageReader:
    """Reads the sum of several metrics; `combine` reduces the samples of one metric that have the labels.

    `absent`: the value of a metric without samples; None: that is an error.
    """

    page: WebPage
    metrics: Sequence[str]
    labels: Mapping[str, str]
    combine: Callable[[Iterable[Fraction]], Fraction]
    absent: Fraction | None = None

    async def read(self) -> Sample:
        page = await self.page.read()
        total, age = Fraction(0), 0.0
        for metric in self.metrics:
            found = list(samples(page.body, metric, self.labels))
            if not found and self.absent is None:
                raise GateSourceError(f"the page has no {metric} with the labels {dict(self.labels)}")
            total += self.combine(value for value, _ in found) if found else self.absent or Fraction(0)
            age = max([age, *(sample_age(at / 1000, page.served_at) for _, at in found if at is not None)])
        return Sample(total, age)


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
