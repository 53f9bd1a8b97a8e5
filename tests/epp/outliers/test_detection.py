"""Which endpoints are ejected, for how long, and how they come back; at times that the test chooses."""

import itertools
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from discovery import Instance, InstanceAddedEvent, InstanceRemovedEvent
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint
from epp.outliers.detection import OutlierDetection
from epp.outliers.outlier_record import Cause
from epp.outliers.requesters import WINDOW, Requester
from epp.outliers.settings import Failure, OutlierSettings
from tests.python_steps import python_steps


@dataclass
class Pool:
    """A datastore, its detection and its clock; a tick passes each second."""

    count: int = 4
    changes: dict[str, Any] = field(default_factory=dict)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.store = Datastore()
        for number in range(self.count):
            self.store.apply(InstanceAddedEvent(instance(number)))
        self.detection = OutlierDetection(self.store, OutlierSettings.model_construct(**self.changes))

    def endpoint(self, number: int) -> Endpoint:
        return self.store.endpoints[number]

    def answer(
        self,
        number: int,
        status: int = 200,
        times: int = 1,
        failure: Failure | None = None,
        of: Requester | None = None,
        **sent: bool,
    ) -> None:
        for _ in range(times):
            request = self.send(number, **sent)
            self.detection.answered(request, self.endpoint(number), status, failure, self.now, of)
            self.detection.ended(request, self.now)

    def send(self, number: int, *, streamed: bool = True) -> object:
        request = object()
        self.detection.sent(request, self.endpoint(number), self.now, streamed=streamed)
        return request

    def is_silent(self, number: int, times: int = 3, **sent: bool) -> list[object]:
        """Requests that wait for their answers."""
        return [self.send(number, **sent) for _ in range(times)]

    def ejected(self) -> list[int]:
        """Those that get no request."""
        reachable = self.store.pool(self.now).reachable
        return [row for row in range(len(reachable)) if not reachable[row]]

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.detection.tick(self.now)

    def wait_while_others_answer(self, seconds: int, **sent: bool) -> None:
        for _ in range(seconds):
            self.wait(1)
            self.answer(0, **sent)

    def probe(self, *, alive: bool = True) -> list[Endpoint]:
        asked = list(self.detection.to_probe)
        for endpoint in asked:
            self.detection.probed(endpoint, self.now, alive=alive)
        return asked


def instance(number: int, incarnation: str = "1") -> Instance:
    return Instance(f"w{number}", "ns", "c", f"10.0.0.{number}", 8000, incarnation)


def failed(**changes: Any) -> Pool:
    """One whose w1 answered five requests in a row with 500."""
    pool = Pool(changes=changes)
    pool.answer(1, 500, times=5)
    return pool


@pytest.mark.parametrize(
    ("answers", "causes"),
    [
        ([(500, None)] * 5, [Cause.CONSECUTIVE_5XX]),
        ([(500, None)] * 4 + [(200, None)] + [(500, None)] * 4, []),
        ([(429, None)] * 9, []),
        ([(503, Failure.CONNECT)] * 5, [Cause.LOCAL_ORIGIN]),
        ([(502, Failure.RESET)] * 5, [Cause.LOCAL_ORIGIN]),
        ([(504, Failure.TIMEOUT)] * 5, [Cause.LOCAL_ORIGIN]),
        ([(503, Failure.CONNECT)] * 4 + [(500, None)] * 4, []),  # split, as in Envoy
    ],
)
def test_failures_in_a_row_eject(answers: list[tuple[int, Failure | None]], causes: list[Cause]) -> None:
    pool = Pool()
    for status, failure in answers:
        pool.answer(1, status, failure=failure)
    assert list(pool.detection.ejections) == causes
    assert pool.ejected() == ([1] if causes else [])


def test_a_worker_that_fails_every_other_request_is_ejected() -> None:
    pool = Pool()
    pool.answer(0, 200, times=12)
    for _ in range(5):
        pool.answer(1, 500)
        pool.answer(1, 200)
    assert pool.ejected() == []
    pool.answer(1, 500)
    pool.answer(1, 500)
    assert pool.ejected() == [1]
    assert list(pool.detection.ejections) == [Cause.FAILURE_PERCENTAGE]


