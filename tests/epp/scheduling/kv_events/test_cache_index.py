"""What workers hold: keys, references, clearing, memory; and 10^5 events against a model that counts each reference."""

import random
import tracemalloc
from collections import Counter
from typing import Any

import pytest

from epp.scheduling.kv_events.batches import BlocksCleared, BlocksRemoved, BlocksStored, Scope
from epp.scheduling.kv_events.cache_holdings import CacheHoldings
from epp.scheduling.kv_events.cache_index import BLOCK_BYTES, CacheIndex
from epp.scheduling.kv_events.prompt_tokens import pack_tokens
from tests.epp.kv_events.steps import done

GPU: Scope = ("gpu", 0, "", "")
HOST: Scope = ("host", 0, "", "")
SIZE = 16
PROMPT = list(range(64))
"""Four blocks."""


def store(
    hashes: list[int],
    parent: int | None = None,
    tokens: list[int] | None = None,
    scope: Scope = GPU,
    **more: Any,
) -> BlocksStored:
    given = PROMPT[: len(hashes) * SIZE] if tokens is None else tokens
    return BlocksStored(scope, hashes, parent, given, SIZE if given else 0, **more)


def opened() -> tuple[CacheIndex, CacheHoldings, CacheHoldings]:
    """And two publishers of it."""
    index = CacheIndex()
    return index, index.add_publisher(), index.add_publisher()


def blocks(index: CacheIndex, holdings: CacheHoldings, tokens: list[int] = PROMPT, **root: Any) -> int:
    """Leading blocks of the prompt that it holds."""
    start = index.root(root.get("adapter"), root.get("salt", ""))
    return index.match(pack_tokens(tokens), start, holdings.bit, SIZE).get(holdings.bit, 0)


def test_leading_blocks_of_a_prompt_are_found() -> None:
    index, one, other = opened()
    done(index.apply(one, [store([1, 2, 3, 4])]))
    done(index.apply(other, [store([1, 2])]))
    found = index.match(pack_tokens(PROMPT), index.root(None, ""), one.bit | other.bit, SIZE)
    assert found == {one.bit: 4, other.bit: 2}
    assert blocks(index, one, PROMPT[:40]) == 2  # the third is not full
    assert blocks(index, one, [7, *PROMPT]) == 0
    assert len(index) == 4


def test_workers_need_not_hash_alike() -> None:
    index, one, other = opened()
    done(index.apply(one, [store([1, 2])]))
    done(index.apply(other, [store([2, 1])]))  # its names of the same blocks, the other way round
    assert (blocks(index, one), blocks(index, other), len(index)) == (2, 2, 2)
    done(index.apply(other, [BlocksRemoved(GPU, [1])]))
    assert (blocks(index, one), blocks(index, other)) == (2, 1)
    done(index.apply(one, [BlocksRemoved(GPU, [1])]))
    assert (blocks(index, one), blocks(index, other)) == (0, 1)


def test_what_another_calls_a_block_places_nothing() -> None:
    index, one, other = opened()
    done(index.apply(one, [store([1])]))
    done(index.apply(other, [store([9], parent=1, tokens=PROMPT[16:32])]))
    assert (blocks(index, other), other.orphans) == (0, 1)
    # to it the block is 5, never 1
    done(index.apply(other, [store([5]), store([9], parent=1, tokens=PROMPT[16:32])]))
    assert (blocks(index, other), other.orphans) == (1, 2)


def test_a_later_store_goes_on_behind_its_parent() -> None:
    index, one, _ = opened()
    done(index.apply(one, [store([1, 2]), store([3, 4], parent=2, tokens=PROMPT[32:])]))
    assert blocks(index, one) == 4
    done(index.apply(one, [BlocksRemoved(GPU, [2])]))
    assert blocks(index, one) == 1


def test_adapters_salts_and_images_are_other_prompts() -> None:
    index, one, _ = opened()
    done(index.apply(one, [store([1], adapter="poet"), store([2], salt="s"), store([3], extras=(b"image",))]))
    assert blocks(index, one) == 0
    assert blocks(index, one, adapter="poet") == 1
    assert blocks(index, one, salt="s") == 1
    assert blocks(index, one, adapter="poet", salt="s") == 0
    assert list(index.adapters) == ["poet"]


