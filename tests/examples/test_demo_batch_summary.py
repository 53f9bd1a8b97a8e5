"""The claims of `make demo-batch` are false when what they say is not so."""

from dataclasses import replace
from typing import Any

import pytest

from examples.demo.load import Exchange
from examples.demo_batch.dispatcher import custom_id
from examples.demo_batch.monitor import Sample
from examples.demo_batch.plot import plot
from examples.demo_batch.summary import BatchRun

COUNTED = {
    "submitted": 3, "succeeded": 3, "failed": 0, "expired": 0, "cancelled": 0, "dropped": 0, "backlog": 0
}  # fmt: skip


def answer(number: int, status: int = 200) -> dict[str, Any]:
    return {"custom_id": custom_id(number), "response": {"status_code": status}}


def sample(at: float, load: int, interactive: int = 10) -> Sample:
    return Sample(at, load, interactive, budget=0.5, sent=int(at), answered=0)


def asked(at: float, first_token: float, failure: str | None = None) -> Exchange:
    return Exchange(True, at, "worker-1", at + first_token, at + 1, failure)


RUN = BatchRun(
    started=0.0,
    submitted=10.0,
    answered=20.0,
    capacity=100,
    line=75.0,
    requests=3,
    answers=[answer(0), answer(1), answer(2)],
    counted=COUNTED,
    samples=[sample(0, 10), sample(10, 10), sample(11, 75), sample(12, 80, 16), sample(20, 20)],
    exchanges=[asked(1, 0.1), asked(2, 0.1), asked(12, 0.2), asked(13, 0.3)],
)


def failing(run: BatchRun) -> list[str]:
    """The first words of the claims that are false."""
    return [claim.sentence.partition(":")[0] for claim in run.claims() if not claim.passed]


def test_what_held_is_said_to_have_held() -> None:
    assert failing(RUN) == []


@pytest.mark.parametrize(
    "answers",
    [
        [answer(0), answer(1)],
        [answer(0), answer(1), answer(1)],
        [answer(0), answer(1), answer(2), answer(2)],
        [answer(0), answer(1), answer(2, 500)],
        [answer(0), answer(1), answer(2) | {"response": None}],
        [answer(0), answer(1), answer(3)],
    ],
)
def test_an_answer_that_is_missing_or_doubled_or_an_error(answers: list[dict[str, Any]]) -> None:
    assert failing(replace(RUN, answers=answers)) == ["every batch request was answered, and once"]


@pytest.mark.parametrize(
    "counted", [{"submitted": 4}, {"succeeded": 2, "failed": 1}, {"backlog": 1}, {"expired": 1}]
)
def test_a_broker_that_counted_otherwise(counted: dict[str, int]) -> None:
    assert failing(replace(RUN, counted=COUNTED | counted)) == ["the broker counted the same"]


def test_a_load_above_the_line_that_no_interactive_request_explains() -> None:
    samples = [sample(11, 70), sample(12, 83, 14), sample(20, 20)]
    assert failing(replace(RUN, samples=samples)) == ["the batch kept its distance"]
    long_ago = [sample(1, 20, 0), sample(11, 70), sample(12, 80), sample(20, 20)]
    assert failing(replace(RUN, samples=long_ago)) == ["the batch kept its distance"]


def test_what_was_sent_before_a_wave_and_outlasts_it_is_nobodys_fault() -> None:
    before, wave, still = sample(11, 70), sample(13, 80, 20), sample(22, 80, 20)
    samples = [before, replace(wave, sent=before.sent), replace(still, sent=before.sent)]
    assert failing(replace(RUN, samples=samples)) == []
    samples[-1] = replace(still, sent=before.sent + 1)
    assert failing(replace(RUN, samples=samples)) == ["the batch kept its distance"]


def test_a_pool_that_was_full() -> None:
    samples = [sample(11, 70, 0), sample(12, 100, 30)]
    assert failing(replace(RUN, samples=samples)) == ["the pool was never full"]


def test_an_interactive_request_that_failed() -> None:
    exchanges = [*RUN.exchanges, asked(14, 0.2, "HTTP 503")]
    assert failing(replace(RUN, exchanges=exchanges)) == ["no interactive request failed"]


def test_users_who_wait_too_long() -> None:
    exchanges = [asked(1, 0.1), asked(12, 0.41)]
    expected = "interactive users waited less than 4 x as long for their first token"
    assert failing(replace(RUN, exchanges=exchanges)) == [expected]
    assert len(failing(replace(RUN, exchanges=[asked(1, 0.1)]))) == 1, "nobody was there to notice"


def test_figures_come_without_judgement() -> None:
    """Each sentence says what was seen; the two of first tokens have both figures of each side."""
    samples = [sample(0, 10), sample(10, 60), sample(11, 75), sample(12, 78), sample(20, 20)]
    run = replace(RUN, samples=samples, requests=13)
    assert list(run.figures()) == [
        "13 batch requests in 10.0 s, 1 a second",
        "while requests waited the load was 95% of the line on average, within 5% of it at 67% of 3 looks, 104% at most",
    ]
    *_, first_tokens = RUN.claims()
    assert first_tokens.sentence.endswith(
        "median 2.5 x, 100 ms without batch and 250 ms with it; longest 100 ms and 300 ms"
    )


def test_the_picture_shows_the_line_and_the_moments() -> None:
    text = plot(RUN)
    for word in ("1 - B = 75%", "the batch begins", "all answered", "kept free for interactive requests"):
        assert word in text
