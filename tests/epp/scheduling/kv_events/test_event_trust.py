"""What workers say is compared with what they delivered: which word counts, and how soon that changes."""

import random
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from epp.request.inference_request import InferenceRequest
from epp.scheduling.kv_events.event_trust import EventTrust, EventTrusts, Prediction

HELD = Prediction(said=800.0, most=800.0, prompt=1000.0, block=16)
NOTHING = Prediction(0.0, 0.0, 1000.0, 16)


def test_a_worker_that_delivers_what_it_says_is_believed() -> None:
    trust = EventTrust()
    for _ in range(100):
        trust.answered(HELD, 784.0)
    assert (trust.confidence, trust.believed, trust.checks) == (1.0, True, 100)


def test_one_wrong_answer_changes_nothing_and_some_in_a_row_do() -> None:
    trust = EventTrust()
    trust.answered(HELD, 0.0)
    assert trust.believed
    wrong = 1
    while trust.believed:
        trust.answered(HELD, 0.0)
        wrong += 1
    assert 3 < wrong < 10
    right = 0
    while not trust.believed:
        trust.answered(HELD, 800.0)
        right += 1
    assert 5 < right < 60, "it is believed again, not at once"


def test_a_worker_that_holds_more_than_it_says_is_wrong_too_but_not_for_what_is_under_way() -> None:
    trust = EventTrust()
    for _ in range(20):
        trust.answered(NOTHING._replace(most=800.0), 800.0)
    assert trust.confidence == 1.0
    for _ in range(20):
        trust.answered(NOTHING, 800.0)
    assert not trust.believed


def test_prompts_of_which_nothing_is_held_prove_nothing() -> None:
    trust = EventTrust()
    for _ in range(100):
        trust.answered(NOTHING, 0.0)
        trust.answered(NOTHING, 32.0)
    assert trust.checks == 0


def feed(trust: EventTrust, count: int, share: float, *, others: float = 0.0) -> tuple[float, float]:
    """Pages after every few prompts of a worker that delivers this share. `others`: tokens that someone else asks for."""
    queries = hits = 0.0
    for number in range(count):
        trust.served(HELD)
        queries += HELD.prompt + others
        hits += share * HELD.prompt
        if number % 5 == 0:
            trust.page(queries, hits)
    return queries, hits


def test_the_page_says_it_where_no_answer_does() -> None:
    right, wrong = EventTrust(), EventTrust()
    feed(right, 200, 0.78)
    feed(wrong, 200, 0.0)
    assert (right.confidence, right.believed, right.checks > 5) == (1.0, True, True)
    assert not wrong.believed


def test_a_page_that_tells_of_others_too_or_of_nothing_is_not_compared() -> None:
    shared, silent, anew = EventTrust(), EventTrust(), EventTrust()
    feed(shared, 200, 0.0, others=500.0)
    for _ in range(100):
        silent.served(HELD)
        silent.page(-1.0, -1.0)
    for number in range(200):
        anew.served(HELD)
        anew.page(float(number % 2), 0.0)  # its process is replaced all the time
    assert (shared.checks, silent.checks, anew.checks) == (0, 0, 0)


def test_where_answers_say_it_the_page_is_not_asked() -> None:
    trust = EventTrust()
    for _ in range(100):
        trust.answered(HELD, 800.0)
        feed(trust, 20, 0.0)
    assert trust.believed
    feed(trust, 400, 0.0)
    assert not trust.believed, "no answer says it any longer"


@given(st.lists(st.tuples(st.floats(0, 1e8), st.floats(0, 1e8), st.floats(0, 1e8)), max_size=60))
def test_whatever_is_delivered_the_confidence_is_bounded(answers: list[tuple[float, float, float]]) -> None:
    one, other = EventTrust(), EventTrust()
    for said, more, delivered in answers:
        for trust in (one, other):
            trust.answered(Prediction(said, said + more, 1000.0, 16), delivered)
            trust.served(HELD)
            trust.page(delivered, more)
        assert 0.15 < one.confidence <= 1.0
    assert one.confidence == other.confidence


def test_who_is_waited_for_is_bounded_and_each_worker_is_judged_by_itself() -> None:
    changes: list[int] = []
    trusts = EventTrusts(lambda: changes.append(1))
    requests = [InferenceRequest(str(number), "/v1/completions", {}) for number in range(6000)]
    keys = [("a", "1"), ("b", "1")]
    rng = random.Random(1)
    for key in keys:
        trusts.begin(key)
    for request in requests:
        key = rng.choice(keys)
        trusts.predict(request, key, HELD)
        trusts.served(request, [SimpleNamespace(key=key)])  # type: ignore[list-item]
        if rng.random() < 0.5:
            trusts.delivered(request, 800 if key == keys[0] else 0)
    assert (trusts.by_key[keys[0]].believed, trusts.by_key[keys[1]].believed) == (True, False)
    assert len(changes) == 1
    assert len(trusts._awaited) <= 4096
    trusts.begin_anew(keys[1])
    assert trusts.by_key[keys[1]].believed


def test_a_pick_looks_at_no_page_of_a_worker_that_served_nothing_since() -> None:
    class Pool:
        def __init__(self) -> None:
            self.looks = 0

        def row_by_key(self) -> dict[tuple[str, str], int]:
            self.looks += 1
            return {("a", "1"): 0, ("b", "1"): 1}

        def metric(self, metric: object) -> list[float]:
            return [-1.0, -1.0]  # an engine without such counters

    trusts, pool = EventTrusts(lambda: None), Pool()
    trusts.begin(("a", "1"))
    trusts.begin(("b", "1"))
    for number in range(5):
        request = InferenceRequest(str(number), "/v1/completions", {})
        trusts.predict(request, ("a", "1"), HELD)
        trusts.served(request, [SimpleNamespace(key=("a", "1"))])  # type: ignore[list-item]
        for _ in range(10):
            trusts.read_pages(pool)  # type: ignore[arg-type]
    assert pool.looks == 5
