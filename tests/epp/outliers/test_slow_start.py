"""How many requests new and recovered endpoints get; random requests, ends and deaths, and what must hold at every step."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from discovery import Instance, InstanceAddedEvent, InstanceRemovedEvent
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint
from epp.outliers.detection import OutlierDetection
from epp.outliers.outlier_record import OutlierState
from epp.outliers.settings import Failure, OutlierSettings
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
    settings = SlowStartSettings.model_construct(window=20.0, aggression=aggression)
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
            pool.store,
            SlowStartSettings.model_construct(min_weight_percent=4.0),
            lambda: 0.0,
            random.Random(seed),
        )
        pool.add("new")
        considered = [len(pool.slow_start.thin(pool.store.pool(0.0))) == 3 for _ in range(100)]
        shares.append(sum(considered) / 100)
    assert sum(shares) / 200 == pytest.approx(0.04, abs=0.015)


NAMES = st.sampled_from("abcde")


class RandomEvents(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.store = Datastore()
        rules = OutlierSettings.model_construct(
            consecutive_5xx=2, consecutive_local_origin_failure=2, stalled_requests=1
        )
        self.detection = OutlierDetection(self.store, rules)
        self.in_flight: dict[object, Endpoint] = {}
        self.most = 0

    @rule(name=NAMES)
    def add(self, name: str) -> None:
        self.store.apply(InstanceAddedEvent(instance(name)))

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        self.store.apply(InstanceRemovedEvent(instance(name), "deleted"))
        self.most = len(self.detection.ejected)

    @precondition(lambda self: self.store.endpoints)
    @rule(row=st.integers(0, 9), streamed=st.booleans())
    def send(self, row: int, streamed: bool) -> None:
        endpoints = self.store.endpoints
        request, endpoint = object(), endpoints[row % len(endpoints)]
        self.in_flight[request] = endpoint
        self.detection.sent(request, endpoint, self.now, streamed=streamed)

    @precondition(lambda self: self.in_flight)
    @rule(
        row=st.integers(0, 99),
        elsewhere=st.booleans(),
        outcome=st.sampled_from(
            [(200, None), (500, None), (503, Failure.CONNECT), (504, Failure.TIMEOUT), None]
        ),
    )
    def end(self, row: int, elsewhere: bool, outcome: tuple[int, Failure | None] | None) -> None:
        request = list(self.in_flight)[row % len(self.in_flight)]
        endpoint = self.in_flight.pop(request)
        if outcome is not None:
            if elsewhere and self.store.endpoints:
                self.detection.attempt_failed(endpoint, self.now)
                endpoint = self.store.endpoints[row % len(self.store.endpoints)]
            self.detection.answered(request, endpoint, *outcome, self.now)
        self.detection.ended(request, self.now)

    @rule(seconds=st.sampled_from([0.5, 1.0, 12.0, 40.0]))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.detection.tick(self.now)

    @rule(alive=st.booleans())
    def probe(self, alive: bool) -> None:
        for endpoint in self.detection.to_probe:
            self.detection.probed(endpoint, self.now, alive=alive)

    @precondition(lambda self: self.store.endpoints)
    @rule(row=st.integers(0, 9))
    def replace_process(self, row: int) -> None:
        self.store.process_replaced(self.store.endpoints[row % len(self.store.endpoints)])

    @invariant()
    def the_share_is_kept(self) -> None:
        """Only endpoints that go away leave a larger share ejected than may be."""
        count = len(self.detection.ejected)
        assert count <= max(self.detection.settings.ejectable(len(self.store.endpoints)), self.most, 0)
        self.most = min(self.most, count)

    @invariant()
    def those_that_are_ejected_get_no_requests(self) -> None:
        ejected = {one.endpoint.key: one for one in self.detection.ejected}
        reachable = self.store.pool(self.now).reachable
        for row, endpoint in enumerate(self.store.endpoints):
            record = ejected.get(endpoint.key)
            on_trial = record is not None and record.state is OutlierState.TRIAL and record.trial is None
            assert reachable[row] == (record is None or on_trial)
        assert ejected.keys() <= {endpoint.key for endpoint in self.store.endpoints}

    @invariant()
    def nothing_is_kept_of_requests_that_are_over(self) -> None:
        assert self.detection._sent.keys() <= self.in_flight.keys()


def test_random_events() -> None:
    run_state_machine_as_test(
        RandomEvents, settings=settings(max_examples=60, stateful_step_count=60, deadline=None)
    )