def test_the_percentage_is_that_of_the_last_answers() -> None:
    pool = Pool(2, {"failure_percentage_request_volume": 10, "consecutive_5xx": 0})
    pool.answer(0, 200, times=10)
    for _ in range(20):
        pool.answer(1, 500, times=4)
        pool.answer(1, 200, times=6)
    pool.answer(1, 500, times=4)
    assert pool.ejected() == []
    pool.answer(1, 500)
    assert pool.ejected() == [1]


def test_what_fails_everywhere_alike_ejects_nobody() -> None:
    pool = Pool()
    for _ in range(200):
        for number in range(4):
            pool.answer(number, 500)
            pool.answer(number, 200)
    assert pool.detection.ejections == {}


def distinct(fairness_id: str = "default-flow") -> Iterator[Requester]:
    """Requests with one fairness id, each with a prompt of its own."""
    return (Requester(fairness_id, (fairness_id, number)) for number in itertools.count())


POISON = Requester("tenant", ("m", 10, 4711))


@pytest.mark.parametrize("failure", [None, Failure.RESET, Failure.TIMEOUT])
def test_a_prompt_that_fails_everywhere_is_no_workers_fault(failure: Failure | None) -> None:
    pool = Pool(6)
    for _ in range(2):
        for number in range(6):
            pool.answer(number, 500, 90, failure, POISON)
    pool.answer(3, 500, 4)
    assert pool.detection.ejections == {}


def test_a_worker_that_a_prompt_ejected_alone_is_back_once_it_fails_elsewhere() -> None:
    pool = Pool(6, {"probe_path": "", "consecutive_5xx": 1})
    pool.answer(0, 500, of=POISON)
    assert pool.ejected() == [0], "nothing is known of the prompt"
    for number in range(1, 6):
        pool.answer(number, 500, 9, of=POISON)
    assert pool.ejected() == [0]
    pool.wait(1)
    assert pool.ejected() == [], "it fails elsewhere too"
    pool.answer(0, 200)
    assert pool.detection.ejected == []


def test_the_trial_of_such_a_prompt_is_none() -> None:
    pool = Pool(3, {"probe_path": ""})
    pool.answer(0, 500, 1, of=POISON)
    pool.answer(1, 500, 5)
    pool.wait(30)
    pool.answer(1, 500, 1, of=POISON)
    assert pool.ejected() == [], "it gets another request"
    pool.answer(1, 200)
    assert pool.detection.ejected == []
    assert pool.detection.ejections == {Cause.CONSECUTIVE_5XX: 1}


def test_the_prompts_of_one_tenant_that_all_fail_eject_no_worker_while_others_succeed() -> None:
    pool = Pool(6)
    good, bad = distinct("good"), distinct("bad")
    for number in range(6):
        pool.answer(number, of=next(good))
    for number in range(6):
        for _ in range(50):
            pool.answer(number, 500, of=next(bad))
    assert pool.detection.ejections == {}


def test_one_tenant_whose_requests_succeed_elsewhere_finds_all_that_fail() -> None:
    pool = Pool(6)
    requests = distinct("only")
    for _ in range(5):
        for number in range(6):
            pool.answer(number, 500 if number < 3 else 200, of=next(requests))
    assert pool.ejected() == [0, 1, 2]


def test_where_nothing_succeeds_no_tenant_is_blamed() -> None:
    pool = Pool(4)
    requests = distinct()
    for _ in range(5):
        for number in range(4):
            pool.answer(number, 500, of=next(requests))
    assert pool.detection.ejections.total() == 2


def test_a_prompt_that_is_sent_again_finds_a_worker_that_fails() -> None:
    pool = Pool()
    pool.answer(1, 500, 50, of=POISON)
    assert pool.ejected() == [], "it may be the prompt"
    pool.answer(2, 200, of=POISON)
    pool.answer(1, 500, 4, of=POISON)
    pool.answer(3, 500, 5, of=POISON)
    assert pool.ejected() == [1, 3]


def test_what_a_prompt_did_is_forgotten() -> None:
    pool = Pool(changes={"consecutive_5xx": 1})
    pool.answer(1, 500, of=POISON)
    pool.wait(int(WINDOW) + 1)
    pool.answer(2, 500, of=POISON)
    assert pool.ejected() == [1, 2]


