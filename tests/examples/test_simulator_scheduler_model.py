"""The queueing model: time passed in, so every figure is exact."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.simulator.adapters import AdapterSlots
from examples.simulator.kv_cache import KVCache
from examples.simulator.scheduler_model import Emitted, Limits, SchedulerModel, Work
from examples.simulator.tokens import block_digests

LIMITS = Limits(
    max_num_seqs=2,
    max_num_batched_tokens=64,
    block_size=4,
    num_blocks=32,
    max_lora=1,
    adapter_load_seconds=5.0,
    step_seconds=1.0,
    sequence_seconds=0.25,
    token_seconds=0.125,
)


def work(text: str, output: int = 1, adapter: str | None = None, block_size: int = 4) -> Work:
    """One token per letter; the answer's letters are dots."""
    digests = block_digests(adapter or "", [*text, *("." * output)], block_size)
    return Work(len(text), output, digests, adapter)


def drain(scheduler_model: SchedulerModel, now: float = 0.0) -> list[Emitted]:
    """Run until nothing is left to do."""
    emitted = scheduler_model.advance(now)
    while (event := scheduler_model.next_event(now)) is not None:
        now = event
        emitted += scheduler_model.advance(now)
    return emitted


def test_first_token_takes_the_prompt_and_further_ones_a_step_each() -> None:
    scheduler_model = SchedulerModel(LIMITS)
    scheduler_model.submit(1, work("abcdefgh", output=3))
    times = [token.at for token in drain(scheduler_model)]
    assert times == [1 + 0.25 + 8 * 0.125, 2.25 + 1.375, 3.625 + 1.375]


def test_decoding_slows_down_in_a_fuller_batch() -> None:
    def seconds_per_token(requests: int) -> float:
        scheduler_model = SchedulerModel(replace(LIMITS, max_num_seqs=8))
        for key in range(requests):
            scheduler_model.submit(key, work(f"{key}", output=5))
        at = [token.at for token in drain(scheduler_model) if token.key == 0]
        return at[-1] - at[-2]

    assert seconds_per_token(1) == 1.375
    assert seconds_per_token(4) == 2.5


def test_only_the_uncached_part_of_a_prompt_costs_time() -> None:
    scheduler_model = SchedulerModel(LIMITS)
    scheduler_model.submit(1, work("aaaabbbbccccdddd"))
    cold = drain(scheduler_model)[0]
    scheduler_model.submit(2, work("aaaabbbbccccXXXX"))
    warm = drain(scheduler_model, now=100.0)[0]
    assert (cold.cached_tokens, cold.at) == (0, 1.25 + 16 * 0.125)
    assert (warm.cached_tokens, warm.at - 100) == (12, 1.25 + 4 * 0.125)
    assert (scheduler_model.totals.prefix_queries, scheduler_model.totals.prefix_hits) == (32, 12)


def test_a_wholly_cached_prompt_still_computes_one_token() -> None:
    scheduler_model = SchedulerModel(LIMITS)
    for key in (1, 2):
        scheduler_model.submit(key, work("aaaabbbb"))
        tokens = drain(scheduler_model, now=100.0 * key)
    assert tokens[0].cached_tokens == 4


def test_the_next_turn_of_a_chat_finds_the_answer_of_the_last_one() -> None:
    scheduler_model = SchedulerModel(LIMITS)
    scheduler_model.submit(1, work("aaaa", output=9))
    drain(scheduler_model)
    scheduler_model.submit(2, work("aaaa.........bbb"))
    assert drain(scheduler_model, now=100.0)[0].cached_tokens == 12


def test_another_adapter_shares_no_prefix() -> None:
    scheduler_model = SchedulerModel(LIMITS)
    scheduler_model.submit(1, work("aaaabbbb"))
    drain(scheduler_model)
    scheduler_model.submit(2, work("aaaabbbb", adapter="poet"))
    assert drain(scheduler_model, now=100.0)[0].cached_tokens == 0


def test_a_long_prompt_is_computed_in_pieces() -> None:
    scheduler_model = SchedulerModel(replace(LIMITS, max_num_batched_tokens=8))
    scheduler_model.submit(1, work("a" * 20))
    assert [token.at for token in drain(scheduler_model)] == [2 * (1.25 + 1.0) + 1.25 + 0.5]