def test_references_are_counted_for_each_tier() -> None:
    index, one, _ = opened()
    done(index.apply(one, [store([1]), store([1], tokens=[], scope=HOST), BlocksRemoved(GPU, [1])]))
    assert blocks(index, one) == 1
    done(index.apply(one, [BlocksRemoved(GPU, [1])]))  # nothing is there
    assert blocks(index, one) == 1
    done(index.apply(one, [BlocksRemoved(HOST, [1])]))
    assert (blocks(index, one), len(index)) == (0, 0)
    done(index.apply(one, [store([1]), store([1]), BlocksRemoved(GPU, [1])]))
    assert blocks(index, one) == 1
    done(index.apply(one, [BlocksRemoved(GPU, [1])]))
    assert (blocks(index, one), len(index)) == (0, 0)


def test_a_group_with_gaps_only_adds_to_what_is_known() -> None:
    index = CacheIndex()
    one, window = index.add_publisher(), ("gpu", 1, "", "")
    sparse = store([1], tokens=[], scope=window, whole=False)
    done(index.apply(one, [sparse]))
    assert len(index) == 0
    done(index.apply(one, [store([1]), sparse, BlocksRemoved(GPU, [1])]))
    assert blocks(index, one) == 0  # the group that needs every block has lost it
    done(index.apply(one, [BlocksRemoved(window, [1])]))
    assert len(index) == 0
    done(index.apply(one, [store([1]), sparse, BlocksRemoved(window, [1])]))
    assert blocks(index, one) == 1


@pytest.mark.parametrize("scope", [("cpu", 0, "", ""), ("storage", 0, "", ""), ("gpu", 0, "REMOTE", "")])
def test_what_nobody_removes_is_not_counted(scope: Scope) -> None:
    index, one, _ = opened()
    done(index.apply(one, [store([1], scope=scope)]))
    assert len(index) == 0


def test_a_cleared_cache_holds_nothing_at_once_and_its_memory_is_given_back() -> None:
    index, one, other = opened()
    for start in range(0, 64_000, 16):
        done(index.apply(one, [store([start], tokens=list(range(start, start + 16)))]))
    done(index.apply(other, [store([1, 2])]))
    before = one.bit
    done(index.apply(one, [BlocksCleared()]))
    assert blocks(index, one) == 0
    assert one.bit != before
    done(index.apply(one, [store([1, 2])]))
    assert (blocks(index, one), one.count) == (2, 2)
    for _ in range(40):
        done(index.apply(other, []))
    assert len(index) == 2
    for _ in range(200):  # bits are used again
        done(index.apply(one, [store([1, 2]), BlocksCleared()]))
    assert one.bit < 1 << 64
    index.remove_publisher(one)
    index.remove_publisher(other)
    for _ in range(40):
        done(index.apply(index.add_publisher(), []))
    assert len(index) == 0


def test_what_was_noted_of_a_cleared_cache_is_let_go_in_steps() -> None:
    index, one, other = opened()
    count = 20_000
    for start in range(0, count, 100):
        tokens = list(range(start * SIZE, (start + 100) * SIZE))
        names = list(range(start, start + 100))
        done(index.apply(other, [store(names, tokens=tokens), store(names, tokens=[])]))
        # other names, and two references to each
        names = [count + name for name in names]
        done(index.apply(one, [store(names, tokens=tokens), store(names, tokens=[], scope=HOST)]))
    index.clear(one)
    assert blocks(index, one, list(range(640))) == 0
    assert sum(1 for _ in index.apply(other, [])) > count // 1000
    for _ in range(200):
        assert sum(1 for _ in index.apply(other, [])) < 10
    assert (len(index), other.count) == (count, count)
    index.clear(other)
    for _ in range(200):
        done(index.apply(one, []))
    assert len(index) == 0


def test_names_of_what_is_gone_are_forgotten_in_steps_and_too_many_of_what_is_there_with_all_else() -> None:
    index, one, other = opened()
    done(index.apply(one, [store([1])]))
    longest, name = 0, 2
    while not other.refused:
        name += 100
        steps = sum(1 for _ in index.apply(other, [store([at]) for at in range(name, name + 100)]))
        longest = max(longest, steps)
        assert len(other.aliases) <= 80_000
    assert longest > 4 * 100, "thousands of names are looked at in some steps"
    assert (len(other.aliases) < 100, blocks(index, one)) == (True, 1)
    done(index.apply(other, [BlocksCleared(), store([5])]))
    assert (blocks(index, other), other.refused) == (1, 0)


def test_what_is_beyond_the_limit_is_refused_and_never_makes_anything_wrong() -> None:
    index = CacheIndex(most_blocks=3)
    one = index.add_publisher()
    done(index.apply(one, [store([1, 2, 3, 4])]))
    assert (blocks(index, one), one.refused, len(index)) == (3, 1, 3)
    done(index.apply(one, [BlocksRemoved(GPU, [4, 3]), store([4], parent=3, tokens=PROMPT[48:])]))
    assert blocks(index, one) == 2
    done(index.apply(one, [BlocksCleared(), store([1, 2, 3])]))  # room is made
    assert (blocks(index, one), one.refused) == (3, 0)


