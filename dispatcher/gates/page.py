"""One number off a metrics page in Prometheus' text format."""

import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Final

import aiohttp

from dispatcher.budget import exact
from dispatcher.gates.access import Access, SourceError
from dispatcher.gates.reader import fetch
from dispatcher.gates.target_source import Sample

_SAMPLE: Final = re.compile(
    r'(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)[ \t]*(?:\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?'
    r"[ \t]+(?P<value>[^ \t]+)(?:[ \t]+(?P<time>-?[0-9]{1,19}))?[ \t]*"
)
_LABEL: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"')
_ESCAPE: Final = re.compile(r"\\(.)")


class PageReader:
    """The sum over `metrics` of what `combine` makes of each one's samples with the given labels.

    `absent`: the value of a metric of which there is no sample; None: that is an error.
    """

    def __init__(
        self,
        fetch_page: "Page",
        metrics: Sequence[str],
        labels: Mapping[str, str],
        combine: Callable[[Iterable[Fraction]], Fraction],
        absent: Fraction | None = None,
    ) -> None:
        self._page = fetch_page
        self._metrics = metrics
        self._labels = labels
        self._combine = combine
        self._absent = absent

    async def read(self) -> Sample:
        """The number; raises SourceError."""
        text, served_at = await self._page.read()
        total, age = Fraction(0), 0.0
        for metric in self._metrics:
            found = list(samples(text, metric, self._labels))
            if not found and self._absent is None:
                raise SourceError(f"the page has no {metric} with the labels {dict(self._labels)}")
            total += self._combine(value for value, _ in found) if found else self._absent or Fraction(0)
            age = max([age, *(served_at - at / 1000 for _, at in found if at is not None)])
        return Sample(total, age)


class Page:
    """Where a metrics page is."""

    def __init__(self, session: aiohttp.ClientSession, url: str, access: Access) -> None:
        self._session = session
        self._url = url
        self._access = access
        self._tls: ssl.SSLContext | bool = access.tls()

    async def read(self) -> tuple[str, float]:
        """Its text, and when it was served in Unix seconds; raises SourceError."""
        document = await fetch(self._session, self._url, self._access, tls=self._tls)
        return document.body.decode(errors="replace"), document.served_at


def samples(text: str, metric: str, labels: Mapping[str, str]) -> Iterator[tuple[Fraction, int | None]]:
    """Value and time (Unix milliseconds, where it is told) of each sample that has those labels.

    Raises SourceError for one that is no finite number: half a sum is no load.
    """
    for line in text.splitlines():
        if not line.startswith(metric):
            continue
        found = _SAMPLE.fullmatch(line)
        if found is None or found["name"] != metric or not _has(found["labels"] or "", labels):
            continue
        value = exact(found["value"])
        if value is None:
            raise SourceError(f"{metric} is {found['value'][:40]}, expected a finite number")
        yield value, int(found["time"]) if found["time"] else None


def _has(text: str, wanted: Mapping[str, str]) -> bool:
    if not wanted:
        return True
    have = {name: _ESCAPE.sub(r"\1", value) for name, value in _LABEL.findall(text)}
    return all(have.get(name) == value for name, value in wanted.items())