def test_the_batch_is_limited_and_the_rest_waits() -> None:
    scheduler_model = SchedulerModel(LIMITS)
    for key in (1, 2, 3):
        scheduler_model.submit(key, work(f"{key}bcd", output=2))
    scheduler_model.advance(0.0)
    load = scheduler_model.load(0.0)
    assert (load.running, load.waiting) == (2, 1)
    assert [token.key for token in drain(scheduler_model)] == [1, 2, 1, 2, 3, 3]
    load = scheduler_model.load(100.0)
    assert (load.running, load.waiting, load.kv_usage) == (0, 0, 0.0)


def test_kv_use_follows_the_running_requests() -> None:
    scheduler_model = SchedulerModel(LIMITS)
    scheduler_model.submit(1, work("a" * 16, output=4))
    scheduler_model.advance(0.0)
    assert scheduler_model.load(0.0).kv_usage == 4 / 32
    scheduler_model.advance(100.0)
    assert scheduler_model.load(100.0).kv_usage == 0.0


def test_a_client_that_went_away_frees_its_place_and_memory() -> None:
    scheduler_model = SchedulerModel(replace(LIMITS, max_num_seqs=1))
    scheduler_model.submit(1, work("aaaa", output=50))
    scheduler_model.submit(2, work("bbbb"))
    scheduler_model.submit(3, work("cccc"))
    scheduler_model.advance(0.0)
    scheduler_model.abort(1)
    scheduler_model.abort(2)
    assert {token.key for token in drain(scheduler_model)} == {3}
    assert scheduler_model.totals.aborted_requests == 2
    scheduler_model.abort(3)
    assert scheduler_model.totals.aborted_requests == 2
    assert scheduler_model.load(100.0).kv_usage == 0.0


def test_without_memory_the_youngest_starts_over() -> None:
    scheduler_model = SchedulerModel(replace(LIMITS, num_blocks=6))
    scheduler_model.submit(1, work("aaaaaaaa", output=10))
    scheduler_model.submit(2, work("bbbbbbbb", output=10))
    tokens = drain(scheduler_model)
    assert scheduler_model.totals.preempted_requests >= 1
    assert [sum(token.key == key for token in tokens) for key in (1, 2)] == [10, 10]
    assert max(token.at for token in tokens if token.key == 1) < max(
        token.at for token in tokens if token.key == 2
    )


def test_an_adapter_is_loaded_first_and_others_overtake_meanwhile() -> None:
    scheduler_model = SchedulerModel(LIMITS)
    scheduler_model.submit(1, work("aaaa", adapter="poet"))
    scheduler_model.submit(2, work("bbbb"))
    scheduler_model.advance(0.0)
    assert scheduler_model.load(0.0).waiting_adapters == ("poet",)
    tokens = drain(scheduler_model)
    assert [token.key for token in tokens] == [2, 1]
    assert tokens[1].at == 5.0 + 1.75
    assert scheduler_model.load(10.0).loaded_adapters == ("poet",)


def test_an_adapter_in_use_keeps_its_slot_and_an_idle_one_makes_room() -> None:
    slots = AdapterSlots(1, load_seconds=0.0)
    assert slots.prepare("poet", 0.0)
    slots.use("poet")
    assert not slots.prepare("coder", 1.0)
    slots.release("poet")
    assert slots.prepare("coder", 2.0)
    assert slots.loaded(2.0) == ("coder",)


def test_a_late_caller_misses_no_adapter() -> None:
    scheduler_model = SchedulerModel(LIMITS)
    scheduler_model.submit(1, work("aaaa"))
    scheduler_model.submit(2, work("bbbb", adapter="poet"))
    scheduler_model.advance(0.0)
    tokens = scheduler_model.advance(50.0) + drain(scheduler_model, now=50.0)
    assert {token.key for token in tokens} == {1, 2}


@pytest.mark.parametrize(
    ("request_", "why"),
    [(Work(0, 1), "a token to read"), (Work(1, 0), "one to write"), (Work(100, 29), "129 tokens exceed 128")],
)
def test_what_can_never_run_is_refused(request_: Work, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        SchedulerModel(LIMITS).submit(1, request_)


def test_an_adapter_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="max_lora is 0"):
        SchedulerModel(replace(LIMITS, max_lora=0)).submit(1, work("a", adapter="poet"))


