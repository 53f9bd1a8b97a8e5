"""What is learnt of transfers of a KV cache, of adapters, and of a counter of prompt tokens."""

import random

import pytest

from epp.endpoints.endpoint import NO_ADAPTERS, NO_NUMBERS, Adapters, Column, EndpointPool
from epp.scheduling.work_ahead.adapters import LoadedAdapters
from epp.scheduling.work_ahead.prompt_counter import CounterKind, KindSums
from epp.scheduling.work_ahead.transfer import (
    TRANSFER_SECONDS,
    TRANSFER_TOKEN_SECONDS,
    AwaitedTransfer,
    TransferTimes,
)
from tests.epp.scheduling.endpoint_pools import make_endpoint
from tests.epp.scheduling.test_roles import NOW, ask, director_of, store_of


def told(seconds: float, token_seconds: float, waits: float = 0.0, answers: int = 64) -> TransferTimes:
    """Of prompts of 500 to 9,000 tokens; one in four answers waits for something else besides."""
    times, rng = TransferTimes(), random.Random(1)
    for number in range(answers):
        tokens = rng.uniform(500, 9000)
        times.observe(tokens, seconds + token_seconds * tokens + (waits if number % 4 == 0 else 0.0))
    return times


@pytest.mark.parametrize(("seconds", "token_seconds"), [(0.02, 0.00001), (0.1, 0.0001), (0.3, 0.0004)])
@pytest.mark.parametrize("waits", [0.0, 0.4])
def test_both_parts_are_learnt_and_who_waits_for_room_says_little(
    seconds: float, token_seconds: float, waits: float
) -> None:
    times = told(seconds, token_seconds, waits)
    for tokens in (1000, 8000):
        learnt, true = times.seconds + times.token_seconds * tokens, seconds + token_seconds * tokens
        assert learnt == pytest.approx(true, rel=0.25, abs=0.1 * waits)


def test_prompts_that_are_alike_say_how_long_and_not_what_a_token_takes() -> None:
    times = TransferTimes()
    for _ in range(16):
        times.observe(2000, 0.5)
    assert times.token_seconds == TRANSFER_TOKEN_SECONDS
    assert times.seconds + 2000 * times.token_seconds == pytest.approx(0.5)


def test_headers_that_come_with_the_first_byte_say_nothing() -> None:
    times = told(0.001, 0.0)
    AwaitedTransfer(times, 2000.0).came(NOW, NOW, -1.0)
    assert times.learnt() == {
        "answers": 0, "seconds": TRANSFER_SECONDS, "token_seconds": TRANSFER_TOKEN_SECONDS
    }  # fmt: skip


def test_a_cost_counts_what_the_average_worker_computes_meanwhile() -> None:
    times = told(0.1, 0.0001)
    assert times.in_tokens(5000) == pytest.approx((500, 0.5), rel=0.25)
    assert TransferTimes().in_tokens(0) == pytest.approx((400, 0.1))


def test_picks_on_two_workers_teach_it() -> None:
    director = director_of(store_of("decode", "prefill"))
    for number in range(16):
        pick = ask(director, tokens=4000 + 100 * number, text=chr(97 + number))
        assert pick.helpers
        director.picks.responded(pick, 200, NOW)
        director.picks.first_byte(pick, NOW + 2.0, NOW + 2.0)
        director.picks.release(pick, NOW + 3.0)
    # 20,000 tokens at the assumed speed, and 6,000 x (1 + 0.3 x 16) + 150 x 16 beside the sixteen that no page has counted yet
    assert ask(director, text="z").stages == (
        "prefill-decode: the prompt costs 57,200 tokens with prefill-2, 70,816 without"
    )


def pool_of(*given: Adapters, slots: float = 2.0) -> EndpointPool:
    endpoints = [make_endpoint(f"w{row}", 8000 + row) for row in range(len(given))]
    numbers = NO_NUMBERS.repeat(len(given), axis=1)
    numbers[Column.MAX_LORA] = slots
    return EndpointPool(endpoints, numbers, given, 0.0)


def seen(pool: EndpointPool) -> LoadedAdapters:
    loaded = LoadedAdapters()
    for endpoint, adapters, slots in zip(pool.endpoints, pool.adapters, pool.max_lora, strict=True):
        loaded.see(endpoint.key, adapters, int(slots))
    return loaded


def loads(loaded: LoadedAdapters, model: str, pool: EndpointPool) -> list[float] | None:
    found = loaded.loads(model, pool)
    return None if found is None else list(found)


def test_an_endpoint_loads_what_it_has_not() -> None:
    pool = pool_of(
        Adapters(active=frozenset({"french"})),
        Adapters(waiting=frozenset({"french"})),
        Adapters(active=frozenset({"german"})),
        Adapters(active=frozenset({"german", "dutch"})),
        Adapters(active=frozenset({"german"}), waiting=frozenset({"dutch"})),
    )
    assert loads(seen(pool), "french", pool) == [0.0, 0.5, 1.0, 2.0, 2.0]
    assert loads(seen(pool), "base", pool) is None


