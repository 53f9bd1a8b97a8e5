"""How many requests new and recovered endpoints get, at times that the test chooses."""

import random

import pytest

from discovery import Instance, InstanceAddedEvent, InstanceRemovedEvent
from epp.endpoints.datastore import Datastore
from epp.outliers.slow_start import SlowStart, SlowStartSettings

DRAWS = 2_000


class Pool:
    """A datastore and its slow start; `at`: the time."""

    def __init__(self, *there: str) -> None:
        self.at = 0.0
        self.store = Datastore()
        for name in there:
            self.add(name)
        self.slow_start = SlowStart(self.store, SlowStartSettings(), lambda: self.at, random.Random(1))

    def add(self, name: str) -> None:
        self.store.apply(InstanceAddedEvent(instance(name)))

    def shares(self) -> dict[str, float]:
        """In what share of picks each endpoint is considered."""
        considered = dict.fromkeys((endpoint.id for endpoint in self.store.endpoints), 0)
        for _ in range(DRAWS):
            pool = self.store.pool(self.at)
            if self.slow_start.warming:
                pool = self.slow_start.thin(pool)
            for endpoint in pool.endpoints:
                considered[endpoint.id] += 1
        return {name: count / DRAWS for name, count in considered.items()}


def instance(name: str) -> Instance:
    return Instance(name, "ns", "c", "10.0.0.1", 8000, "1")


@pytest.mark.parametrize(
    ("age", "share"), [(0.0, 0.1), (1.0, 0.1), (15.0, 0.5), (27.0, 0.9), (30.0, 1.0), (99.0, 1.0)]
)
def test_a_new_endpoint_is_considered_more_and_more(age: float, share: float) -> None:
    pool = Pool("a", "b")
    pool.add("new")
    pool.at = age
    assert pool.shares() == pytest.approx({"a": 1.0, "b": 1.0, "new": share}, abs=0.04)


@pytest.mark.parametrize(("aggression", "share"), [(1.0, 0.25), (2.0, 0.5), (0.5, 0.1)])
def test_the_share_is_that_of_envoy(aggression: float, share: float) -> None:
    """new weight = weight x max(min weight percent, (age / window) ^ (1 / aggression))."""
    settings = SlowStartSettings(window=20.0, aggression=aggression)
    assert settings.share(5.0) == pytest.approx(share)


def test_nobody_is_left_out_where_all_are_new() -> None:
    pool = Pool()
    for name in "abc":
        pool.add(name)
    assert pool.shares() == {"a": 1.0, "b": 1.0, "c": 1.0}


def test_once_all_are_old_nothing_is_done() -> None:
    pool = Pool("a")
    pool.add("new")
    assert pool.slow_start.warming
    pool.at = 31.0
    pool.shares()
    assert not pool.slow_start.warming


def test_a_recovered_endpoint_and_a_new_process_begin_anew_and_a_removed_one_is_forgotten() -> None:
    pool = Pool("a", "b", "c")
    assert not pool.slow_start.warming
    pool.slow_start.begin(pool.store.endpoints[0])
    pool.store.process_replaced(pool.store.endpoints[1])
    assert pool.shares() == pytest.approx({"a": 0.1, "b": 0.1, "c": 1.0}, abs=0.04)
    for name in "ab":
        pool.store.apply(InstanceRemovedEvent(instance(name), "deleted"))
    assert not pool.slow_start.warming


def test_its_end_leaves_no_hook() -> None:
    pool = Pool("a")
    pool.slow_start.close()
    assert not pool.store.on_change
    assert not pool.store.on_reset


def test_many_new_endpoints_leave_few_different_pools() -> None:
    """Plugins remember what they know of the same endpoints; a pool of its own for each pick would cost it all anew."""
    pool = Pool(*(f"old-{n}" for n in range(50)))
    for n in range(50):
        pool.add(f"new-{n}")
    for at in (4.0, 12.0, 20.0):
        pool.at = at
        seen = {pool.slow_start.thin(pool.store.pool(at)).endpoints for _ in range(500)}
        assert 2 <= len(seen) <= 10


def test_the_share_grows_while_the_same_endpoints_are_new() -> None:
    pool = Pool("a", "b")
    pool.add("new")
    seen = []
    for at in (1.0, 9.0, 17.0, 25.0, 29.0):
        pool.at = at
        seen.append(pool.shares()["new"])
    assert seen == sorted(seen)
    assert seen[0] < 0.2
    assert seen[-1] > 0.8


def test_a_share_between_two_steps_is_right_on_the_average() -> None:
    shares = []
    for seed in range(200):
        pool = Pool("a", "b")
        pool.slow_start = SlowStart(
            pool.store, SlowStartSettings(min_weight_percent=4.0), lambda: 0.0, random.Random(seed)
        )
        pool.add("new")
        considered = [len(pool.slow_start.thin(pool.store.pool(0.0))) == 3 for _ in range(100)]
        shares.append(sum(considered) / 100)
    assert sum(shares) / 200 == pytest.approx(0.04, abs=0.015)
