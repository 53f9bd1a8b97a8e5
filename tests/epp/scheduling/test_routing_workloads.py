"""The prompts of `benchmarks/routing` have the shape that they claim, and its figures say what they name."""

import statistics
from collections.abc import Iterator

import pytest

from benchmarks.routing.figures import Answer, Figures
from benchmarks.routing.workloads import WORKLOADS, Turn, Watched, burst, mooncake, tenants

TUNING = {"shared, streamed", "growing sessions", "long tail", "60 at once, same"}
_ANSWER = 4.0
"""Seconds until an answer is complete, about."""


def flat(turns: list[Turn]) -> list[Turn]:
    """All turns of all sessions, in the order of their arrival."""
    return [turn for _, turn in sorted(_flat(turns), key=lambda one: one[0])]


def _flat(turns: list[Turn]) -> Iterator[tuple[float, Turn]]:
    for first in turns:
        at, turn = first.at, first
        while True:
            yield at, turn
            if turn.then is None:
                break
            turn = turn.then
            at += _ANSWER + turn.at


def cached_before(turns: list[Turn], block: int) -> float:
    """The share of all blocks, of so many tokens, that an endless cache would have had."""
    seen: set[str] = set()
    hits = blocks = 0
    for turn in turns:
        prefixes = [turn.prompt[:end] for end in range(4 * block, len(turn.prompt) + 1, 4 * block)]
        hits += sum(prefix in seen for prefix in prefixes)
        blocks += len(prefixes)
        seen.update(prefixes)
    return hits / blocks


def test_conversations_have_the_published_shape_at_a_quarter_of_the_length() -> None:
    """Table 2 of Mooncake (FAST 2025): 12,035 tokens to read, 343 to write, 40 % of the blocks cached."""
    turns = [turn for seed in range(3) for turn in flat(mooncake(seed))]
    assert statistics.fmean(len(turn.prompt) / 4 for turn in turns) == pytest.approx(12_035 / 4, rel=0.15)
    assert statistics.fmean(turn.output_tokens for turn in turns) == pytest.approx(343 / 4, rel=0.1)
    assert cached_before(flat(mooncake(0)), 128) == pytest.approx(0.40, abs=0.06)


def test_tenants_ask_ever_more_often() -> None:
    halves = [len([turn for turn in tenants(0) if start <= turn.at < start + 20]) for start in (0, 20)]
    assert halves[1] > 2 * halves[0]


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_gives_the_same_turns_every_time_and_another_seed_others(name: str) -> None:
    turns = WORKLOADS[name].turns
    assert turns(1) == turns(1) != turns(2)


def test_constants_are_chosen_on_four_workloads_only() -> None:
    assert {name for name, workload in WORKLOADS.items() if workload.tuning} == TUNING


def test_a_workload_has_another_rate_and_duration() -> None:
    slow = WORKLOADS["shared, Zipf"].at_rate(2.0).lasting(20.0).turns(0)
    assert 20 < len(slow) < 65
    assert slow[-1].at < 20


def test_requests_that_come_all_at_once_have_no_rate() -> None:
    with pytest.raises(ValueError, match="has no rate"):
        WORKLOADS["60 at once, same"].at_rate(3.0)
    assert len(WORKLOADS["60 at once, same"].lasting(3.0).turns(0)) == len(burst(0, same=True))


def test_figures_of_a_run() -> None:
    answers = [
        Answer(at, at + 1.0, at + 2.0, worker, 100, 50, 10)
        for at, worker in ((0, "w0"), (8, "w1"), (9, "w1"))
    ]
    broken = Answer(9.5, 9.6, 9.6, "w0", 100, 0, failed=True)
    found = Figures.of([*answers, broken], workers=3, watched=Watched(1, since=5.0, until=20.0))
    assert (found.ttft, found.ttft_p99, found.e2e_p50) == (1.0, 1.0, 2.0)
    assert found.tokens_per_second == pytest.approx(30 / 11)
    assert (found.hits, found.largest, found.unevenness) == (0.5, pytest.approx(2 / 3), 2.0)
    assert (found.failed, found.watched) == (1, pytest.approx(2 / 3))
