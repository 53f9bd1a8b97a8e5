"""The index against a plain model of it: for each endpoint the blocks it holds, in the order of their last use."""

import sys
from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.endpoints.endpoint import Endpoint
from epp.scheduling.prefix.holdings import HOLD_BYTES
from epp.scheduling.prefix.index import PrefixIndex
from epp.scheduling.prefix.runs import HASH_BYTES, RUN_BYTES
from tests.epp.scheduling.endpoint_pools import make_endpoint

ONE_RUN = RUN_BYTES + HASH_BYTES + HOLD_BYTES
"""Memory of one block at one endpoint that is used by itself."""


POOL = tuple(make_endpoint(name) for name in "abcdefghijkl")
A, B, C = (one.key for one in POOL[:3])


def matched(index: PrefixIndex, chain: Sequence[int], pool: tuple[Endpoint, ...] = POOL[:3]) -> list[float]:
    found = index.match(chain, pool)
    return [found.get(row, 0) for row in range(len(pool))] if isinstance(found, dict) else found.tolist()


def test_a_match_is_one_row_from_the_beginning() -> None:
    index = PrefixIndex()
    index.record([1, 2, 3], A, 100)
    index.record([1, 2, 30], B, 100)
    assert matched(index, [1, 2, 3, 4]) == [3, 2, 0]
    assert matched(index, [1, 20]) == [1, 1, 0]
    assert index.match([9, 2, 3], POOL) == {}
    assert index.match([], POOL) == {}


def test_leaves_go_before_roots_and_what_was_not_used_goes_first() -> None:
    index = PrefixIndex()
    index.record([1, 2, 3], A, 5)
    index.record([1, 20, 30], A, 5)
    assert matched(index, [1, 2, 3], POOL[:1]) == [3]
    index.record([1, 2, 3], A, 5)
    index.record([7], A, 5)
    assert matched(index, [1, 20, 30], POOL[:1]) == [2], "the leaf of the chain that rested longest"
    index.record([8], A, 5)
    assert matched(index, [1, 20, 30], POOL[:1]) == [1]
    assert matched(index, [1, 2, 3], POOL[:1]) == [3]
    index.record([9], A, 5)
    assert matched(index, [1, 2, 3], POOL[:1]) == [2], (
        "the end of a chain, though its beginning is another run"
    )


def test_of_a_chain_that_is_too_long_the_beginning_is_kept() -> None:
    index = PrefixIndex()
    index.record(range(1, 20), A, 6)
    assert (matched(index, range(1, 20)), len(index)) == ([6, 0, 0], 6)


def test_long_blocks_take_the_room_of_several() -> None:
    index, ends = PrefixIndex(), [1, 2, 4, 8, 16]
    index.record([1, 2, 3, 4], A, 10, ends)
    index.record([11, 12, 13], A, 10, ends)
    assert (matched(index, [1, 2, 3, 4]), matched(index, [11, 12, 13])) == ([3, 0, 0], [3, 0, 0])
    index.record([1, 2, 3, 4, 5], A, 10, ends)
    assert (matched(index, [1, 2, 3, 4, 5]), matched(index, [11])) == ([4, 0, 0], [0, 0, 0])
    index.forget(A)
    index.record([21, 22, 23, 24], A, 8, ends)
    assert matched(index, [21, 22, 23, 24]) == [4, 0, 0], "what went takes no room"


def test_of_a_long_block_no_part_is_kept() -> None:
    index, ends = PrefixIndex(), [4, 5]
    index.record([1, 2], A, 5, ends)
    for first in (11, 21, 31):  # 2 too long: 1 of the second block, the rest of the first
        index.record([first, first + 1], A, 8, ends)
        assert matched(index, [first, first + 1]) == [2, 0, 0]
        assert len(index) == 2


def test_a_conversation_of_many_turns_is_found_whole() -> None:
    """Each turn was used by itself before: what is joined keeps its order, and goes from its end on."""
    index, chain = PrefixIndex(), list(range(100))
    for end in range(2, 101, 2):
        index.record(chain[:end], A, 200)
    index.record([*chain[:50], 1000], A, 200)
    assert (len(index), matched(index, chain), matched(index, [*chain[:50], 1000])) == (
        101, [100, 0, 0], [51, 0, 0]
    )  # fmt: skip
    index.record([2000], A, 41)
    assert matched(index, chain) == [40, 0, 0], "the end of the longer chain, then of the other, went first"


def test_what_is_forgotten_is_gone_for_that_endpoint_only() -> None:
    index = PrefixIndex()
    index.record([1, 2], A, 100)
    index.record([1, 2], B, 100)
    index.forget(A)
    index.forget(C)
    assert matched(index, [1, 2]) == [0, 2, 0]
    index.record([1], C, 100)
    assert matched(index, [1, 2]) == [0, 2, 1], "its place is another one's"
    index.forget(B)
    index.forget(C)
    assert len(index) == 0
    assert index.match([1, 2], POOL) == {}