def test_few_requests_make_no_percentage() -> None:
    pool = Pool(changes={"consecutive_5xx": 0})
    pool.answer(0, 200, times=12)
    pool.answer(1, 500, times=11)
    assert pool.ejected() == []
    pool = Pool(changes={"consecutive_5xx": 0})
    pool.answer(0, 200, times=11)
    pool.answer(1, 500, times=50)
    assert pool.ejected() == [], "nobody to compare it with"


@pytest.mark.parametrize(
    ("count", "percent", "most"),
    [(1, 50, 0), (2, 50, 1), (3, 50, 1), (4, 50, 2), (20, 10, 2), (3, 10, 1), (3, 100, 2), (4, 0, 0)],
)
def test_never_more_than_a_share_of_the_pool(count: int, percent: float, most: int) -> None:
    pool = Pool(count, {"max_ejection_percent": percent})
    for number in range(count):
        pool.answer(number, 500, times=5)
    assert len(pool.ejected()) == most
    assert pool.detection.overflows == count - most


def test_an_ejected_endpoint_is_probed_then_gets_one_request_then_all() -> None:
    pool = failed()
    pool.wait(29)
    assert not pool.probe()
    pool.wait(1)
    assert pool.ejected() == [1]
    assert [endpoint.id for endpoint in pool.probe()] == ["w1"]
    assert pool.ejected() == []
    request = pool.send(1)
    assert pool.ejected() == [1]
    pool.detection.answered(request, pool.endpoint(1), 200, None, pool.now)
    assert pool.ejected() == []
    assert not pool.detection.ejected


def test_a_failed_probe_costs_no_request() -> None:
    pool = failed()
    pool.wait(30)
    for _ in range(3):
        assert pool.probe(alive=False)
        assert pool.ejected() == [1]
        pool.wait(9)
        assert not pool.probe()
        pool.wait(1)
    pool.probe()
    assert pool.ejected() == []


def test_pauses_grow_with_each_failed_trial_up_to_the_longest() -> None:
    pool = failed(max_ejection_time=100.0, probe_path="")
    for pause in 30, 60, 90, 100, 100:
        pool.wait(pause - 1)
        assert pool.ejected() == [1]
        pool.wait(1)
        assert pool.ejected() == []
        pool.answer(1, 500)
        assert pool.ejected() == [1]


def test_pauses_shrink_again_while_all_is_well() -> None:
    pool = failed(probe_path="")
    pool.wait(30)
    pool.answer(1)
    pool.wait(20)
    pool.answer(1, 500, times=5)
    pool.wait(30)
    assert pool.ejected() == []


def test_a_trial_whose_client_goes_away_is_repeated() -> None:
    pool = failed(probe_path="")
    pool.wait(30)
    request = pool.send(1)
    assert pool.ejected() == [1]
    pool.detection.ended(request, pool.now)
    assert pool.ejected() == []


def test_a_trial_that_gets_no_answer_fails() -> None:
    pool = failed(probe_path="")
    pool.wait(30)
    pool.send(1)
    pool.wait_while_others_answer(12)
    assert pool.detection.ejections == {Cause.CONSECUTIVE_5XX: 1, Cause.STALLED: 1}


def test_an_endpoint_that_is_silent_while_others_answer_is_ejected() -> None:
    pool = Pool(changes={"suspect_timeout": 0.0})
    requests = pool.is_silent(1)
    for _ in range(10):
        pool.wait(1)
        pool.answer(0)
        assert pool.ejected() == []
    pool.wait(1)
    assert pool.ejected() == [1]
    assert list(pool.detection.ejections) == [Cause.STALLED]
    for request in requests:
        pool.detection.ended(request, pool.now)
    assert pool.ejected() == [1]


@pytest.mark.parametrize("case", ["nobody answers", "few requests", "it answers others", "all are slow"])
def test_silence_that_says_nothing(case: str) -> None:
    pool = Pool()
    if case == "all are slow":
        request = pool.send(0)
        pool.wait(5)
        pool.detection.answered(request, pool.endpoint(0), 200, None, pool.now)
        patience = 15
    else:
        patience = 30
    for _ in range(2 if case == "few requests" else 3):
        pool.send(1)
    for _ in range(patience):
        pool.wait(1)
        if case != "nobody answers":
            pool.answer(0)
        if case == "it answers others":
            pool.answer(1)
    assert pool.ejected() == []


