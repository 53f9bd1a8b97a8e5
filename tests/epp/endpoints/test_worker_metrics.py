"""A number that nobody knew before: declared once, read off a page, kept, shown and scored."""

import random
from typing import ClassVar

import pytest

from discovery import Instance, InstanceAddedEvent, InstanceRemovedEvent, InstanceUpdatedEvent
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import EndpointPool, Floats
from epp.endpoints.load import Load
from epp.endpoints.worker_metrics import WAITING, WORKER_METRICS, WorkerMetric
from epp.request.inference_request import InferenceRequest
from epp.scheduling.cached_scores import WeightedScorer
from epp.scheduling.pick import SchedulingContext
from epp.scheduling.pickers import MaxScorePicker
from epp.scheduling.profile import SchedulerProfile
from epp.scheduling.published_only import check_published_only
from epp.scraping.engines import ENGINES, engines_of, other_series
from epp.scraping.metrics_page import detect_engine, read_load
from epp.telemetry.pool_metrics import PoolGauges
from tests.epp.scheduling.endpoint_pools import add_worker

NOW = 100.0
HITS = WorkerMetric(
    name="prefix_hits",
    maximum=1.0,
    clamped_up_to=1.01,
    unknown=0.5,
    series={"vllm": "vllm:prefix_hit_ratio|vllm:gpu_prefix_cache_hit_rate"},
    pool_gauge=("average_prefix_hits", "Share of tokens found in the prefix cache, on average."),
    endpoint_gauge=("prefix_hits", "Share of tokens found in the worker's prefix cache."),
)
METRICS = (*WORKER_METRICS, HITS)
ENGINE = engines_of(METRICS)[0]


class HitsScorer:
    published_only: ClassVar[bool] = True

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        return pool.metric(HITS)


def page(waiting: float, hits: str) -> bytes:
    return f'vllm:num_requests_waiting {waiting}\nvllm:prefix_hit_ratio{{model="m"}} {hits}\n'.encode()


def scrape(store: Datastore, row: int, content: bytes, now: float = NOW) -> Load:
    load = read_load(content, ENGINE)
    store.observe(store.endpoints[row], load, now)
    return load


def store_of(count: int) -> Datastore:
    store = Datastore(metrics=METRICS)
    for _ in range(count):
        add_worker(store, is_seen=False)
    return store


def picked(store: Datastore) -> str:
    profile = SchedulerProfile(
        picker=MaxScorePicker(random.Random(1)), scorers=[WeightedScorer(HitsScorer())], staleness=2.0
    )
    request = InferenceRequest(request_id="r", path="/", model="m", headers={})
    return profile.run(SchedulingContext(request), store.pool(NOW))[0].id


def test_a_declared_number_goes_from_the_page_to_the_score() -> None:
    store = store_of(3)
    for row, hits in enumerate(("0.25", "0.75", "0.1")):
        scrape(store, row, page(0, hits))
    assert store.pool(NOW).metric(HITS).tolist() == [0.25, 0.75, 0.1]
    assert store.pool(NOW).metric(WAITING).tolist() == [0, 0, 0]
    assert picked(store) == "w1"
    before = store.pool(NOW).state
    scrape(store, 2, page(0, "1.004"))
    assert (store.pool(NOW).metric(HITS).tolist()[2], picked(store)) == (1.0, "w2")
    assert store.pool(NOW).state is not before, "a new state: it is what workers publish"
    narrowed = store.pool(NOW).select(store.pool(NOW).metric(HITS) < 0.5)
    assert narrowed.metric(HITS).tolist() == [0.25]


@pytest.mark.parametrize("hits", ["NaN", "+Inf", "-0.1", "1.5", "many"])
def test_one_that_makes_no_sense_is_not_believed(hits: str) -> None:
    store = store_of(2)
    scrape(store, 0, page(0, "0.2"))
    scrape(store, 1, page(0, "0.9"))
    assert picked(store) == "w1"
    load = scrape(store, 1, page(0, hits))
    assert "prefix_hits is " in load.problem
    assert load.problem.endswith("expected a number from 0 to 1")
    assert picked(store) == "w0"
    assert store.pool(NOW).metric(HITS).tolist() == [0.2, 0.9]


def test_until_a_page_says_it_the_column_holds_what_was_declared() -> None:
    store = store_of(2)
    scrape(store, 0, b"vllm:num_requests_waiting 3\n")
    scrape(store, 1, page(0, "0.9"))
    assert store.pool(NOW).metric(HITS).tolist() == [0.5, 0.9]
    store.apply(InstanceRemovedEvent(store_instance(0), "deleted"))
    assert store.pool(NOW).metric(HITS).tolist() == [0.9]
    for epoch in ("one", "two"):
        store.apply(InstanceUpdatedEvent(store_instance(1), store_instance(1, f"a.{epoch}.1")), {})
    assert store.pool(NOW).metric(HITS).tolist() == [0.5], "another process"


def store_instance(number: int, revision: str | None = None) -> Instance:
    return Instance(f"w{number}", "ns", "c", f"10.0.0.{number + 1}", 8000, "a", revision=revision)


def test_it_has_the_gauges_that_were_declared() -> None:
    store = store_of(2)
    scrape(store, 0, page(0, "0.2"))
    scrape(store, 1, page(0, "0.6"))
    gauges = PoolGauges("pool", lambda: store.pool(NOW), lambda: {"effective": 0.0}, 2.0)
    said = {
        (one.name, *one.labels.values()): one.value for family in gauges.collect() for one in family.samples
    }
    assert said["llm_d_epp_average_prefix_hits", "pool"] == pytest.approx(0.4)
    assert said["llm_d_epp_per_endpoint_prefix_hits", "pool", "w1"] == 0.6


def test_a_model_server_without_it_and_a_pool_without_it() -> None:
    engine = detect_engine(b"sglang:num_queue_reqs 1\n", engines_of(METRICS))
    assert engine is not None
    assert read_load(b"sglang:num_queue_reqs 1\nvllm:prefix_hit_ratio 1\n", engine).others == {}
    store = Datastore()
    store.apply(InstanceAddedEvent(store_instance(0)), {})
    scrape(store, 0, page(4, "0.9"))
    assert store.pool(NOW).waiting.tolist() == [4]
    with pytest.raises(
        LookupError, match="'prefix_hits' is not kept; declare it in WORKER_METRICS, beside waiting"
    ):
        store.pool(NOW).metric(HITS)


def test_a_scorer_of_it_reads_only_what_is_published() -> None:
    check_published_only(HitsScorer())


def test_what_is_built_in_is_declared_the_same_way() -> None:
    assert engines_of(WORKER_METRICS) == ENGINES
    assert [series.name for series in ENGINES[0].kv_usage] == [
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
    ]


def test_an_engine_that_a_configuration_describes_anew_keeps_the_declared_numbers() -> None:
    assert other_series("vllm", engines_of(METRICS)) == ENGINE.others
    assert HITS in ENGINE.others
    assert other_series("acme", engines_of(METRICS)) == {}
