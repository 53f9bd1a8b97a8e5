"""Which adapters an endpoint has loaded."""

from epp.endpoints.endpoint import NO_ADAPTERS, NO_NUMBERS, Adapters, Column, Endpoint, EndpointPool
from epp.scheduling.work_ahead.adapters import LoadedAdapters


def pool_of(*given: Adapters, slots: float = 2.0) -> EndpointPool:
    endpoints = [
        Endpoint(id=f"w{row}", incarnation="a", address="10.0.0.1", port=8000 + row, metrics_port=8000)
        for row in range(len(given))
    ]
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