def test_answers_that_are_not_streamed_may_take_longer() -> None:
    pool = Pool(changes={"suspect_timeout": 0.0})
    pool.is_silent(1, streamed=False)
    pool.wait_while_others_answer(30, streamed=False)
    assert pool.ejected() == []
    pool.wait(1)
    assert pool.ejected() == [1]


def test_answers_that_are_heard_of_late_have_as_much_longer() -> None:
    pool = Pool()
    pool.detection.heard_late = 2.0
    pool.is_silent(1)
    pool.wait_while_others_answer(1)
    pool.wait(1)
    assert pool.ejected() == []
    pool.wait(1)
    assert pool.ejected() == [1]


def test_a_picker_that_stood_still_blames_nobody() -> None:
    pool = Pool(changes={"suspect_timeout": 0.0})
    pool.is_silent(1)
    pool.wait_while_others_answer(1)
    pool.now += 60.0
    pool.detection.tick(pool.now)
    pool.wait(9)
    assert pool.ejected() == []


def test_an_endpoint_that_is_lost_too_is_not_ejected_for_silence() -> None:
    """It is avoided anyway, and used again as soon as it continues."""
    pool = Pool(changes={"suspect_timeout": 0.0})
    pool.is_silent(1)
    pool.store.set_lost(pool.endpoint(1), lost=True)
    pool.wait_while_others_answer(30)
    pool.store.set_lost(pool.endpoint(1), lost=False)
    pool.wait(9)
    assert pool.ejected() == []


def test_an_attempt_that_the_data_plane_repeated_elsewhere_counts() -> None:
    pool = Pool()
    for _ in range(5):
        request = pool.send(1)
        pool.detection.attempt_failed(pool.endpoint(1), pool.now)
        pool.detection.answered(request, pool.endpoint(0), 200, None, pool.now)
    assert pool.ejected() == [1]


def test_a_new_process_and_a_new_incarnation_begin_anew() -> None:
    pool = failed()
    pool.store.process_replaced(pool.endpoint(1))
    assert pool.ejected() == []
    pool.answer(1, 500, times=5)
    assert pool.ejected() == [1]
    pool.store.apply(InstanceRemovedEvent(instance(1), "deleted"))
    pool.store.apply(InstanceAddedEvent(instance(1, "2")))
    assert pool.ejected() == []
    assert not pool.detection.ejected


def test_what_was_sent_to_an_endpoint_before_it_was_removed_is_forgotten() -> None:
    pool = Pool()
    removed = pool.endpoint(1)
    requests = [pool.send(1) for _ in range(5)]
    pool.store.apply(InstanceRemovedEvent(instance(1), "deleted"))
    for request in requests:
        pool.detection.answered(request, removed, 500, None, pool.now)
    pool.wait(30)
    assert pool.ejected() == []
    assert not pool.detection.ejected


def test_the_end_of_detection_gives_all_endpoints_back() -> None:
    pool = failed()
    pool.detection.close()
    assert pool.ejected() == []
    assert not pool.store.on_change
    assert not pool.store.on_reset


def test_ejection_and_return_are_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pool = Pool(count=2, changes={"probe_path": ""})
    pool.answer(1, 500, times=5)
    pool.answer(0, 500, times=20)
    pool.wait(30)
    pool.answer(1)
    assert caplog.messages == [
        "w1 (10.0.0.1:8000) is ejected for 30 s: it answered 5 requests in a row with 5xx; 1 of 2 endpoints are ejected",
        "w0 (10.0.0.0:8000) is not ejected (consecutive_5xx): 1 of 2 endpoints are, and maxEjectionPercent allows no more",
        "w1 (10.0.0.1:8000) answered its trial and is back",
    ]


def test_a_connection_that_was_cut_when_a_process_ended_is_not_held_against_the_next_one() -> None:
    pool = Pool()
    requests = [pool.send(1) for _ in range(5)]
    pool.store.process_replaced(pool.endpoint(1))
    for request in requests:
        pool.detection.answered(request, pool.endpoint(1), 502, Failure.RESET, pool.now)
    assert pool.ejected() == []


def test_where_nothing_may_be_ejected_what_would_be_is_counted() -> None:
    pool = Pool(changes={"max_ejection_percent": 0.0})
    pool.is_silent(1)
    pool.wait_while_others_answer(11)
    assert pool.ejected() == []
    assert pool.detection.overflows == 1
    assert not pool.detection.ejections


