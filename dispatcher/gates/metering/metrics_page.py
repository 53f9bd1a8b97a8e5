"""Reads one number from a metrics page in Prometheus' text format."""

import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Final

import aiohttp

from adsum.prometheus_labels import read_labels
from dispatcher.broker.capacity.budget import parse_decimal
from dispatcher.gates.credentials import GateSourceError, SourceCredentials
from dispatcher.gates.metering.fetch import fetch, sample_age
from dispatcher.gates.metering.target_source import Sample

# The page is untrusted. Possessive quantifiers never backtrack, so that the time is linear in the length of a line.
_SAMPLE: Final = re.compile(
    r'[ \t]*+(?:\{(?P<labels>(?:[^"}]++|"(?:[^"\\]++|\\.)*+")*+)\}[ \t]*+)?'
    r"(?P<value>[^\s#{]++)(?:[ \t]++(?P<time>-?[0-9]{1,19}+))?[ \t\r]*+(?:#.*+)?"
)
_MAX_LINE: Final = 64 * 1024
"""Characters of a line after the name."""
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
        text, served_at = await self._page.read()
        total, age = Fraction(0), 0.0
        for metric in self._metrics:
            found = list(samples(text, metric, self._labels))
            if not found and self._absent is None:
                raise GateSourceError(f"the page has no {metric} with the labels {dict(self._labels)}")
            total += self._combine(value for value, _ in found) if found else self._absent or Fraction(0)
            age = max([age, *(sample_age(at / 1000, served_at) for _, at in found if at is not None)])
        return Sample(total, age)


class MetricsPage:
    """A metrics page at a URL."""

    def __init__(self, session: aiohttp.ClientSession, url: str, credentials: SourceCredentials) -> None:
        self._session = session
        self._url = url
        self._access = credentials
        self._tls: ssl.SSLContext | bool = credentials.tls()

    async def read(self) -> tuple[str, float]:
        """Its text, and the Unix time when it was served, in seconds; raises GateSourceError."""
        document = await fetch(self._session, self._url, self._access, tls=self._tls)
        return document.body.decode(errors="replace"), document.served_at


def samples(text: str, metric: str, labels: Mapping[str, str]) -> Iterator[tuple[Fraction, int | None]]:
    """Value and time (Unix milliseconds, if the page has it) of each sample that has the labels.

    Raises GateSourceError if one of them is malformed or negative: a sum without it would be a wrong load.
    """
    for line in _lines(text, metric):
        found = _SAMPLE.fullmatch(line) if len(line) <= _MAX_LINE else None
        if found is None:
            raise GateSourceError(f"a line of {metric} is no sample, after the name it has {line[:40]!r}")
        if not _has_labels(found["labels"] or "", labels):
            continue
        value = parse_decimal(found["value"])
        if value is None or value < 0:
            raise GateSourceError(f"{metric} is {found['value'][:40]}, expected a finite number from 0 on")
        yield value, int(found["time"]) if found["time"] else None


def _lines(text: str, metric: str) -> Iterator[str]:
    """The rest of each line of the metric after its name. Only a line feed ends a line (text format 0.0.4)."""
    page, key = f"\n{text}", f"\n{metric}"
    at = page.find(key)
    for _ in range(_MAX_LINES):
        if at < 0:
            return
        start, at = at + len(key), page.find(key, at + len(key))
        if page[start : start + 1] in _AFTER_NAME:
            newline = page.find("\n", start, start + _MAX_LINE + 1)
            yield page[start : newline if newline >= 0 else start + _MAX_LINE + 1]
    if at >= 0:
        raise GateSourceError(f"more than {_MAX_LINES} lines begin with {metric}")


_AFTER_NAME: Final = frozenset("{ \t\r\n")


def _has_labels(text: str, wanted: Mapping[str, str]) -> bool:
    have = read_labels(text.encode()) if wanted else {}
    return all(have.get(name) == value for name, value in wanted.items())
