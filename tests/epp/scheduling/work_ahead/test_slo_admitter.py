"""Requests whose first token is due at a time: who is refused at once, and who goes first of those that wait."""

import json

import pytest

from epp.flow_control.controller import FlowControlSwitch
from epp.flow_control.orderings import SloDeadline
from epp.request.rejection import Rejection
from epp.scheduling.saturation import UtilizationDetector
from epp.scheduling.waiting import WaitingRequest
from epp.scheduling.work_ahead.slo_admitter import LATENCY_SLO_ADMITTER, LatencySloAdmitter
from tests.epp.flow_control.flow_settings import band_settings, flow_settings
from tests.epp.scheduling.endpoint_pools import picked
from tests.epp.scheduling.work_ahead.test_learning import teach, tokens
from tests.epp.scheduling.work_ahead.test_plugins import HEADERS, Pool

CONFIG = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: least-cost-scorer}
- {type: latency-slo-admitter%s}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: least-cost-scorer}]}
"""
OF_ALL = CONFIG % ", parameters: {sheddableOnly: false}"


def body(count: int, letter: str) -> bytes:
    return json.dumps({"model": "m", "prompt": tokens(count, letter), "stream": True}).encode()


def due(milliseconds: int) -> dict[str, str]:
    return HEADERS | {"x-llm-d-slo-ttft-ms": str(milliseconds)}


def busy(pool: Pool, count: int = 4000) -> None:
    """Each worker computes prompts: a new one waits for 0.8 s at least."""
    for number in range(2):
        pool.send(tokens(count, f"b{number} "))


def taught(config: str) -> Pool:
    pool = Pool(config=config)
    teach(pool, 30, ahead=0.2)
    pool.now += 3.0
    return pool


def admitter(pool: Pool) -> LatencySloAdmitter:
    [found] = [one for one in pool.scheduler.producers if isinstance(one, LatencySloAdmitter)]
    return found


def test_what_cannot_begin_in_time_anywhere_is_refused_and_counted() -> None:
    pool = taught(OF_ALL)
    busy(pool)
    decision = pool.director.explain(due(300), body(500, "e"), None, pool.now)
    assert (decision.refused_status, admitter(pool).refused) == (429, 0)
    with pytest.raises(
        Rejection, match=r"due in 0\.3 s, and no endpoint is expected to begin before [01]\."
    ) as refused:
        pool.director.direct(due(300), body(500, "c"), None, pool.now)
    assert (refused.value.status, refused.value.reason) == (429, "rejected-slo")
    assert admitter(pool).refused == 1
    [family] = LATENCY_SLO_ADMITTER.metrics([admitter(pool)])
    assert [one.value for one in family.samples] == [1.0]
    picked(pool.director.direct(due(5000), body(500, "d"), None, pool.now))


def test_nothing_is_refused_before_anything_is_learnt_or_while_a_worker_is_idle() -> None:
    pool = Pool(config=OF_ALL)
    busy(pool)
    picked(pool.director.direct(due(1), body(500, "c"), None, pool.now))
    pool = taught(OF_ALL)
    picked(pool.director.direct(due(1), body(500, "c"), None, pool.now))


def test_only_what_may_be_shed_is_refused_unless_the_file_says_more() -> None:
    pool = taught(CONFIG % "")
    busy(pool)
    picked(pool.director.direct(due(300), body(500, "c"), None, pool.now))


def full(pool: Pool) -> None:
    """Requests wait in the picker from now on, by their slack."""
    band = band_settings(ordering=SloDeadline())
    settings, detector = flow_settings(default_band=band), UtilizationDetector()
    FlowControlSwitch(pool.director, pool.store, 10**9).use(settings, detector, pool.now)
    for row in range(2):
        pool.page(row, waiting=50, running=10, computed=1e9)


def test_of_two_that_are_due_at_once_the_one_that_takes_longer_goes_first() -> None:
    pool = taught(OF_ALL)
    full(pool)
    went: list[str] = []
    for name, count in (("short", 100), ("long", 6000)):
        waits = pool.director.direct(due(60_000), body(count, name), None, pool.now)
        assert isinstance(waits, WaitingRequest)
        waits.subscribe(lambda _, __, name=name: went.append(name))  # type: ignore[misc]
    pool.now += 0.05
    for row in range(2):
        pool.page(row, computed=1e9)
    pool.director.dispatch(pool.now)
    assert went == ["long", "short"]


def test_what_would_have_to_wait_is_refused_at_once_and_what_has_waited_too_long_when_it_would_go() -> None:
    pool = taught(OF_ALL)
    full(pool)
    busy_for = pool.scorer.producer.model.numbers[3] * 60
    with pytest.raises(Rejection, match="no endpoint is expected"):
        pool.director.direct(due(int(500 * busy_for) + 1), body(6000, "a"), None, pool.now)
    waits = pool.director.direct(due(60_000), body(500, "b"), None, pool.now)
    assert isinstance(waits, WaitingRequest)
    ended: list[object] = []
    waits.subscribe(lambda outcome, _: ended.append(outcome))
    pool.now += 60.0
    for row in range(2):
        pool.page(row, running=1, computed=1e9)
    pool.director.dispatch(pool.now)
    assert isinstance(ended[0], Rejection)