def test_an_endpoint_that_is_silent_while_others_answer_is_avoided_until_it_answers() -> None:
    pool = Pool()
    requests = pool.is_silent(1)
    pool.wait_while_others_answer(1)
    assert pool.ejected() == []
    pool.wait(1)
    assert pool.ejected() == [1]
    assert not pool.detection.ejections
    pool.wait(5)
    pool.detection.answered(requests[2], pool.endpoint(1), 200, None, pool.now)
    assert pool.ejected() == []
    assert not pool.detection.ejected


def test_an_endpoint_that_stays_silent_is_ejected_at_last() -> None:
    pool = Pool()
    pool.is_silent(1)
    pool.wait_while_others_answer(11)
    assert pool.detection.ejections == {Cause.STALLED: 1}
    assert pool.ejected() == [1]


def test_a_suspect_that_nobody_waits_for_any_more_gets_one_request_on_trial() -> None:
    pool = Pool()
    requests = pool.is_silent(1)
    pool.wait_while_others_answer(1)
    pool.wait(1)
    assert pool.ejected() == [1]
    for request in requests:
        pool.detection.ended(request, pool.now)
    pool.wait(1)
    assert pool.ejected() == []
    request = pool.send(1)
    assert pool.ejected() == [1]
    pool.detection.answered(request, pool.endpoint(1), 200, None, pool.now)
    assert pool.ejected() == []
    assert not pool.detection.ejected


@pytest.mark.parametrize("silent", [1, 11])
def test_any_answer_of_a_worker_that_stalled_ends_its_trial(silent: int) -> None:
    """A busy machine made it slow, and its trial is the first poisonous prompt: one error of its own ejects no worker."""
    pool = Pool(changes={"probe_path": ""})
    requests = pool.is_silent(1)
    pool.wait_while_others_answer(silent + 1)
    pool.wait(1)
    assert pool.ejected() == [1]
    for request in requests:
        pool.detection.ended(request, pool.now)
    pool.wait(30)
    before = pool.detection.ejections.copy()
    pool.answer(1, 500, of=POISON)
    assert (pool.detection.ejected, pool.detection.ejections) == ([], before)
    pool.answer(1, 500, 4)
    assert pool.detection.ejections == before + Counter({Cause.CONSECUTIVE_5XX: 1}), "it counts as ever"


def test_a_suspect_that_answers_with_errors_is_an_outlier_soon() -> None:
    pool = Pool()
    requests = pool.is_silent(1, 6)
    pool.wait_while_others_answer(1)
    pool.wait(1)
    for request in requests:
        pool.detection.answered(request, pool.endpoint(1), 500, None, pool.now)
    assert pool.detection.ejections == {Cause.CONSECUTIVE_5XX: 1}


def test_a_suspect_beyond_the_share_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pool = Pool(3)
    for number in (1, 2):
        pool.is_silent(number)
    pool.wait_while_others_answer(3)
    assert pool.ejected() == [1]
    assert caplog.messages == [
        "w1 (10.0.0.1:8000) is avoided until it answers: its requests wait, while others answer theirs",
        "w2 (10.0.0.2:8000) is not avoided (stalled): 1 of 3 endpoints are, and maxEjectionPercent allows no more",
    ]


def test_suspects_are_part_of_the_share() -> None:
    pool = Pool(4)
    for number in (1, 2, 3):
        pool.is_silent(number)
    for _ in range(30):
        pool.wait(1)
        pool.answer(0)
        assert len(pool.ejected()) <= 2


def test_a_large_pool_that_stalls_is_looked_at_once_in_each_turn() -> None:
    def turn(count: int) -> int:
        """Steps of the last turn, when half of them are avoided."""
        store = Datastore()
        for number in range(count):
            store.apply(InstanceAddedEvent(instance(number)), {})
        detection = OutlierDetection(store, OutlierSettings.model_construct(stalled_requests=1))
        for endpoint in store.endpoints[1:]:
            detection.sent(object(), endpoint, 0.0, streamed=True)
        detection.sent("answered", store.endpoints[0], 0.1, streamed=True)
        detection.answered("answered", store.endpoints[0], 200, None, 0.2)
        for number in range(7):
            detection.tick(1.5 + number * 0.25)
        assert len(detection.ejected) == count // 2
        return python_steps(lambda: detection.tick(1.5 + 7 * 0.25))

    assert turn(800) < 9 * turn(100), "in proportion to the pool, not to its square"
