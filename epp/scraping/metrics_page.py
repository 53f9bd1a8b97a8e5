"""Reads the few numbers that matter off a Prometheus text page, by byte search: most of the page is never looked at."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from epp.endpoints.endpoint import Adapters
from epp.endpoints.load import Load
from epp.endpoints.worker_metrics import KV_USAGE, RUNNING, WAITING
from epp.scraping.engines import Engine, Series
from runtime.prometheus_labels import read_labels

# A page is a stranger's: every quantifier is possessive, so that no byte is looked at twice for want of what should follow it.
_SAMPLE: Final = re.compile(
    rb'[ \t]*+(?:\{((?:[^"}\n]++|"(?:[^"\\\n]++|\\[^\n])*+")*+)\}[ \t]*+)?'
    rb"([^\s#]++)(?:[ \t]++(-?[0-9]{1,19}+)(?![0-9]))?"
)
_MAX_SAMPLES: Final = 256
"""Samples of one series that are looked at: what comes later on a page costs time that picks need."""
_MAX_LINES: Final = 4096
"""Lines that begin with a series' name, those of longer names too."""
_MAX_LINE_BYTES: Final = 64 * 1024
"""Bytes of a line behind the name: a longer one says nothing that can be believed."""


Page: TypeAlias = bytes | bytearray


def read_load(page: Page, engine: Engine) -> Load:
    """What the page says in the words of that engine."""
    max_lora, adapters = _lora(page, engine.lora)
    others = {one: one.clamp(_latest(page, series)) for one, series in engine.others.items()}
    return Load(
        waiting=WAITING.clamp(_latest(page, engine.waiting)),
        running=RUNNING.clamp(_latest(page, engine.running)),
        kv_usage=KV_USAGE.clamp(_latest(page, engine.kv_usage)),
        max_lora=max_lora,
        adapters=adapters,
        others={one: value for one, value in others.items() if value is not None},
    )


def read_cache_tokens(page: Page, engine: Engine) -> int | None:
    """How many tokens the worker's KV cache has room for; None where the page does not say, or nothing sensible."""
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
    """The first engine whose words the page speaks."""
    return next((engine for engine in engines if read_load(page, engine).known), None)


class _Sample(NamedTuple):
    """`labels`: the text between the braces; `timestamp` in ms, 0 where there is none."""

    timestamp: int
    value: float
    labels: bytes


def _latest(page: Page, alternatives: Sequence[Series]) -> float | None:
    """The value with the latest timestamp; where there are none, or equal ones, that of the last line. NaN: no number."""
    for series in alternatives:
        samples = _samples(page, series)
        if samples:
            return samples[0].value if len(samples) == 1 else max(reversed(samples), key=_TIMESTAMP).value
    return None


_TIMESTAMP: Final = attrgetter("timestamp")


def _lora(page: Page, alternatives: Sequence[Series]) -> tuple[float | None, Adapters | None]:
    """Limit and adapters of the series with the largest value: its value is the time of its update (model server protocol, 2025-02)."""
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
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def _samples(page: Page, series: Series) -> list[_Sample]:
    """The samples of a series, in the order of the page; none of a histogram or summary. NaN: a line that is none.

    All lines of a metric whose type is declared stand together (text format 0.0.4): what comes after is not read.
    """
    samples: list[_Sample] = []
    declared_type: bytes | None = None
    for index, end in enumerate(_name_ends(page, series), 1):
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


def _name_ends(page: Page, series: Series) -> Iterator[int]:
    """Where the name ends on the lines that begin with it and not with a longer one."""
    key = series.key
    at = -1 if page.startswith(series.name_bytes) else page.find(key)
    if at < 0 and not page.startswith(series.name_bytes):
        return
    for _ in range(_MAX_LINES):
        end = at + len(key)
        if page[end : end + 1] in _AFTER_NAME:
            yield end
        at = page.find(key, end)
        if at < 0:
            return


_AFTER_NAME: Final = (b"{", b" ", b"\t")


def _declared_type(page: Page, series: Series, end: int) -> bytes | None:
    """The type that the page declares for the series whose first sample's name ends there."""
    at = page.rfind(series.declaration, 0, end)
    if at < 0:
        return None
    found = _WORD.match(page, at + len(series.declaration))
    return found[0] if found is not None else b""


_IGNORED_TYPES: Final = (b"histogram", b"summary")
_WORD: Final = re.compile(rb"[a-z]*")


def _parse_sample(page: Page, start: int, stop: int, wanted: Mapping[str, str]) -> _Sample | None:
    """What stands behind a name up to the line's end; None where it has other labels than those that are wanted."""
    found = _SAMPLE.match(page, start, stop) if stop - start <= _MAX_LINE_BYTES else None
    if found is None:
        return None if wanted else _INVALID
    inside, number, timestamp = found.groups(b"")
    if wanted:
        labels = read_labels(inside)
        if any(labels.get(name) != value for name, value in wanted.items()):
            return None
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    return _Sample(int(timestamp or 0), value, inside)


_INVALID: Final = _Sample(0, math.nan, b"")
