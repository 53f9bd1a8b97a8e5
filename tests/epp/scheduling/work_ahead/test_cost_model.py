"""What a request costs, learnt from made-up answers of a pool whose costs are known."""

import random
from collections.abc import Callable

import pytest

from epp.scheduling.peer_pick import Fit
from epp.scheduling.work_ahead.cost_model import UNKNOWN, CostModel, Known, WorkerPace

FIXED, MISSING, AHEAD, REQUEST = 0.02, 0.25, 0.1, 0.01
"""Seconds: of each request, for a thousand tokens, for a request there."""


def seconds(known: Known, ahead: float = AHEAD, missing: float = MISSING) -> float:
    return FIXED + missing * known[0] / 1000 + ahead * known[1] / 1000 + REQUEST * known[2]


class Answers:
    """Answers of eight workers, each within a tenth of what the costs say."""

    def __init__(self, seed: int = 1) -> None:
        self.model = CostModel()
        self.paces = [WorkerPace() for _ in range(8)]
        self._rng = random.Random(seed)

    def come(self, count: int, took: Callable[[Known, int, int], float]) -> None:
        """`took`: seconds, by what was known, the worker and the number of the answer."""
        for number in range(count):
            rng, worker = self._rng, self._rng.randrange(8)
            known = (
                rng.choice((1.0, 400.0, 3000.0)),
                rng.choice((0.0, 0.0, 1500.0, 6000.0)),
                rng.randrange(9),
                0.0,
                rng.choice((0.0, 0.1, 0.4)),
            )
            real = took(known, worker, number) * rng.uniform(0.9, 1.1)
            self.model.observe(self.paces[worker], known, real, self.model.predict(known))

    def numbers(self) -> tuple[float, float]:
        return self.model.numbers[1], self.model.ahead


def honest(known: Known, worker: int, number: int) -> float:
    return seconds(known)


def assert_near(answers: Answers, missing: float = MISSING, ahead: float = AHEAD) -> None:
    assert answers.model.learnt
    assert answers.numbers() == pytest.approx((missing, ahead / missing), rel=0.2)


def test_the_configured_costs_hold_until_something_is_learnt() -> None:
    answers = Answers()
    for _ in range(11):
        assert (answers.model.learnt, answers.model.ahead, answers.model.beyond) == (False, 1.0, 0.0)
        assert answers.model.predict((100.0, 100.0, 1.0, 0.0, 0.0)) == UNKNOWN
        answers.come(1, honest)


def test_costs_are_learnt_and_what_comes_is_foreseen() -> None:
    answers = Answers()
    answers.come(200, honest)
    assert_near(answers)
    assert answers.model.numbers[3] == pytest.approx(REQUEST, rel=0.2)
    assert answers.model.error is not None
    assert answers.model.error < 0.1
    known = 3000.0, 1500.0, 4.0, 0.0, 0.0
    assert answers.model.predict(known) == pytest.approx(seconds(known), rel=0.1)


def test_what_is_ahead_costs_less_the_longer_it_has_been_computed() -> None:
    def took(known: Known, worker: int, number: int) -> float:
        return seconds(known, ahead=MISSING) - 0.8 * min(known[4], MISSING * known[1] / 1000)

    answers = Answers()
    answers.come(400, took)
    assert answers.model.numbers[5] == pytest.approx(0.8, rel=0.2)
    assert answers.model.error is not None
    assert answers.model.error < 0.1
    longer = [answers.model.predict((400.0, 6000.0, 2.0, 0.0, since)) for since in (0.0, 0.5, 1.0, 60.0)]
    assert longer == sorted(longer, reverse=True)
    assert longer[-1] > 0.0


def test_first_bytes_say_how_slow_a_worker_is() -> None:
    """Whatever it was taken for, and with one answer in a hundred that took a hundred times as long."""
    answers = Answers()
    for number in range(2000):
        worker = number % 8
        known = (400.0 + 300 * (number % 9), 500.0 * (number % 4), number % 5, 0.0, 0.0)
        pace = answers.paces[worker]
        real = seconds(known) * (2.0 if worker == 3 else 1.0) * (100 if number % 100 == 51 else 1)
        answers.model.observe(pace, known, real / pace.slowness, UNKNOWN, pace.slowness)
    assert [pace.slowness for pace in answers.paces] == pytest.approx([1, 1, 1, 2, 1, 1, 1, 1], rel=0.2)


def test_where_prompts_are_computed_side_by_side_nothing_is_ahead() -> None:
    answers = Answers()
    answers.come(400, lambda known, worker, number: seconds(known, ahead=0.0))
    assert answers.model.learnt
    assert answers.model.ahead < 0.1


def test_times_that_tell_nothing_leave_the_configured_costs() -> None:
    answers = Answers()
    answers.come(400, lambda known, worker, number: 0.003)  # headers before anything is computed
    assert (answers.model.learnt, answers.model.ahead) == (False, 1.0)


