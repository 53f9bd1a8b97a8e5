"""What first bytes teach a picker, and the worker that all pickers prefer for a prompt that nobody is known to hold."""

import json
from collections.abc import Sequence
from operator import itemgetter

import numpy as np
import pytest
from msgspec import Raw

from epp.decision_commands.decision_text import details
from epp.decisions.document import describe
from epp.request.inference_api import CompletionBody
from epp.request.inference_request import InferenceRequest, PrefixChain
from epp.scheduling.pick import Pick
from epp.scheduling.work_ahead.rendezvous_hashing import credit_preferred, hashes_of
from epp.web.pool_view import learnt as shown_on_page
from tests.epp.scheduling.endpoint_pools import make_endpoint
from tests.epp.scheduling.work_ahead.test_plugins import HEADERS, Pool, went


def tokens(count: int, beginning: str = "x") -> str:
    return (beginning + "x" * 4 * count)[: 4 * count - 2]


def teach(pool: Pool, count: int, ahead: float) -> None:
    """Bursts of four, so that there is something ahead; a thousand tokens take 0.2 s, a thousand ahead `ahead`."""
    computed = [0.0, 0.0]
    for number in range(count):
        burst = [pool.send(tokens(500 + 700 * ((number + at) % 5), f"{number} {at} ")) for at in range(4)]
        for at, pick in sorted([(begins(pick, ahead, number), pick) for pick in burst], key=itemgetter(0)):
            pool.director.picks.responded(pick, 200, pool.now + at)
            pool.director.picks.first_byte(pick, pool.now + at, pool.now + at)
            assert_counted(pool)
            pool.director.picks.release(pick, pool.now + at)
            computed[int(went(pick)[1:])] += pick.request.prompt_size / 4
        pool.now += 3.0
        for row in range(2):
            pool.page(row, computed=computed[row])


def assert_counted(pool: Pool) -> None:
    """What was learnt counts from now on, not from the next page."""
    producer = pool.scorer.producer
    columns, _ = producer.ledgers.columns(pool.store.pool(pool.now))
    assert columns.ahead_cost.tolist() == pytest.approx((columns.ahead * producer.model.ahead).tolist())


def begins(pick: Pick, ahead: float, number: int) -> float:
    known = pick.request.awaited.known  # type: ignore[union-attr, attr-defined]
    return float((0.95 + number % 3 / 20) * (0.02 + known[0] * 2e-4 + known[1] * ahead / 1000))


def test_a_pick_foresees_its_first_byte_once_that_is_learnt() -> None:
    pool = Pool()
    first = pool.send(tokens(1000))
    assert first.expected < 0
    pool.director.picks.release(first, pool.now)
    teach(pool, 30, ahead=0.2)
    pool.now += 3.0
    pick = pool.send(tokens(1000, "fresh"))
    assert pick.expected == pytest.approx(0.22, rel=0.2)


def test_what_is_ahead_counts_as_much_as_was_learnt() -> None:
    """A prompt is ahead of where the beginning of the next one is held."""
    for learnt, goes_to_the_cache in ((0.2, False), (0.0, True)):
        pool = Pool()
        teach(pool, 30, learnt)
        pool.now += 3.01
        for row in range(2):
            pool.page(row, computed=1e6)
        holder = pool.send(tokens(4000, "held"))
        pool.now += 0.5
        other = pool.send(tokens(9000, "long"))
        assert went(other) != went(holder)
        other = pool.send(tokens(13_000, "more"))
        assert went(other) == went(holder)
        assert (went(pool.send(tokens(4000, "held"))) == went(holder)) is goes_to_the_cache, learnt