def test_blocks_of_a_single_token_are_refused() -> None:
    index, one, _ = opened()
    done(index.apply(one, [BlocksStored(GPU, list(range(16)), None, PROMPT[:16], 1)]))
    assert (len(index), one.refused, one.block_tokens) == (0, 16, 0)


def test_memory_of_blocks_that_many_workers_hold() -> None:
    count, workers = 5_000, 8
    rng = random.Random(1)
    names = [rng.getrandbits(64) for _ in range(count)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        index = CacheIndex()
        for _ in range(workers):
            holdings = index.add_publisher()
            for at, name in enumerate(names):
                done(index.apply(holdings, [store([name], tokens=[at] * 16)]))
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(index) == count
    assert used < index.used_bytes == count * BLOCK_BYTES


class Model:
    """One publisher, each reference counted, and each of its names what it was last stored as."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[Scope, int]] = Counter()
        self.prefix: dict[int, tuple[int, ...]] = {}

    def holds(self, name: int) -> bool:
        return any(self.counts[scope, name] for scope in (GPU, HOST))

    def apply(self, event: Any) -> None:
        if isinstance(event, BlocksCleared):
            self.counts.clear()
            self.prefix.clear()
        elif isinstance(event, BlocksRemoved):
            for name in event.hashes:
                if self.counts[event.scope, name]:
                    self.counts[event.scope, name] -= 1
                if not self.holds(name):
                    self.prefix.pop(name, None)
        elif not event.tokens:
            for name in event.hashes:
                if self.holds(name):
                    self.counts[event.scope, name] += 1
        elif event.parent is None or self.holds(event.parent):
            before = () if event.parent is None else self.prefix[event.parent]
            for at, name in enumerate(event.hashes):
                before = (*before, *event.tokens[at * SIZE : (at + 1) * SIZE])
                self.counts[event.scope, name] += 1
                self.prefix[name] = before

    def held(self, tokens: list[int]) -> int:
        prefixes = set(self.prefix.values())
        count = 0
        while (count + 1) * SIZE <= len(tokens) and tuple(tokens[: (count + 1) * SIZE]) in prefixes:
            count += 1
        return count


def chain_of(prompt: tuple[int, ...], tables: int) -> list[int]:
    """Names of the blocks of a prompt of such blocks, which depend on what is before them; differently by table."""
    return [hash((tables, prompt[: end + 1])) & 0xFFFF_FFFF for end in range(len(prompt))]


@pytest.mark.parametrize("seed", range(4))
def test_a_hundred_thousand_events_against_a_model(seed: int) -> None:
    rng = random.Random(seed)
    index = CacheIndex()
    publishers = [(index.add_publisher(), Model(), number % 2) for number in range(5)]
    prompts = [tuple(rng.randrange(3) for _ in range(6)) for _ in range(40)]
    for step in range(25_000):
        holdings, model, tables = rng.choice(publishers)
        prompt = rng.choice(prompts)
        names = chain_of(prompt, tables)
        start = rng.randrange(6)
        end = rng.randrange(start, 6) + 1
        tokens = [block for block in prompt[start:end] for _ in range(SIZE)]
        scope = rng.choice((GPU, GPU, HOST))
        kind = rng.random()
        event: Any
        if kind < 0.45:
            event = BlocksStored(scope, names[start:end], names[start - 1] if start else None, tokens, SIZE)
        elif kind < 0.55:
            event = BlocksStored(scope, names[start:end])
        elif kind < 0.999:
            event = BlocksRemoved(scope, names[start:end][::-1] if kind < 0.9 else rng.choices(names, k=2))
        else:
            event = BlocksCleared()
        done(index.apply(holdings, [event]))
        model.apply(event)
        if step % 10 == 0:
            tokens = [block for block in rng.choice(prompts) for _ in range(SIZE)]
            bits = 0
            for one, _, _ in publishers:
                bits |= one.bit
            found = index.match(pack_tokens(tokens), index.root(None, ""), bits, SIZE)
            assert found == {one.bit: held for one, its, _ in publishers if (held := its.held(tokens))}, step
    for holdings, _, _ in publishers:
        done(index.apply(holdings, [BlocksCleared()]))
    for _ in range(20):
        done(index.apply(publishers[0][0], []))
    assert len(index) == 0
