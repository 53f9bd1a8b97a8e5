import json
from typing import Any

import numpy as np
import pytest

from epp.endpoints.endpoint import NO_ADAPTERS, NO_NUMBERS, Column, Endpoint, EndpointPool
from epp.outliers.outlier_record import Cause, OutlierRecord, OutlierState
from epp.scheduling.decision import CacheEvidence
from epp.scheduling.pick import Credit
from epp.web.pick_history import PickHistory
from epp.web.pool_view import EndpointStatus, PoolView, absent, learnt, statuses
from tests.epp.scheduling.endpoint_pools import make_endpoint

NOW = 100.0
STALE_AFTER = 2.0


def numbers(**columns: float) -> Any:
    """Of an endpoint that was just scraped."""
    one = NO_NUMBERS.copy()
    one[Column.SCRAPED_AT] = NOW
    for name, value in columns.items():
        one[Column[name]] = value
    return one


def pool(**endpoints: Any) -> EndpointPool:
    made = [make_endpoint(name) for name in endpoints]
    return EndpointPool(made, np.hstack(list(endpoints.values())), [NO_ADAPTERS] * len(made), NOW)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (numbers(), EndpointStatus.READY),
        (NO_NUMBERS, EndpointStatus.UNSEEN),
        (numbers(SCRAPED_AT=NOW - 10), EndpointStatus.STALE),
        (numbers(PAGELESS=1), EndpointStatus.PAGELESS),
        (numbers(REACHABLE=0), EndpointStatus.UNREACHABLE),
        (numbers(LATE_AT=NOW - 1), EndpointStatus.LATE),
        (numbers(LATE_AT=NOW - 1, REACHABLE=0), EndpointStatus.UNREACHABLE),
    ],
)
def test_status(column: Any, expected: EndpointStatus) -> None:
    # late is judged beside others: most must not be
    found = statuses(pool(a=column, b=numbers(LATE_AT=NOW + 1), c=numbers(LATE_AT=NOW + 1)), STALE_AFTER, [])
    assert [EndpointStatus(code) for code in found] == [expected, EndpointStatus.READY, EndpointStatus.READY]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (OutlierState.EJECTED, EndpointStatus.EJECTED),
        (OutlierState.PROBING, EndpointStatus.EJECTED),
        (OutlierState.SUSPECT, EndpointStatus.SUSPECT),
        (OutlierState.TRIAL, EndpointStatus.TRIAL),
    ],
)
def test_an_outlier_is_shown_as_what_it_is(state: OutlierState, expected: EndpointStatus) -> None:
    shown = pool(a=numbers(), b=numbers(REACHABLE=0))
    record = OutlierRecord(shown.endpoints[1])
    record.state, record.cause = state, Cause.STALLED
    assert statuses(shown, STALE_AFTER, [record]).tolist() == [EndpointStatus.READY, expected]


def view(shown: EndpointPool) -> PoolView:
    history = PickHistory({}, dict)
    return PoolView(lambda: shown, lambda: 0.25, lambda pool: statuses(pool, STALE_AFTER, []), history)


def test_numbers_that_are_not_known_are_null() -> None:
    shown = view(pool(a=numbers(WAITING=2, KV_USAGE=0.5, INFLIGHT=1), b=NO_NUMBERS))
    shown.members()
    load = json.loads(shown.load())
    assert load["saturation"] == 0.25
    assert load["waiting"] == [2, None]
    assert load["kv_usage"] == [0.5, None]
    assert load["age"] == [0, None]
    assert load["inflight"] == [1, 0]
    assert load["share"] == load["hits"] == [None, None]


def test_members_are_told_again_only_if_they_changed() -> None:
    changing = [pool(a=numbers())]
    shown = PoolView(
        lambda: changing[0], lambda: 0.0, lambda one: statuses(one, STALE_AFTER, []), PickHistory({}, dict)
    )
    first = json.loads(shown.members() or b"")
    assert [one["id"] for one in first["endpoints"]] == ["a"]
    assert shown.members() is None
    changing[0] = pool(a=numbers(), b=numbers())
    second = json.loads(shown.members() or b"")
    assert [one["id"] for one in second["endpoints"]] == ["a", "b"]
    assert json.loads(shown.load())["version"] == second["version"] == first["version"] + 1


