import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from discovery import Instance, InstanceAddedEvent
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Adapters, EndpointPool
from epp.endpoints.load import Load
from tests.epp.scheduling.endpoint_pools import add_worker

COUNT = 6


def store_of(count: int = COUNT) -> Datastore:
    store = Datastore()
    for _ in range(count):
        add_worker(store, is_seen=False)
    return store


def page(
    store: Datastore, row: int, now: float, waiting: float = 0.0, adapters: Adapters | None = None
) -> None:
    store.observe(
        store.endpoints[row], Load(waiting=waiting, running=0.0, kv_usage=0.0, adapters=adapters), now
    )


def without(row: int) -> np.ndarray:
    mask = np.ones(COUNT, dtype=np.bool_)
    mask[row] = False
    return mask


def test_an_equal_selection_of_a_later_pool_has_the_same_tuple_of_endpoints() -> None:
    """So that plugins find what they keep for these endpoints."""
    store = store_of()
    first = store.pool(1.0).select(without(2))
    page(store, 0, 2.0)
    later = store.pool(2.0).select(without(2))
    assert later.endpoints is first.endpoints
    assert [endpoint.id for endpoint in later.endpoints] == ["w0", "w1", "w3", "w4", "w5"]
    assert later.endpoints is not store.pool(2.0).select(without(3)).endpoints


def test_its_numbers_and_adapters_are_those_of_now() -> None:
    store = store_of()
    store.pool(1.0).select(without(0))
    page(store, 1, 2.0, waiting=7.0, adapters=Adapters(frozenset({"a"}), frozenset()))
    pool = store.pool(2.0).select(without(0))
    assert pool.waiting.tolist() == [7.0, 0.0, 0.0, 0.0, 0.0]
    assert [sorted(one.active) for one in pool.adapters] == [["a"], [], [], [], []]


def test_its_state_lasts_as_long_as_that_of_the_pool() -> None:
    store = store_of()
    one, other = store.pool(1.0).select(without(0)), store.pool(1.0).select(without(0))
    assert one.state is other.state is not None
    assert store.pool(1.0).select(without(1)).state is not one.state
    page(store, 1, 2.0, waiting=7.0)
    assert store.pool(2.0).select(without(0)).state is not one.state


def test_a_pool_of_which_nobody_tracks_changes_has_selections_without_a_state() -> None:
    pool = store_of().pool(1.0)
    untracked = EndpointPool(pool.endpoints, pool.numbers, pool.adapters, 1.0)
    assert untracked.select(without(0)).state is None


def test_what_was_selected_before_endpoints_changed_is_forgotten() -> None:
    store = store_of()
    before = store.pool(1.0).select(without(0)).endpoints
    store.apply(InstanceAddedEvent(Instance("w6", "ns", "c", "10.0.0.7", 8000, "a")), {})
    mask = np.array([False, *[True] * COUNT])
    after = store.pool(1.0).select(mask).endpoints
    assert len(after) == len(before) + 1


@given(
    st.lists(
        st.lists(st.lists(st.booleans(), min_size=COUNT, max_size=COUNT), min_size=1, max_size=3), max_size=60
    )
)
def test_selections_of_selections_are_those_that_a_plain_list_gives(masks: list[list[list[bool]]]) -> None:
    """However many: only the latest are remembered."""
    store = store_of()
    rng = random.Random(1)
    for now, nested in enumerate(masks):
        page(store, rng.randrange(COUNT), float(now), waiting=float(rng.randrange(9)))
        pool = store.pool(float(now))
        left = list(zip(pool.endpoints, pool.waiting.tolist(), strict=True))
        for mask in nested:
            kept = mask[: len(left)]
            pool = pool.select(np.array(kept, dtype=np.bool_))
            left = [one for one, keep in zip(left, kept, strict=True) if keep]
            assert list(zip(pool.endpoints, pool.waiting.tolist(), strict=True)) == left
