"""The declaration of precise-prefix-cache-producer."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from adsum.metric_families import counter, gauge
from epp.plugins.declaration import PluginContext, PluginDeclaration, Role
from epp.plugins.labels import PREFIX
from epp.scheduling.kv_events.cache_index import BLOCK_BYTES
from epp.scheduling.kv_events.event_stream import Knowledge, KvEventStream
from epp.scheduling.kv_events.producer import PRODUCER, PrecisePrefixCacheProducer
from epp.scheduling.kv_events.prompt_tokens import TokensBy
from epp.scheduling.kv_events.settings import PreciseProducerParameters
from epp.scheduling.prefix.declarations import share_of_memory
from epp.scheduling.prefix.producer import PRODUCER as ESTIMATE
from epp.scheduling.prefix.producer import PrefixCacheProducer


def _build(given: PreciseProducerParameters, context: PluginContext) -> PrecisePrefixCacheProducer:
    settings = given.settings()
    most = min(settings.most_blocks, share_of_memory(context.processes) // BLOCK_BYTES)
    # the file's, with what it has learnt where this plugin is added to a configuration in force
    estimate = context.producer(None, PrefixCacheProducer, default=ESTIMATE)
    return PrecisePrefixCacheProducer(
        replace(settings, most_blocks=most), estimate, seed=context.rng.getrandbits(64)
    )


def kv_event_metrics(producers: Sequence[PrecisePrefixCacheProducer]) -> Iterator[Metric]:
    """The families of all producers, under `llm_d_epp_kv_cache_`: what is read, what is known, and whether it is true."""
    streams = [one for producer in producers for held in producer.streams().values() for one in held]
    yield from _reading(streams)
    yield from _index(producers)
    yield from _truth(producers)


def _reading(streams: Sequence[KvEventStream]) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        PREFIX + "kv_cache_events_active_subscribers",
        "Sockets of workers whose events are read.",
        len(streams),
    )
    yield CounterMetricFamily(
        PREFIX + "kv_cache_events_messages_received", "Batches of events.", _sum(streams, "batches")
    )
    states = Counter(one.knowledge for one in streams)
    yield gauge(
        PREFIX + "kv_cache_events_publishers",
        "Sockets of workers, by what is known of their caches.",
        ("knowledge",),
        [((state.value,), states[state]) for state in Knowledge],
    )
    for name, what in (
        ("restarts", "Caches that began anew: the worker's process was replaced."),
        ("gaps", "Times that batches were missing."),
        ("faulty", "Events and batches that could not be read."),
    ):
        yield CounterMetricFamily(f"{PREFIX}kv_cache_events_{name}", what, _sum(streams, name))


def _index(producers: Sequence[PrecisePrefixCacheProducer]) -> Iterator[Metric]:
    yield CounterMetricFamily(
        PREFIX + "kv_cache_index_lookup_requests",
        "Prompts that were compared with what workers say.",
        sum(one.prompts_known for one in producers),
    )
    yield CounterMetricFamily(
        PREFIX + "kv_cache_index_estimated_prompts",
        "Prompts whose tokens were not known in time, so that the estimate decided.",
        sum(one.prompts_estimated for one in producers),
    )
    yield counter(
        PREFIX + "kv_cache_index_tokens",
        "Prompts whose tokens were asked for, by who gave them.",
        ("by",),
        [((by.value,), sum(one.tokens_by[by] for one in producers)) for by in TokensBy],
    )
    yield GaugeMetricFamily(
        PREFIX + "kv_cache_index_blocks",
        "Different blocks in the index of KV events.",
        sum(len(one.index) for one in producers),
    )


def _truth(producers: Sequence[PrecisePrefixCacheProducer]) -> Iterator[Metric]:
    trusts = [one for producer in producers for one in producer.trusts.by_key.items()]
    for name, what in (
        ("confidence", "How far a worker's events agree with what its cache delivered, 0 to 1."),
        ("believed", "1: a worker's events decide; 0: they were wrong, and the estimate does."),
    ):
        samples = [((key[0],), float(getattr(trust, name))) for key, trust in trusts]
        yield gauge(f"{PREFIX}kv_cache_index_{name}", what, ("model_server_endpoint",), samples)
    yield CounterMetricFamily(
        PREFIX + "kv_cache_index_checks",
        "Comparisons of what workers' events say with what their caches delivered.",
        sum(trust.checks for _, trust in trusts),
    )


def _sum(streams: Sequence[KvEventStream], name: str) -> int:
    return sum(getattr(one, name) for one in streams)


PRECISE_PREFIX_CACHE_PRODUCER: Final = PluginDeclaration(
    type=PRODUCER,
    role=Role.PRODUCER,
    also=Role.EXTRACTOR,
    parameters=PreciseProducerParameters,
    unread_warning="has no effect: no plugin of a profile names it in prefixMatchInfoProducerName",
    build=_build,
    read_by_handlers=True,
    metrics=kv_event_metrics,
    single="a worker's events are read once: only one precise-prefix-cache-producer is possible",
)
