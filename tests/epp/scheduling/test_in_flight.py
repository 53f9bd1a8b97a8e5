"""What this picker sent decides between endpoints whose pages differ by a hair."""

import random
from collections import Counter

import pytest

from adsum.config.problems import ConfigError
from epp.config.picker_config import load_config
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import EndpointPool
from epp.scheduling.cached_scores import WeightedScorer
from epp.scheduling.scorers.in_flight import InFlightScorer
from tests.epp.scheduling.endpoint_pools import REQUEST, add_worker, pool_of
from tests.epp.scheduling.test_director import NOW, direct, director, load, store_of


def scores(pool: EndpointPool, requests: int) -> list[float]:
    return list(InFlightScorer(requests).score(REQUEST, pool).tolist())


def test_a_score_halves_at_so_many_requests() -> None:
    pool = pool_of(inflight=[0, 4, 12], unreported=[0, 0, 4])
    assert scores(pool, 4) == [1.0, 0.5, 0.25]
    assert [InFlightScorer(4).score_of(sent) for sent in (0.0, 4.0, 12.0)] == scores(pool, 4)


def test_what_the_page_shows_is_not_counted_again() -> None:
    pool = pool_of(waiting=[1, 1, 0], running=[2, 2, float("nan")], inflight=[7, 7, 7], unreported=[0, 5, 5])
    assert pool.unreported.tolist() == [4, 5, 5]


def test_what_was_sent_since_the_page_was_read_counts_until_the_next() -> None:
    """Response headers of a streamed answer come at once, and end what is in flight; no page shows the request yet."""
    store = store_of("", "")
    it = director(store)
    for _ in range(4):
        pick = direct(it)
        it.picks.responded(pick, 200, NOW)
        it.picks.release(pick, NOW)
    assert sorted(store.pool(NOW).unreported.tolist()) == [2, 2]
    for row in range(2):
        load(store, row)
    assert store.pool(NOW).unreported.tolist() == [0, 0]


def test_without_a_page_only_what_is_in_flight_counts() -> None:
    store = Datastore()
    add_worker(store, is_seen=False)
    it = director(store)
    open_picks = [direct(it) for _ in range(3)]
    it.picks.release(open_picks[0], NOW)
    assert store.pool(NOW).unreported.tolist() == [2]


@pytest.mark.parametrize("streamed", [True, False])
def test_300_at_once_are_spread_over_pages_that_differ_by_a_hair(streamed: bool) -> None:
    store = store_of("", "", "")
    for row, usage in enumerate((0.05, 0.10, 0.15)):
        load(store, row, kv_usage=usage)
    it = director(store)
    went = Counter[str]()
    for _ in range(300):
        pick = direct(it)
        went[pick.endpoints[0].id] += 1
        if streamed:
            it.picks.responded(pick, 200, NOW)
            it.picks.release(pick, NOW)
    assert max(went.values()) <= 180, went


def test_a_page_that_is_worse_by_more_than_a_hair_still_counts() -> None:
    store = store_of("", "")
    load(store, 0, waiting=0)
    load(store, 1, waiting=20, kv_usage=0.9)
    it = director(store)
    assert {direct(it).endpoints[0].id for _ in range(10)} == {"w0"}


def profile_of(parameters: str) -> list[WeightedScorer]:
    text = f"""
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: in-flight-scorer
  parameters: {parameters}
schedulingProfiles:
- name: default
  plugins:
  - {{pluginRef: in-flight-scorer, weight: 5}}
"""
    return list(load_config(text, rng=random.Random(1)).scheduler.profiles["default"].scorers)


def test_it_is_configured() -> None:
    [one] = profile_of("{requests: 3}")
    assert one.weight == 5
    assert one.scorer.score(REQUEST, pool_of(inflight=[3])) == [0.5]
    for wrong in ("{requests: 0}", "{requests: many}", "{halves: 3}"):
        with pytest.raises(ConfigError):
            profile_of(wrong)