def test_memory_is_bounded_and_shared_evenly_by_those_that_need_it() -> None:
    index = PrefixIndex(max_bytes=40 * ONE_RUN)
    index.record([7], C, 1000)
    for start in range(1000, 2000, 10):
        index.record(range(start, start + 2), A, 1000)
    assert len(index) in (75, 77, 79), "two blocks take little more memory than one"
    for start in range(2000, 3000, 10):
        index.record(range(start, start + 2), B, 1000)
    assert index.used_bytes <= index.max_bytes
    held = [
        sum(index.held(range(start, start + 2), key) for start in range(first, first + 1000, 10))
        for first, key in ((1000, A), (2000, B))
    ]
    assert max(held) - min(held) <= 2
    assert index.held([7], C) == 1, "who has little loses nothing to those that have much"


def test_blocks_are_stored_once_whoever_holds_them() -> None:
    one, all_of_them = PrefixIndex(), PrefixIndex()
    chain = range(1, 101)
    one.record(chain, A, 1000)
    for endpoint in POOL:
        all_of_them.record(chain, endpoint.key, 1000)
    assert len(all_of_them) == len(POOL) * len(one)
    assert all_of_them.used_bytes < 3 * one.used_bytes


def test_an_endpoint_that_left_goes_little_by_little_and_is_not_found_meanwhile() -> None:
    index = PrefixIndex()
    for start in range(0, 1000, 2):
        index.record([start, start + 1], A, 10_000)
    used = index.used_bytes
    index.forget(A)
    assert (len(index), matched(index, [0, 1])) == (0, [0, 0, 0])
    assert index.used_bytes == used, "at once it would take milliseconds"
    index.record([5000], A, 10_000)
    assert matched(index, [0, 1]) == [0, 0, 0], "it is another one now"
    for number in range(500):
        index.record([6000 + number], B, 10)
    assert index.used_bytes < used / 20


def test_some_of_those_that_are_away_are_kept() -> None:
    index = PrefixIndex()
    for number, one in enumerate(POOL):
        index.record([number + 1], one.key, 10)
    index.record([1], A, 10)
    index.retain([one.key for one in POOL[3:6]])
    kept = [one.id for number, one in enumerate(POOL) if index.match([number + 1], POOL)]
    assert kept == ["a", "d", "e", "f", "k", "l"], (
        "those that are there, and of the others the three used last"
    )
    index.retain([one.key for one in POOL])
    assert len(index) == 6