def test_what_may_be_computed_by_now_is_not_waited_for() -> None:
    pool = Pool()
    teach(pool, 30, ahead=0.2)
    model = pool.scorer.producer.model
    model.under_way, model.rate = model.ahead, 5000.0
    pool.now += 3.01
    for row in range(2):
        pool.page(row, computed=1e6)
    went(pool.send(tokens(10_000, "long")))
    pool.now += 0.5
    went(pool.send(tokens(9000, "more")))
    pool.now += 0.5
    costs = pool.store.pool(pool.now)
    columns, _ = pool.scorer.producer.ledgers.columns(costs)
    ahead = pool.scorer.ahead(columns, None, costs) / model.ahead
    assert sorted(ahead.tolist()) == pytest.approx([5000.0, 6500.0], rel=0.05)


def test_an_explanation_says_what_was_learnt_and_where_the_constants_would_have_sent_it() -> None:
    pool = Pool()
    teach(pool, 30, ahead=0.0)
    pool.now += 3.01
    for row in range(2):
        pool.page(row, computed=1e6)
    holder = pool.send(tokens(4000, "held"))
    pool.now += 0.5
    pool.send(tokens(9000, "long"))
    assert went(pool.send(tokens(13_000, "more"))) == went(holder)
    body = json.dumps({"model": "m", "stream": True, "prompt": tokens(4000, "held")}).encode()
    costs = pool.scorer.producer.ledgers.columns(pool.store.pool(pool.now))[0].ahead_cost.tolist()
    decision = pool.director.explain(HEADERS, body, None, pool.now)
    said = describe(decision, pool.now, float, 10)
    assert said["choice"]["id"] == went(holder)
    [profile] = said["profiles"]
    other = {"w0": "w1", "w1": "w0"}[went(holder)]
    assert profile["without_what_is_learnt"]["id"] == other
    text = "\n".join(details(said))
    assert f"without what is learnt: {other}" in text
    assert "thousand tokens missing: " in text
    assert pool.scorer.producer.ledgers.columns(pool.store.pool(pool.now))[0].ahead_cost.tolist() == costs


def test_only_streamed_answers_of_the_picked_worker_teach() -> None:
    pool = Pool()
    assert pool.send(tokens(100), stream=False).request.awaited is None
    failed = pool.send(tokens(100))
    pool.director.picks.responded(failed, 500, pool.now)
    assert failed.request.awaited is None
    elsewhere = pool.send(tokens(100))
    other = "10.0.0.2:8000" if went(elsewhere) == "w0" else "10.0.0.1:8000"
    pool.director.picks.served(elsewhere, other)
    pool.director.picks.first_byte(elsewhere, pool.now + 1, pool.now + 1)
    assert pool.scorer.producer.model.answers == 0


def test_what_is_learnt_is_shown_with_its_spread() -> None:
    pool = Pool()
    assert pool.scorer.producer.learnt()["seconds"] is None
    teach(pool, 30, ahead=0.2)
    learnt = pool.scorer.producer.learnt()
    assert learnt["used"]
    number, spread = learnt["seconds"]["thousand_tokens_missing"]
    assert number == pytest.approx(0.2, rel=0.2)
    assert 0 < spread < 0.1
    (shown, _) = [pool.scorer.producer.learnt_of(one) for one in pool.store.endpoints]
    assert json.loads(shown_on_page(pool.scorer.producer))["seconds"]["fixed"]
    assert shown["counter"] in ("not known yet", "begun answers", "ended answers", "something else")
    assert shown["agrees"]


def test_a_question_teaches_nothing_and_says_what_is_expected() -> None:
    pool = Pool()
    teach(pool, 30, ahead=0.2)
    model = pool.scorer.producer.model
    before = list(model.numbers), model.answers
    body = b'{"model": "m", "stream": true, "prompt": "' + b"q" * 4000 + b'"}'
    decision = pool.director.explain({":path": "/v1/completions", ":method": "POST"}, body, None, pool.now)
    assert decision.expected > 0
    assert (list(model.numbers), model.answers) == before


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
    endpoints = [make_endpoint(f"w{row}", 8000 + row) for row in range(workers)]
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
