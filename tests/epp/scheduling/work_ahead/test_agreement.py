"""The worker that all pickers prefer for a prompt that nobody is known to hold."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec import Raw

from epp.endpoints.endpoint import Endpoint
from epp.request.inference_api import CompletionBody
from epp.request.inference_request import InferenceRequest, PrefixChain
from epp.scheduling.work_ahead.agreement import credit_preferred, hashes_of


def request_of(text: str) -> InferenceRequest:
    request = InferenceRequest("r", "/v1/completions", {})
    request.prompt = CompletionBody(model="m", prompt=Raw(f'"{text}"'.encode()))
    return request


def missing(
    text: str, held: Sequence[int] = (), workers: int = 5, uncached: Sequence[float] = ()
) -> list[float]:
    """`held`: blocks of four tokens, by worker; empty: none. `uncached`: tokens, by worker; empty: 1,000 for each."""
    blocks = len(text) // 16 + 1
    chain = PrefixChain(range(1, blocks + 1), 4, blocks, range(1, blocks + 1))
    endpoints = [
        Endpoint(id=f"w{row}", incarnation="a", address="10.0.0.1", port=8000 + row, metrics_port=8000)
        for row in range(workers)
    ]
    tokens = np.array(uncached or [1000.0] * workers)
    known = np.array(held or [0] * workers, dtype=float)
    credit_preferred(tokens, request_of(text), chain, known, hashes_of(endpoints))
    return list(tokens)


def preferred(text: str, held: Sequence[int] = (), workers: int = 5) -> int:
    found = missing(text, held, workers)
    assert sorted(found)[1:] == [1000.0] * (workers - 1)
    assert min(found) == pytest.approx(200.0)
    return int(np.argmin(found))


def test_prompts_are_spread_and_each_has_one_worker() -> None:
    chosen = [preferred(f"{number:4} " * 40) for number in range(50)]
    assert set(chosen) == set(range(5))
    assert max(chosen.count(row) for row in range(5)) <= 20
    assert chosen == [preferred(f"{number:4} " * 40) for number in range(50)]


def test_what_most_hold_tells_nothing_so_the_block_behind_it_decides() -> None:
    system = "s" * 15 + "s" * 48  # with its quote four blocks
    held = [4, 4, 4, 0, 0]
    chosen = {preferred(system + f"{number:4} " * 40, held) for number in range(50)}
    assert len(chosen) > 1
    same = {preferred(system + "and then" + " " * 8 + f"{number:4}" * 40, held) for number in range(20)}
    assert len(same) == 1


def test_of_two_workers_one_is_not_most() -> None:
    text = "first" * 20
    assert preferred(text, [3, 0], workers=2) == preferred(text, workers=2)


@pytest.mark.parametrize(("units", "cheapest"), [(10, "who is preferred"), (15, "who holds it")])
def test_who_holds_some_of_a_prompt_and_who_is_preferred_for_it(units: int, cheapest: str) -> None:
    """Of 17 blocks: what one worker holds, even most of them, does not end the agreement of all pickers about the others."""
    text = "a prompt of one kind" * 13
    row = preferred(text)
    holder = (row + 1) % 5
    held, uncached = [0] * 5, [1700.0] * 5
    held[holder], uncached[holder] = units, 1700.0 - 100.0 * units
    found = missing(text, held, uncached=uncached)
    assert (found[row], found[holder]) == (pytest.approx(340.0), uncached[holder])
    assert int(np.argmin(found)) == (row if cheapest == "who is preferred" else holder)


def test_of_a_long_prompt_no_more_is_believed_than_a_cache_keeps() -> None:
    assert min(missing("long" * 50, uncached=[30_000.0] * 5)) == pytest.approx(30_000 - 0.8 * 8192)


def test_a_prompt_that_most_hold_whole_has_no_preferred_worker() -> None:
    assert missing("x" * 30, [2, 2, 2, 0, 0]) == [1000.0] * 5
    assert missing("", [1, 1, 1, 1, 0]) == [1000.0] * 5