@pytest.mark.parametrize(
    "field", ["max_num_seqs", "max_num_batched_tokens", "block_size", "num_blocks", "step_seconds"]
)
def test_a_machine_needs_some_of_everything(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        replace(LIMITS, **{field: 0})


requests = st.builds(
    work,
    text=st.text(alphabet="ab", min_size=1, max_size=24),
    output=st.integers(1, 12),
    adapter=st.sampled_from([None, "poet", "coder"]),
)


@given(
    arrivals=st.lists(st.tuples(requests, st.integers(0, 40), st.booleans()), max_size=12),
    blocks=st.integers(9, 20),
)
def test_everyone_is_served_or_leaves_and_nothing_is_kept(
    arrivals: list[tuple[Work, int, bool]], blocks: int
) -> None:
    scheduler_model = SchedulerModel(
        replace(LIMITS, num_blocks=blocks, max_num_seqs=4, max_num_batched_tokens=16)
    )
    emitted: list[Emitted] = []
    now = 0.0
    for key, (request, pause, impatient) in enumerate(arrivals):
        scheduler_model.submit(key, request)
        now += pause / 4
        emitted += scheduler_model.advance(now)
        assert 0 <= scheduler_model.load(now).kv_usage <= 1
        if impatient:
            scheduler_model.abort(key)
    emitted += drain(scheduler_model, now)
    for key, (request, _, impatient) in enumerate(arrivals):
        tokens = [token for token in emitted if token.key == key]
        if not impatient:
            assert len(tokens) == request.output_tokens
            assert [token.finished for token in tokens].index(True) == len(tokens) - 1
        assert [token.at for token in tokens] == sorted(token.at for token in tokens)
    load = scheduler_model.load(now + 1000)
    assert (load.running, load.waiting, load.kv_usage) == (0, 0, 0.0)


@given(
    chains=st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=30),
    capacity=st.integers(5, 12),
)
def test_the_cache_never_holds_a_leaf_without_its_root(chains: list[str], capacity: int) -> None:
    cache = KVCache(capacity)
    for chain in chains:
        digests = [chain[:end].encode() for end in range(1, len(chain) + 1)]
        hits = cache.match(digests)
        assert cache.admit(digests[:hits], len(digests) - hits)
        for digest in digests[hits:]:
            cache.publish(digest)
        assert cache.used == len(digests)
        assert cache.match(digests) == len(digests)
        cache.release(digests, 0)
        assert cache.used == 0
        assert len(cache.cached) <= capacity
        assert all(digest[:-1] in cache.cached for digest in cache.cached if len(digest) > 1)


def test_a_fork_goes_on_as_its_original_would_and_leaves_it_alone() -> None:
    model = SchedulerModel(Limits(max_num_seqs=4, num_blocks=64))
    for key in range(6):
        model.submit(key, Work(200 + key, 5, tuple(bytes([key, block]) for block in range(12))))
    emitted = list(model.advance(0.0))
    fork = model.fork()
    at, theirs = 0.0, list[Emitted]()
    while (due := fork.next_event(at)) is not None:
        at = due
        theirs += fork.advance(at)
    assert model.load(0.0) == model.fork().load(0.0)
    at, ours = 0.0, list[Emitted]()
    while (due := model.next_event(at)) is not None:
        at = due
        ours += model.advance(at)
    assert ours == theirs
    assert {one.key for one in [*emitted, *ours] if one.finished} == set(range(6))


@pytest.mark.parametrize("num_blocks", [4096, 70])
def test_a_copy_that_skips_decodes_has_the_same_first_and_last_tokens(num_blocks: int) -> None:
    """With 70 blocks there is not room for all, and some are preempted."""
    model = SchedulerModel(Limits(max_num_seqs=4, num_blocks=num_blocks))
    for key in range(8):
        model.submit(key, Work(200 + key, 40 + 7 * key, tuple(bytes([key, block]) for block in range(15))))
    runs = []
    for skips in (False, True):
        copy, at, told = model.fork(), 0.0, list[Emitted]()
        tokens = copy.advance(at)
        while True:
            told += tokens
            if skips:
                copy.skip_decodes(100.0)
            due = copy.next_event(at)
            if due is None:
                break
            tokens, at = copy.advance(due), due
        firsts = {one.key: one.at for one in reversed(told)}
        lasts = {one.key: one.at for one in told if one.finished}
        runs.append((firsts, lasts, len(told)))
    (firsts, lasts, all_of_them), (skipped_firsts, skipped_lasts, few) = runs
    assert skipped_firsts == pytest.approx(firsts)
    assert skipped_lasts == pytest.approx(lasts)
    assert few <= all_of_them / 2


def test_all_that_a_model_does_ends_later_if_it_stood_still() -> None:
    model = SchedulerModel(Limits())
    model.submit(1, Work(100, 1, adapter="sql"))
    model.submit(2, Work(100, 1))
    model.advance(0.0)
    due = model.next_event(0.0)
    assert due is not None
    model.postpone(3.0)
    assert model.next_event(3.0) == pytest.approx(due + 3.0)
    assert [one.key for one in model.advance(due + 3.0)] == [2]
