"""What the metrics page says of plugins: how long they take, and what the prefix indexes hold."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from adsum.histogram import Histogram
from epp.scheduling.decision import Decision, PluginLabels
from epp.scheduling.plugin import DataProducer, producer_labels
from epp.scheduling.prefix.index import BLOCK_BYTES
from epp.scheduling.prefix.producer import BYTES, PRODUCER, RATIOS, Credit, PrefixCacheProducer
from epp.scheduling.scheduler import Scheduler
from epp.telemetry.labels import EXTENSION_PREFIX, PREFIX

BOUNDS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)


class PluginDurations(Collector):
    """Reads the picks that are noted whole; the others are not measured."""

    def __init__(self) -> None:
        self._seconds: dict[PluginLabels, Histogram] = {}

    def expect(self, scheduler: Scheduler) -> None:
        """Show these plugins before they are called; data producers without `plugin_type` are not shown."""
        labels = [labels for profile in scheduler.profiles.values() for labels in profile.plan.plugins]
        for one in (*labels, *map(producer_labels, scheduler.producers)):
            if one[1]:
                self._seconds.setdefault(one, Histogram(BOUNDS))

    def read(self, decision: Decision) -> None:
        for calls in (decision.calls, *[run.calls for run in decision.runs]):
            for call in calls:
                if (seconds := self._seconds.get(call.labels)) is not None:
                    seconds.observe(call.ended - call.began)

    def collect(self) -> Iterator[Metric]:
        for prefix in (PREFIX, EXTENSION_PREFIX):
            family = HistogramMetricFamily(
                prefix + "plugin_duration_seconds",
                "How long plugins take, measured in the first five picks of a second.",
                labels=("extension_point", "plugin_type", "plugin_name"),
            )
            for labels, seconds in self._seconds.items():
                family.add_metric(labels, seconds.buckets(), seconds.total)
            yield family


_LABELS = ("plugin_name", "plugin_type")
_SIZE = "Blocks in the prefix index, each counted once for every worker that is believed to hold it."
_USED = "Memory of the prefix index, estimated."
_LIMIT = "The most memory of the prefix index: maxIndexBytes."
_EVICTED = "Blocks that the index forgot for want of memory, though the worker's cache has room for them."
_RATIO = "The share of a prompt that its worker was believed to hold."
_BYTES = "Bytes of a prompt that its worker was believed to hold."


class PrefixMetrics(Collector):
    """`producers`: those of now. A picker has one, unless scorers name several: these are numbered.

    The older names have no labels, so there all producers count together.
    """

    def __init__(self, producers: Callable[[], Sequence[DataProducer]]) -> None:
        self._producers = producers

    def collect(self) -> Iterator[Metric]:
        found = _prefix_caches(self._producers())
        if not found:
            return
        size = GaugeMetricFamily(PREFIX + "prefix_indexer_size", _SIZE, labels=_LABELS)
        used = GaugeMetricFamily(PREFIX + "prefix_indexer_bytes", _USED, labels=_LABELS)
        limit = GaugeMetricFamily(PREFIX + "prefix_indexer_limit_bytes", _LIMIT, labels=_LABELS)
        evicted = CounterMetricFamily(PREFIX + "prefix_indexer_evicted_blocks", _EVICTED, labels=_LABELS)
        ratio = HistogramMetricFamily(PREFIX + "prefix_indexer_hit_ratio", _RATIO, labels=_LABELS)
        held = HistogramMetricFamily(PREFIX + "prefix_indexer_hit_bytes", _BYTES, labels=_LABELS)
        for number, producer in enumerate(found, 1):
            labels, hits = (PRODUCER if number == 1 else f"{PRODUCER}-{number}", PRODUCER), producer.hits
            blocks = len(producer.index)
            size.add_metric(labels, blocks)
            used.add_metric(labels, blocks * BLOCK_BYTES)
            limit.add_metric(labels, producer.index.max_bytes)
            evicted.add_metric(labels, producer.index.evicted)
            ratio.add_metric(labels, hits.ratios.buckets(), hits.ratios.total)
            held.add_metric(labels, hits.bytes.buckets(), hits.bytes.total)
        yield from (size, used, limit, evicted, ratio, held)
        blocks = sum(len(producer.index) for producer in found)
        yield GaugeMetricFamily(EXTENSION_PREFIX + "prefix_indexer_size", _SIZE, blocks)
        ratios = _sum(RATIOS, (producer.hits.ratios for producer in found))
        yield _unlabelled("prefix_indexer_hit_ratio", _RATIO, ratios)
        yield _unlabelled(
            "prefix_indexer_hit_bytes", _BYTES, _sum(BYTES, (producer.hits.bytes for producer in found))
        )


def prefix_credits(producers: Sequence[DataProducer]) -> Mapping[tuple[str, str], Credit]:
    """What each endpoint was credited with, by the first of the prefix indexes: several see the same prompts."""
    caches = _prefix_caches(producers)
    return caches[0].hits.credits if caches else {}


def _prefix_caches(producers: Sequence[DataProducer]) -> list[PrefixCacheProducer]:
    return [one for one in producers if isinstance(one, PrefixCacheProducer)]


def _sum(bounds: Sequence[float], histograms: Iterable[Histogram]) -> Histogram:
    total = Histogram(bounds)
    for histogram in histograms:
        total.add(histogram)
    return total


def _unlabelled(name: str, help_text: str, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(EXTENSION_PREFIX + name, help_text)
    family.add_metric((), histogram.buckets(), histogram.total)
    return family