@pytest.mark.parametrize("count", [1, 8, 9, 63, 64, 65, 1000])
def test_many_hold_the_same(count: int) -> None:
    pool = tuple(make_endpoint(str(number)) for number in range(count))
    index = PrefixIndex()
    for number, one in enumerate(pool):
        index.record([1, 2, 3][: number % 3 + 1], one.key, 10)
    assert matched(index, [1, 2, 3, 4], pool) == [number % 3 + 1 for number in range(count)]
    others = (make_endpoint("stranger"), *reversed(pool))
    assert matched(index, [1], others) == [0] + [1] * count
    few = (*pool[: count // 2], make_endpoint("stranger"))
    assert matched(index, [1], few) == [1] * (count // 2) + [0], "holders that are not asked about"


def test_what_a_request_added_goes_with_it_and_nothing_else() -> None:
    index = PrefixIndex()
    index.record([1, 2], A, 100)
    first = index.claim([1, 2, 3, 4], A, 100)
    other = index.claim([1, 2, 3, 40], A, 100)
    index.withdraw([1, 2, 3, 4], A, first)
    assert (matched(index, [1, 2, 3, 4]), matched(index, [1, 2, 3, 40])) == ([3, 0, 0], [4, 0, 0])
    index.withdraw([1, 2, 3, 4], A, first)
    assert matched(index, [1, 2, 3, 40]) == [4, 0, 0], "the second time nothing happens"
    index.withdraw([1, 2, 3, 40], A, other)
    assert (matched(index, [1, 2, 3, 40]), len(index)) == ([2, 0, 0], 2)


def test_what_was_served_stays_whoever_fails() -> None:
    index = PrefixIndex()
    claims = [index.claim([1, 2, 3], A, 100) for _ in range(3)]
    index.record([1, 2], A, 100)
    for claim in claims:
        index.withdraw([1, 2, 3], A, claim)
    assert (matched(index, [1, 2, 3]), len(index)) == ([2, 0, 0], 2)


def test_a_claim_on_a_cache_that_was_lost_is_none_on_the_next() -> None:
    index = PrefixIndex()
    lost = index.claim([1, 2], A, 100)
    index.forget(A)
    index.confirm([1, 2], A, lost, 100)
    assert len(index) == 0
    new = index.claim([1, 2], A, 100)
    index.withdraw([1, 2], A, lost)
    assert matched(index, [1, 2]) == [2, 0, 0]
    index.confirm([1, 2], A, lost, 100)
    index.withdraw([1, 2], A, new)
    assert len(index) == 0


def test_what_was_served_is_held_again_if_it_had_to_go() -> None:
    index = PrefixIndex()
    claim = index.claim([1, 2, 3], A, 100)
    index.record([7, 8], A, 3)
    assert matched(index, [1, 2, 3]) == [1, 0, 0]
    index.confirm([1, 2, 3], A, claim, 4)
    assert matched(index, [1, 2, 3]) == [3, 0, 0]


def test_claims_take_room_and_leave_none_behind() -> None:
    index = PrefixIndex()
    claims = [(chain, index.claim(chain, A, 50)) for chain in ([n, n + 1, n + 2] for n in range(0, 300, 3))]
    assert len(index) == 50
    for chain, claim in reversed(claims):
        index.withdraw(chain, A, claim)
    assert len(index) == 0
    assert index.match([297], POOL) == {}


class Model:
    """What the index should hold, written down the slow way."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths
        self.held: dict[tuple[str, str], list[tuple[int, ...]]] = {}
        """By endpoint its blocks, each as the chain up to it, the one that was not used for longest first."""
        self.claims: dict[tuple[str, str], dict[tuple[int, ...], set[int]]] = {}
        """By endpoint the blocks that are not held for good."""
        self.born: dict[tuple[str, str], int] = {}
        """By endpoint its first claim since it was forgotten."""

    def record(
        self, chain: tuple[int, ...], key: tuple[str, str], capacity: int, claim: int | None = None
    ) -> None:
        if key not in self.held:
            self.born[key] = sys.maxsize
        if claim is not None:
            self.born[key] = min(self.born[key], claim)
        blocks = self.held.setdefault(key, [])
        claims = self.claims.setdefault(key, {})
        for end in range(len(chain), 0, -1):
            block = chain[:end]
            if block in blocks:
                blocks.remove(block)
                if block in claims and claim is not None:
                    claims[block].add(claim)
            elif claim is not None:
                claims[block] = {claim}
            blocks.append(block)
            if claim is None:
                claims.pop(block, None)
        while sum(self.lengths[len(block) - 1] for block in blocks) > capacity:
            del blocks[0]
        self._drop_claims(key)

    def forget_for_memory(self, key: tuple[str, str], count: int) -> None:
        """Its oldest blocks were forgotten."""
        del self.held[key][:count]
        self._drop_claims(key)

    def _drop_claims(self, key: tuple[str, str]) -> None:
        for block in self.claims[key].keys() - set(self.held[key]):
            del self.claims[key][block]

    def withdraw(self, chain: tuple[int, ...], key: tuple[str, str], claim: int) -> None:
        claims = self.claims.get(key, {})
        for end in range(1, len(chain) + 1):
            claimed = claims.get(chain[:end], set())
            if claim in claimed:
                claimed.remove(claim)
                if not claimed:
                    del claims[chain[:end]]
                    self.held[key].remove(chain[:end])

    def confirm(self, chain: tuple[int, ...], key: tuple[str, str], capacity: int, claim: int) -> None:
        held, claims = self.held.get(key), self.claims.get(key, {})
        if held is None or claim < self.born[key]:
            return
        blocks = [chain[:end] for end in range(1, len(chain) + 1)]
        if all(block in held and claim in claims.get(block, {claim}) for block in blocks):
            for block in blocks:
                claims.pop(block, None)
        else:
            self.record(chain, key, capacity)

    def forget(self, key: tuple[str, str]) -> None:
        self.held.pop(key, None)
        self.claims.pop(key, None)

    def match(self, chain: tuple[int, ...], key: tuple[str, str]) -> int:
        blocks = self.held.get(key, [])
        held = [chain[:end] in blocks for end in range(1, len(chain) + 1)]
        return held.index(False) if False in held else len(held)


CHAINS = st.lists(st.integers(0, 1), min_size=1, max_size=12).map(tuple)
WHAT = ["record"] * 3 + ["claim"] * 4 + ["withdraw"] * 3 + ["confirm"] * 2 + ["forget"]
STEPS = st.lists(st.tuples(st.integers(0, 4), CHAINS, st.sampled_from(WHAT), st.integers(1, 24)), max_size=40)


@given(
    steps=STEPS,
    max_bytes=st.sampled_from([4 * ONE_RUN, 12 * ONE_RUN, 1_000_000]),
    lengths=st.sampled_from([(1,) * 12, (1, 1, 2, 2, 4, 4, 4, 4, 4, 4, 8, 8), (3, 1, 1, 1, 2, 1) * 2]),
    asked=st.lists(CHAINS, max_size=5),
)
def test_as_the_model(
    steps: list[tuple[int, tuple[int, ...], str, int]],
    max_bytes: int,
    lengths: tuple[int, ...],
    asked: list[tuple[int, ...]],
) -> None:
    index, model, pool, ends = PrefixIndex(max_bytes), Model(lengths), POOL[:5], list(accumulate(lengths))
    open_claims: list[tuple[tuple[int, ...], tuple[str, str], int]] = []
    evicted = 0
    for who, chain, what, capacity in steps:
        key = pool[who].key
        if what == "forget":
            index.forget(key)
            model.forget(key)
        elif what == "claim":
            open_claims.append((chain, key, index.claim(names(chain), key, capacity, ends)))
            model.record(chain, key, capacity, open_claims[-1][2])
        elif open_claims and what != "record":
            claimed, key, claim = open_claims.pop(capacity % len(open_claims))
            if what == "withdraw":
                index.withdraw(names(claimed), key, claim)
                model.withdraw(claimed, key, claim)
            else:
                index.confirm(names(claimed), key, claim, capacity, ends)
                model.confirm(claimed, key, capacity, claim)
        else:
            index.record(names(chain), key, capacity, ends)
            model.record(chain, key, capacity)
        assert index.used_bytes <= max_bytes
        evicted += forget_for_memory(index, model)
        assert len(index) == sum(len(blocks) for blocks in model.held.values())
        assert index.evicted == evicted
    for chain in [*asked, *(chain for _, chain, _, _ in steps)]:
        assert matched(index, names(chain), pool) == [model.match(chain, one.key) for one in pool]
    for one in pool:
        index.forget(one.key)
    index.max_bytes = 0
    index.record([1], A, 1)
    assert index.used_bytes == 0, "something was counted twice, or not given up"


def forget_for_memory(index: PrefixIndex, model: Model) -> int:
    """What memory made the index forget must be the oldest blocks of an endpoint: forget them in the model too."""
    forgotten = 0
    for key, blocks in model.held.items():
        kept = [index.held(names(block), key) == len(block) for block in blocks]
        count = kept.index(True) if True in kept else len(kept)
        assert all(kept[count:])
        model.forget_for_memory(key, count)
        forgotten += count
    return forgotten


def names(chain: tuple[int, ...]) -> list[int]:
    """Blocks named as hashes are: by everything up to their end."""
    return [hash(chain[:end]) % 2**64 for end in range(1, len(chain) + 1)]


def test_what_memory_makes_it_forget_is_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    index = PrefixIndex(8 * ONE_RUN)
    first, second = (endpoint.key for endpoint in POOL[:2])
    for number in range(10):
        index.record([number], first, 4)  # its cache is smaller than its share
    assert (len(index), index.evicted) == (4, 0)
    for number in range(100, 104):
        index.record([number], second, 16)
    assert (index.evicted, caplog.messages) == (0, [])
    for number in range(104, 108):
        index.record([number], second, 16)
    assert (len(index), index.evicted) == (8, 4)
    [line] = caplog.messages
    assert "2 endpoints share its 0 MiB, enough for about 31 % of a cache" in line


def test_a_pool_whose_caches_do_not_fit_is_told_of_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    index = PrefixIndex(100 * 1024 * 1024)
    index.warn_if_too_small(100 * 15_625, 100)
    assert caplog.messages == []
    for count in range(100, 1001):
        index.warn_if_too_small(count * 15_625, count)
    assert [line.split()[3] for line in caplog.messages] == ["168", "336", "672"], "sizes come one by one"
    assert (
        "hold more than the prefix index remembers in its 100 MiB: about 99 % of them" in caplog.messages[0]
    )
    assert "set maxIndexBytes of approx-prefix-cache-producer to 101Mi" in caplog.text


def test_a_claim_that_is_tracked_is_confirmed_without_its_chain() -> None:
    index, key = PrefixIndex(), ("w", "1")
    served = index.claim([1, 2, 3, 4], key, 100, tracked=True)
    lost = index.claim([1, 2, 5], key, 100, tracked=True)  # divides the run of the first
    late = index.claim([6], key, 100, tracked=True)
    index.confirm_tracked(key, served)
    index.withdraw([1, 2, 5], key, lost)
    assert (index.held([1, 2, 3, 4], key), index.held([1, 2, 5], key)) == (4, 2)
    index.withdraw([6], key, late)
    index.claim([7], key, 100)  # has the place of that one
    index.confirm_tracked(key, late)
    assert (index.held([6], key), index.held([7], key)) == (0, 1)
    index.forget(key)
    index.confirm_tracked(key, late)
