"""Reads a few numbers from a Prometheus text page by byte search, without parsing the rest.

A pool of 100 busy workers is scraped 2,000 times a second on the loop that picks. With pages of 47 KB a scrape, fetch
included, takes 136 to 161 µs (benchmarks/README.md: scraping).
"""

import math
import re
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from adsum.prometheus_page import Page, has_labels, match_sample, name_ends, read_labels
from epp.endpoints.endpoint import Adapters
from epp.endpoints.load import Load
from epp.endpoints.worker_metrics import KV_USAGE, RUNNING, WAITING
from epp.scraping.engines import Engine, Series

_MAX_SAMPLES: Final = 256
"""Samples of one series that are read; more would take time that picks need."""
_MAX_LINES: Final = 4096
"""Lines that begin with the name of a series, those of longer names included."""


def read_load(page: Page, engine: Engine) -> Load:
    """The numbers on the page, by the series of that engine."""
    max_lora, adapters = _lora(page, engine.lora)
    others = {
        one: _total(page, series) if one.counter else one.believed(_latest(page, series))
        for one, series in engine.others.items()
    }
    return Load(
        waiting=WAITING.clamp(_latest(page, engine.waiting)),
        running=RUNNING.clamp(_latest(page, engine.running)),
        kv_usage=KV_USAGE.clamp(_latest(page, engine.kv_usage)),
        max_lora=max_lora,
        adapters=adapters,
        others={one: value for one, value in others.items() if value is not None},
    )


def read_cache_tokens(page: Page, engine: Engine) -> int | None:
    """The size of the worker's KV cache in tokens; None if the page lacks it or it is not plausible."""
    size, number = _latest(page, engine.block_size), _latest(page, engine.num_blocks)
    if size is not None and number is not None:
        return _tokens(size, number)
    for series in engine.cache_info:
        for sample in _samples(page, series):
            labels = read_labels(sample.labels)
            size_label, number_label = (labels.get(name, "") for name in engine.cache_labels)
            if _COUNT.fullmatch(size_label) and _COUNT.fullmatch(number_label):
                return _tokens(float(size_label), float(number_label))
    return None


def _tokens(size: float, number: float) -> int | None:
    tokens = size * number
    return int(tokens) if size >= 1 and 1 <= tokens <= _MAX_TOKENS else None


_COUNT: Final = re.compile("[0-9]{1,12}+")
_MAX_TOKENS: Final = 1e12


def detect_engine(page: Page, engines: Sequence[Engine]) -> Engine | None:
    """The first engine that has a series on the page."""
    return next((engine for engine in engines if read_load(page, engine).known), None)


class _Sample(NamedTuple):
    """`labels`: the text between the braces; `timestamp`: ms, 0 if there is none."""

    timestamp: int
    value: float
    labels: bytes


def _latest(page: Page, alternatives: Sequence[Series]) -> float | None:
    """The value with the latest timestamp; without timestamps, or with equal ones, that of the last line. NaN: malformed."""
    for series in alternatives:
        samples = _samples(page, series)
        if samples:
            return samples[0].value if len(samples) == 1 else max(reversed(samples), key=_TIMESTAMP).value
    return None


def _total(page: Page, alternatives: Sequence[Series]) -> float | None:
    """The sum of a counter's samples: one page may have a sample for each engine of the worker."""
    for series in alternatives:
        if samples := _samples(page, series):
            return sum(sample.value for sample in samples)
    return None


_TIMESTAMP: Final = attrgetter("timestamp")


def _lora(page: Page, alternatives: Sequence[Series]) -> tuple[float | None, Adapters | None]:
    """The limit and the adapters of the series with the largest value.

    The value is the time of its last update (GIE proposal 003, Model Server Protocol: LoRA Adapter Serving).
    """
    samples = [sample for series in alternatives for sample in _samples(page, series) if sample.value >= 0]
    if not samples:
        return None, None
    labels = read_labels(max(samples, key=lambda sample: sample.value).labels)
    limit = labels.get("max_lora", "")
    adapters = Adapters(
        _names(labels.get("running_lora_adapters", "")), _names(labels.get("waiting_lora_adapters", ""))
    )
    return float(limit) if _LIMIT.fullmatch(limit) else None, adapters


_LIMIT: Final = re.compile("[0-9]{1,9}+")


def _names(text: str) -> frozenset[str]:
    # bounded: _MAX_LINE_BYTES bytes
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def _samples(page: Page, series: Series) -> list[_Sample]:
    """The samples of a series, in the order of the page; NaN for a malformed line. Histograms and summaries have none.

    All lines of a metric form one group (Prometheus text format: Grouping and sorting). So the search ends
    after the first group of a metric that has a TYPE line; without one it goes on.
    """
    samples: list[_Sample] = []
    declared_type: bytes | None = None
    for index, end in enumerate(name_ends(page, series.key, _MAX_LINES), 1):
        if index == 1 and (declared_type := _declared_type(page, series, end)) in _IGNORED_TYPES:
            break
        stop = page.find(b"\n", end)
        read = _parse_sample(page, end, len(page) if stop < 0 else stop, series.labels)
        if read is not None:
            samples.append(read)
        if declared_type is not None and not page.startswith(series.key, stop):
            break
        if index == _MAX_SAMPLES:
            break
    return samples


def _declared_type(page: Page, series: Series, end: int) -> bytes | None:
    """The type on the TYPE line before the sample whose name ends at `end`; None without one, empty if malformed."""
    declaration = b"# TYPE " + series.key[1:] + b" "
    at = page.rfind(declaration, 0, end)
    if at < 0:
        return None
    found = _WORD.match(page, at + len(declaration))
    return found[0] if found is not None else b""


_IGNORED_TYPES: Final = (b"histogram", b"summary")
_WORD: Final = re.compile(rb"[a-z]*")


def _parse_sample(page: Page, start: int, stop: int, wanted: Mapping[str, str]) -> _Sample | None:
    """The sample after a name, up to the end of its line; None if it lacks a wanted label."""
    found = match_sample(page, start, stop)
    if found is None:
        return None if wanted or start == stop else _INVALID
    inside, number, timestamp = found.groups(b"")
    if wanted and not has_labels(inside, wanted):
        return None
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    return _Sample(int(timestamp or 0), value, inside)


_INVALID: Final = _Sample(0, math.nan, b"")
