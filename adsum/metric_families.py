"""Families of metrics with their samples, in one call each. Needs prometheus_client, which some programs do without."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from adsum.histogram import Histogram

Samples: TypeAlias = Iterable[tuple[Sequence[str], float]]
"""The values of the labels, in their order, and a number."""
_Family = TypeVar("_Family", CounterMetricFamily, GaugeMetricFamily)


def counter(name: str, help_text: str, labels: Sequence[str], samples: Samples) -> CounterMetricFamily:
    """`name` is without the `_total` that samples of counters end with."""
    return _filled(CounterMetricFamily(name, help_text, labels=labels), samples)


def gauge(name: str, help_text: str, labels: Sequence[str], samples: Samples) -> GaugeMetricFamily:
    return _filled(GaugeMetricFamily(name, help_text, labels=labels), samples)


def histogram(
    name: str,
    help_text: str,
    labels: Sequence[str] = (),
    samples: Iterable[tuple[Sequence[str], Histogram]] = (),
    *,
    of: Histogram | None = None,
) -> HistogramMetricFamily:
    """`of`: the one histogram of a family without labels."""
    family = HistogramMetricFamily(name, help_text, labels=labels)
    for values, counted in samples if of is None else (((), of),):
        family.add_metric(values, counted.buckets(), counted.total)
    return family


def _filled(family: _Family, samples: Samples) -> _Family:
    for values, number in samples:
        family.add_metric(values, number)
    return family