@pytest.mark.parametrize(
    "took",
    [
        pytest.param(lambda known, worker, number: seconds(known) * (100 if number % 100 == 7 else 1), id="outliers"),
        pytest.param(lambda known, worker, number: seconds(known) + 5.0 * (number % 25 == 7), id="slow client"),
        pytest.param(lambda known, worker, number: seconds(known) if worker else 0.001, id="at once"),
        pytest.param(lambda known, worker, number: seconds(known) if worker else 30.0, id="very late"),
    ],
)  # fmt: skip
def test_some_answers_that_are_wrong_teach_little(took: Callable[[Known, int, int], float]) -> None:
    answers = Answers()
    answers.come(400, honest)
    for _ in range(8):
        answers.come(100, took)
        assert_near(answers)


def test_a_worker_that_lies_teaches_nothing_until_it_is_honest_again() -> None:
    answers = Answers()
    answers.come(200, honest)
    answers.come(200, lambda known, worker, number: seconds(known) if worker else 0.001)
    assert [pace.agrees for pace in answers.paces] == [False, *[True] * 7]
    answers.come(400, honest)
    assert all(pace.agrees for pace in answers.paces)


def test_another_machine_is_learnt_and_the_old_one_forgotten() -> None:
    answers = Answers()
    answers.come(400, honest)
    answers.come(500, lambda known, worker, number: seconds(known, ahead=0.3, missing=0.6))
    assert_near(answers, missing=0.6, ahead=0.3)


def test_the_same_answers_teach_the_same() -> None:
    one, other = Answers(), Answers()
    for answers in one, other:
        answers.come(333, honest)
    assert one.model.numbers == other.model.numbers


def test_what_is_kept_is_bounded() -> None:
    model, known = CostModel(), (1.0, 1.0, 1.0, 0.0, 0.0)
    for number in range(5_000):
        model.observe(WorkerPace(), known, 0.1, UNKNOWN)
        assert len(model._workers) <= 400, number
        assert len(model._pending) < 16


def test_at_most_fifty_answers_a_second_are_learnt_from() -> None:
    model = CostModel()
    wanted = sum(model.wants(100.0 + number / 1000) for number in range(10_000))
    assert wanted == pytest.approx(500, abs=20)
    assert all(model.wants(200.0 + number / 10) for number in range(100))


def test_the_first_answers_may_be_all_alike() -> None:
    model, pace = CostModel(), WorkerPace()
    for known, took in [((1800.0, 0.0, 0.0, 0.0, 0.0), 0.4)] * 4 + [((840.0, 0.0, 1.0, 0.0, 0.0), 0.2)] * 12:
        model.observe(pace, known, took, model.predict(known))
    assert sum(model.numbers) < 1.0
    assert model.predict((840.0, 0.0, 1.0, 0.0, 0.0)) == pytest.approx(0.2, rel=0.2)


HONEST = Fit((FIXED, MISSING, AHEAD, REQUEST, 0.0, 0.0), 400)
LIES = [
    Fit((0.0, 3600.0, 0.0, 0.0, 0.0, 0.0), 2**63),
    Fit((0.0, 0.001, 0.001, 0.0, 0.0, 0.0), 2**63),
    Fit((3600.0, MISSING, 0.0, 0.0, 0.0, 0.0), 2**63),
]


def test_who_has_no_answers_begins_with_what_most_others_learnt() -> None:
    model = CostModel()
    assert model.use_peer_fits([LIES[0], HONEST, HONEST])
    assert (model.learnt, model.peers, model.own) == (True, 1, None)
    assert model.numbers == list(HONEST.seconds)
    assert model.ahead == pytest.approx(AHEAD / MISSING)
    assert not model.use_peer_fits([]), "its workers are the same when the others are gone"
    assert model.learnt


@pytest.mark.parametrize("lie", LIES)
def test_a_picker_that_lies_moves_nothing_that_own_answers_contradict(lie: Fit) -> None:
    answers, alone = Answers(), Answers()
    answers.model.use_peer_fits([lie])
    for at in range(1, 400):
        answers.come(1, honest)
        alone.come(1, honest)
        if at >= 16:  # twelve are enough, in steps of four
            assert answers.model.numbers == alone.model.numbers, at
            assert answers.model.peers == 0
    answers.model.use_peer_fits([lie, HONEST])
    assert answers.model.peers == 1
    assert_near(answers)


def test_fits_count_by_the_answers_behind_them() -> None:
    answers = Answers()
    answers.come(100, honest)
    own = answers.model.own
    assert own is not None
    answers.model.use_peer_fits([HONEST])
    expected = [
        (100 * one + 400 * other) / 500 for one, other in zip(own.seconds, HONEST.seconds, strict=True)
    ]
    assert answers.model.numbers == pytest.approx(expected)
    assert answers.model.own == own, "what is told is what was learnt here"


def test_what_others_learnt_is_of_no_use_where_times_tell_nothing() -> None:
    answers = Answers()
    answers.model.use_peer_fits([HONEST])
    answers.come(100, lambda known, worker, number: 0.003)
    assert (answers.model.learnt, answers.model.ahead) == (False, 1.0)
    answers.model.use_peer_fits([Fit(HONEST.seconds[:4], 400)])
    assert not answers.model.learnt
