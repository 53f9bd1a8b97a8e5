"""The index against a plain model of it: for each endpoint the blocks it holds, in the order of their last use."""

import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.endpoints.endpoint import Endpoint
from epp.scheduling.prefix.index import BLOCK_BYTES, PrefixIndex


def endpoint(name: str) -> Endpoint:
    return Endpoint(id=name, incarnation="a", address="10.0.0.1", port=8000, metrics_port=8000)


POOL = tuple(endpoint(name) for name in "abcdefghijkl")
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
    index, lengths = PrefixIndex(), [1, 1, 2, 4, 8]
    index.record([1, 2, 3, 4], A, 10, lengths)
    index.record([11, 12, 13], A, 10, lengths)
    assert (matched(index, [1, 2, 3, 4]), matched(index, [11, 12, 13])) == ([3, 0, 0], [3, 0, 0])
    index.record([1, 2, 3, 4, 5], A, 10, lengths)
    assert (matched(index, [1, 2, 3, 4, 5]), matched(index, [11])) == ([4, 0, 0], [0, 0, 0])
    index.forget(A)
    index.record([21, 22, 23, 24], A, 8, lengths)
    assert matched(index, [21, 22, 23, 24]) == [4, 0, 0], "what went takes no room"


def test_of_a_long_block_no_part_is_kept() -> None:
    index, lengths = PrefixIndex(), [4, 1]
    index.record([1, 2], A, 5, lengths)
    for first in (11, 21, 31):  # 2 too long: 1 of the second block, the rest of the first
        index.record([first, first + 1], A, 8, lengths)
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


def test_memory_is_bounded_and_shared_evenly() -> None:
    index = PrefixIndex(max_bytes=12 * BLOCK_BYTES)
    index.record(range(100, 120), A, 1000)
    assert len(index) == 12
    index.record(range(200, 220), B, 1000)
    index.record(range(300, 320), C, 1000)
    assert matched(index, range(100, 120)) == [4, 0, 0]
    assert matched(index, range(200, 220)) == [0, 4, 0]
    assert len(index) == 12


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
    pool = tuple(endpoint(str(number)) for number in range(count))
    index = PrefixIndex()
    for number, one in enumerate(pool):
        index.record([1, 2, 3][: number % 3 + 1], one.key, 10)
    assert matched(index, [1, 2, 3, 4], pool) == [number % 3 + 1 for number in range(count)]
    others = (endpoint("stranger"), *reversed(pool))
    assert matched(index, [1], others) == [0] + [1] * count
    few = (*pool[: count // 2], endpoint("stranger"))
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

    def __init__(self, max_blocks: int, lengths: Sequence[int]) -> None:
        self.max_blocks = max_blocks
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
        share = self.max_blocks // len(self.held)
        for other in self.held.values():
            del other[: max(0, len(other) - share)]
        while sum(self.lengths[len(block) - 1] for block in blocks) > capacity:
            del blocks[0]
        for one, held in self.held.items():
            for block in self.claims[one].keys() - set(held):
                del self.claims[one][block]

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
STEPS = st.lists(
    st.tuples(st.integers(0, 4), CHAINS, st.sampled_from(WHAT), st.integers(1, 24)),
    max_size=40,
)


@given(
    steps=STEPS,
    max_blocks=st.sampled_from([10, 24, 1000]),
    lengths=st.sampled_from([(1,) * 12, (1, 1, 2, 2, 4, 4, 4, 4, 4, 4, 8, 8), (3, 1, 1, 1, 2, 1) * 2]),
    asked=st.lists(CHAINS, max_size=5),
)
def test_as_the_model(
    steps: list[tuple[int, tuple[int, ...], str, int]],
    max_blocks: int,
    lengths: tuple[int, ...],
    asked: list[tuple[int, ...]],
) -> None:
    index, model, pool = PrefixIndex(max_blocks * BLOCK_BYTES), Model(max_blocks, lengths), POOL[:5]
    open_claims: list[tuple[tuple[int, ...], tuple[str, str], int]] = []
    for who, chain, what, capacity in steps:
        key = pool[who].key
        if what == "forget":
            index.forget(key)
            model.forget(key)
        elif what == "claim":
            open_claims.append((chain, key, index.claim(names(chain), key, capacity, lengths)))
            model.record(chain, key, capacity, open_claims[-1][2])
        elif open_claims and what != "record":
            claimed, key, claim = open_claims.pop(capacity % len(open_claims))
            if what == "withdraw":
                index.withdraw(names(claimed), key, claim)
                model.withdraw(claimed, key, claim)
            else:
                index.confirm(names(claimed), key, claim, capacity, lengths)
                model.confirm(claimed, key, capacity, claim)
        else:
            index.record(names(chain), key, capacity, lengths)
            model.record(chain, key, capacity)
        assert len(index) <= max_blocks
        assert len(index) == sum(len(blocks) for blocks in model.held.values())
    for chain in [*asked, *(chain for _, chain, _, _ in steps)]:
        assert matched(index, names(chain), pool) == [model.match(chain, one.key) for one in pool]


def names(chain: tuple[int, ...]) -> list[int]:
    """Blocks named as hashes are: by everything up to their end."""
    return [hash(chain[:end]) for end in range(1, len(chain) + 1)]


def test_what_memory_makes_it_forget_is_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    index = PrefixIndex(8 * BLOCK_BYTES)
    first, second = (endpoint.key for endpoint in POOL[:2])
    index.record(list(range(10, 16)), first, 4)  # its cache is smaller than its share
    assert index.evicted == 0
    index.record(list(range(20, 24)), second, 100)
    assert (index.evicted, caplog.messages) == (0, [])
    for start in (30, 40):
        index.record(list(range(start, start + 4)), second, 16)
    assert (len(index), index.evicted) == (8, 8)
    [line] = caplog.messages
    assert "2 endpoints share its 0 MiB, enough for about 25 % of a cache" in line