class Learner:
    """A `PredictingProducer`, as far as the page asks it."""

    def learnt_of(self, of: Endpoint) -> dict[str, Any]:
        return {"slowness": 1.5, "counter": "begun answers"} if of.id == "a" else {}


def test_what_is_learnt_of_workers_is_shown_where_somebody_learns() -> None:
    shown = view(pool(a=numbers(), b=numbers()))
    shown.members()
    assert "slowness" not in json.loads(shown.load())
    shown.predicting = Learner  # type: ignore[assignment]
    load = json.loads(shown.load())
    assert (load["slowness"], load["counter"]) == ([1.5, None], ["begun answers", None])
    assert learnt(None) == b"null"


def test_a_detected_engine_is_shown_once_its_page_was_read() -> None:
    shown, engines = pool(a=numbers()), dict[str, str]()
    view = PoolView(
        lambda: shown, lambda: 0.0, lambda one: statuses(one, STALE_AFTER, []), PickHistory({}, dict),
        lambda endpoint: engines.get(endpoint.id), lambda: len(engines),
    )  # fmt: skip
    assert [one["engine"] for one in json.loads(view.members() or b"")["endpoints"]] == [None]
    engines["a"] = "sglang"
    assert [one["engine"] for one in json.loads(view.members() or b"")["endpoints"]] == ["sglang"]
    assert view.members() is None


def test_many_models_and_long_texts_are_cut() -> None:
    many = make_endpoint(
        "x" * 1000, models=frozenset(f"m{number}" for number in range(100)), engine="e" * 1000
    )
    shown = view(EndpointPool([many], numbers(), [NO_ADAPTERS], NOW))
    (member,) = json.loads(shown.members() or b"")["endpoints"]
    assert len(member["models"]) == 3
    assert member["more_models"] == 97
    assert len(member["id"]) == len(member["engine"]) == 200


def test_shares_and_hits_of_the_last_minutes() -> None:
    picks: dict[tuple[str, str], int] = {("a", "a"): 100, ("gone", "a"): 7}
    credits = {("a", "a"): Credit(50, 100)}
    history = PickHistory(picks, lambda: credits)
    endpoints = [make_endpoint("a"), make_endpoint("b")]
    history.sample(endpoints, 0.0)
    assert picks == {("a", "a"): 100}, "an endpoint that is gone is forgotten"
    picks[("a", "a")] += 3
    picks[("b", "a")] = 1
    credits[("a", "a")] = Credit(140, 200)
    recent = history.recent(endpoints, 2.0)
    assert recent.shares.tolist() == [0.75, 0.25]
    assert recent.picks_per_second == 2.0
    assert recent.hits[0] == 0.9
    assert np.isnan(recent.hits[1])
    for number in range(100):
        history.sample(endpoints, 15.0 * number)
    assert history.recent(endpoints, 15.0 * 99).seconds == pytest.approx(19 * 15.0)


def test_a_producer_that_was_replaced_counts_anew() -> None:
    credits = [{("a", "a"): Credit(500, 1000)}]
    history = PickHistory({}, lambda: credits[0])
    history.sample([make_endpoint("a")], 0.0)
    credits[0] = {("a", "a"): Credit(1, 2)}
    assert np.isnan(history.recent([make_endpoint("a")], 1.0).hits).all()


def test_of_many_absent_workers_some_are_named() -> None:
    said = json.loads(absent({f"w{number:04}": "y" * 1000 for number in range(5000)}))
    assert said["count"] == 5000
    assert [one["id"] for one in said["workers"]][:2] == ["w0000", "w0001"]
    assert len(said["workers"]) == 50
    assert len(said["workers"][0]["why"]) == 200


class Witness:
    """A `DeliveryFollower`, as far as the page asks it."""

    def says(self, of: Endpoint) -> CacheEvidence | None:
        return CacheEvidence("events", 0.75, 9) if of.id == "a" else None


def test_who_says_what_caches_hold_is_shown_where_a_worker_publishes_events() -> None:
    shown = view(pool(a=numbers(), b=numbers()))
    assert "cache" not in json.loads(shown.load())
    shown.cache_evidence = Witness  # type: ignore[assignment]
    load = json.loads(shown.load())
    assert (load["cache"], load["confidence"]) == (["events", None], [0.75, None])