def test_a_page_without_slots_is_not_full() -> None:
    pool = pool_of(Adapters(active=frozenset({"french"})), NO_ADAPTERS, slots=0.0)
    assert loads(seen(pool), "french", pool) == [0.0, 1.0]


def test_an_adapter_stays_loaded_until_others_take_its_place() -> None:
    pool = pool_of(Adapters(active=frozenset({"a", "b", "c"})), NO_ADAPTERS)
    loaded = seen(pool)
    key = pool.endpoints[1].key
    loaded.sent(key, "a")
    assert loads(loaded, "a", pool) == [0.0, 0.0]
    loaded.sent(key, "b")
    loaded.sent(key, "base")  # no adapter
    assert loads(loaded, "a", pool) == [0.0, 0.0]
    loaded.sent(key, "c")
    assert loads(loaded, "a", pool) == [0.0, 1.0]
    loaded.forget(key)
    assert loads(loaded, "c", pool) == [0.0, 1.0]
    loaded.sent(key, "c")  # nothing is known of its slots
    assert loads(loaded, "c", pool) == [0.0, 1.0]


def test_the_adapter_that_was_sent_there_longest_ago_leaves_first() -> None:
    pool = pool_of(Adapters(active=frozenset({"a", "b", "c"})), NO_ADAPTERS)
    loaded = seen(pool)
    for name in "abac":
        loaded.sent(pool.endpoints[1].key, name)
    assert [loads(loaded, name, pool) for name in "abc"] == [[0.0, 0.0], [0.0, 1.0], [0.0, 0.0]]


def test_a_page_that_says_nothing_of_slots_changes_nothing() -> None:
    pool = pool_of(Adapters(active=frozenset({"a"})), NO_ADAPTERS)
    loaded = seen(pool)
    loaded.see(pool.endpoints[1].key, NO_ADAPTERS, 0)
    loaded.sent(pool.endpoints[1].key, "a")
    assert loads(loaded, "a", pool) == [0.0, 0.0]


def test_names_are_bounded_and_the_newest_stay() -> None:
    pool = pool_of(Adapters(active=frozenset(f"old {number}" for number in range(9_999))))
    loaded, again = seen(pool), [f"old {number}" for number in range(30)]
    loaded.see(pool.endpoints[0].key, Adapters(active=frozenset(again)), 2)
    for number in range(5_000):
        loaded.see(pool.endpoints[0].key, Adapters(active=frozenset({f"new {number}"})), 2)
    assert loads(loaded, "new 4999", pool) == [2.0]
    assert None not in [loads(loaded, name, pool) for name in again], "their names came again"
    assert sum(loaded.loads(f"old {number}", pool) is not None for number in range(9_999)) <= 5_000


def watch(
    counts: str, seconds: float = 30.0, kind: CounterKind | None = None, start: float = 0.0, seed: int = 3
) -> CounterKind:
    """An answer each 0.3 s begins, and ends 2 s later. `counts`: when its prompt counts on the page, or how that is wrong."""
    kind, rng = kind or CounterKind(KindSums()), random.Random(seed)
    due: list[tuple[float, str, float]] = []
    for number in range(int(seconds / 0.3)):
        at, tokens = start + 0.3 * number + rng.uniform(0, 0.2), rng.choice((200.0, 1000.0, 4000.0))
        due += [(at, "begin", tokens), (at + rng.uniform(1.0, 3.0), "end", tokens)]
    due.sort()
    counter, now = 0.0, start
    while now < start + seconds:
        now += 0.05
        while due and due[0][0] <= now:
            at, what, tokens = due.pop(0)
            counter += tokens if what == counts or (counts == "jumps" and what == "begin") else 0.0
            if what == "begin":
                kind.first_byte(tokens, at)
        if counts == "jumps" and rng.random() < 0.02:
            counter += 1e7
        kind.read(counter, now)
    return kind


@pytest.mark.parametrize(("counts", "begins"), [("begin", True), ("end", False), ("nothing", False)])
def test_whether_prompts_count_with_their_first_tokens(counts: str, begins: bool) -> None:
    assert [watch(counts, seed=seed).begins for seed in range(10)] == [begins] * 10


def test_a_counter_that_jumps_is_worth_no_more_than_a_wrong_one_and_another_program_is_found_out() -> None:
    for first, seconds, later, begins in (("jumps", 10.0, "begin", True), ("begin", 30.0, "end", False)):
        assert watch(later, 30.0, watch(first, seconds), start=seconds).begins is begins


def test_answers_to_prompts_that_were_withdrawn_and_pages_of_the_past_say_nothing() -> None:
    withdrawn, past = CounterKind(KindSums()), CounterKind(KindSums())
    for number in range(1_000):
        withdrawn.first_byte(0.0, 0.3 * number)
        withdrawn.read(1e3 * number, 0.3 * number + 0.1)
        past.first_byte(500.0, 10.0 + number)
        past.read(1e6 - number, 10.0 - number)
    assert (withdrawn.begins, past.begins) == (None, None)
