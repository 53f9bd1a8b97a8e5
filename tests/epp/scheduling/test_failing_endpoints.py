"""What a director does with endpoints that failed: whom it has looked at, whom it leaves out."""

import json
import random
from typing import Any

import pytest

from epp.endpoints.datastore import Datastore
from epp.outliers.detection import OutlierDetection
from epp.outliers.settings import OutlierSettings
from epp.outliers.slow_start import SlowStart, SlowStartSettings
from epp.scheduling.director import Director
from epp.scheduling.pick import Pick
from tests.epp.scheduling.test_models_endpoint import director, store_of

HEADERS = {":method": "POST", ":path": "/v1/completions"}
BODY = json.dumps({"model": "m", "prompt": "p"}).encode()


def store() -> Datastore:
    return store_of(a=("m",), b=("m",), c=("m",))


def picked(it: Director, now: float = 0.0) -> Pick:
    pick = it.direct(HEADERS, BODY, None, now)
    assert isinstance(pick, Pick)
    return pick


def suspects(store: Datastore) -> list[str]:
    """Filled with those that are looked at."""
    found: list[str] = []
    for endpoint in store.endpoints:
        store.on_suspect[endpoint.key] = lambda name=endpoint.id: found.append(name)  # type: ignore[misc]
    return found


@pytest.mark.parametrize(
    ("listed", "served", "attempts", "looked_at"),
    [
        ("ab", "b", 2, ["a"]),
        ("abc", "c", 3, ["a", "b"]),
        ("abc", "c", 2, []),  # one was skipped, and nobody knows which
        ("ab", "b", 1, []),  # skipped: Envoy's cluster does not have it yet
        ("a", "c", 2, ["a"]),  # Envoy's own choice after the list
        ("a", "c", 1, []),
        ("ab", "a", 3, []),  # senseless
    ],
)
def test_those_that_the_data_plane_tried_first_are_looked_at(
    listed: str, served: str, attempts: int, looked_at: list[str]
) -> None:
    pool = store()
    it = director(pool)
    pick = picked(it)
    it.picks.release(pick, 0.0)
    by_id = {endpoint.id: endpoint for endpoint in pool.endpoints}
    pick.endpoints = tuple(by_id[name] for name in listed)
    pick.in_flight_at = (by_id[served],)
    found = suspects(pool)
    it.picks.retried(pick, attempts, 0.0)
    assert found == looked_at


def test_an_ejected_endpoint_gets_no_request_unless_all_are() -> None:
    pool = store()
    it = director(pool)
    it.picks.outliers = OutlierDetection(pool, OutlierSettings.model_construct(consecutive_5xx=1))
    first = picked(it)
    it.picks.responded(first, 500, 0.0)
    it.picks.release(first, 0.0)
    others = {picked(it).endpoints[0].id for _ in range(20)}
    assert others == {"a", "b", "c"} - {first.endpoints[0].id}
    for endpoint in pool.endpoints:
        pool.set_ejected(endpoint, ejected=True)
    assert {picked(it).endpoints[0].id for _ in range(20)} == {"a", "b", "c"}


def test_what_somebody_else_answered_counts_for_nobody() -> None:
    """Envoy's last resort may be a host that is no endpoint of this picker."""
    pool = store()
    it = director(pool)
    it.picks.outliers = OutlierDetection(pool, OutlierSettings.model_construct(consecutive_5xx=1))
    pick = picked(it)
    it.picks.served(pick, "10.9.9.9:1")
    it.picks.responded(pick, 500, 0.0)
    it.picks.release(pick, 0.0)
    assert not it.picks.outliers.ejected


@pytest.mark.parametrize(("status", "ejected"), [(200, 1), (503, 0)])
def test_what_was_refused_everywhere_was_the_requests_fault(status: int, ejected: int) -> None:
    """With three choices one poisonous prompt fails at three workers."""
    pool = store()
    it = director(pool)
    settings = OutlierSettings.model_construct(consecutive_5xx=2, consecutive_local_origin_failure=2)
    it.picks.outliers = OutlierDetection(pool, settings)
    for _ in range(6):
        pick = picked(it)
        pick.endpoints = pool.endpoints
        it.picks.served(pick, pool.endpoints[2].destination)
        it.picks.retried(pick, 3, 0.0)
        it.picks.responded(pick, status, 0.0)
        it.picks.release(pick, 0.0)
    assert len(it.picks.outliers.ejected) == ejected


def test_nothing_is_kept_of_requests_that_are_over() -> None:
    pool = store()
    it = director(pool)
    detection: Any = OutlierDetection(pool, OutlierSettings())
    it.picks.outliers = detection
    for status in (200, 500, None):
        pick = picked(it)
        if status is not None:
            it.picks.responded(pick, status, 0.0)
        it.picks.release(pick, 0.0)
    assert not detection._sent
    assert all(one.unanswered.since(1, streamed=False) is None for one in detection._records.values())


def test_a_recovered_endpoint_is_warmed_up() -> None:
    pool = store()
    it = director(pool)
    slow_start = SlowStart(
        pool, SlowStartSettings.model_construct(min_weight_percent=0.0), lambda: 0.0, random.Random(1)
    )
    it.eligible.slow_start = slow_start
    slow_start.begin(pool.endpoints[0])
    assert {picked(it).endpoints[0].id for _ in range(50)} == {"b", "c"}
