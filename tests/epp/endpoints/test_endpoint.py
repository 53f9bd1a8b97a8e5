import numpy as np
import pytest

from epp.endpoints.endpoint import NO_ADAPTERS, NO_NUMBERS, Adapters, Column, Endpoint, EndpointPool


def endpoint(address: str = "10.0.0.1", port: int = 8000) -> Endpoint:
    return Endpoint(id="w", incarnation="a", address=address, port=port, metrics_port=port)


@pytest.mark.parametrize(
    ("address", "destination"), [("10.0.0.1", "10.0.0.1:8000"), ("fd00::1", "[fd00::1]:8000")]
)
def test_a_destination_has_ipv6_in_brackets(address: str, destination: str) -> None:
    assert endpoint(address).destination == destination


def test_endpoints_are_equal_only_to_themselves() -> None:
    one, other = endpoint(), endpoint()
    assert one != other
    assert len({one, other}) == 2


def test_a_pool_is_columns() -> None:
    numbers = np.repeat(NO_NUMBERS, 3, axis=1)
    numbers[Column.WAITING] = [1, 2, 3]
    numbers[Column.SCRAPED_AT, 0] = 4.0
    adapters = [Adapters(frozenset({name})) for name in "abc"]
    pool = EndpointPool([endpoint(port=8000 + i) for i in range(3)], numbers, adapters, now=10.0)
    assert pool.waiting.tolist() == [1, 2, 3]
    assert pool.age.tolist() == [6.0, np.inf, np.inf]
    assert pool.reachable.all()
    taken = pool.select(np.array([True, False, True]))
    assert taken.waiting.tolist() == [1, 3]
    assert [one.port for one in taken.endpoints] == [8000, 8002]
    assert taken.adapters == (adapters[0], adapters[2])
    assert taken.age.tolist() == [6.0, np.inf]


def test_to_take_all_is_to_take_the_pool_itself() -> None:
    pool = EndpointPool([endpoint()], NO_NUMBERS, [NO_ADAPTERS], now=0.0)
    assert pool.select(np.array([True])) is pool
    assert len(pool.select(np.array([False]))) == 0


def test_three_looks_may_be_missed() -> None:
    numbers = np.repeat(NO_NUMBERS, 4, axis=1)
    numbers[Column.SCRAPED_AT, :3] = [9.9, 9.0, 9.0]
    numbers[Column.PERIOD, :3] = [0.05, 0.05, 0.4]
    pool = EndpointPool([endpoint()] * 4, numbers, [NO_ADAPTERS] * 4, now=10.0)
    assert pool.fresh(0.2).tolist() == [True, False, True, False]


def pool_late_at(*late_at: float, now: float = 10.0) -> EndpointPool:
    numbers = np.repeat(NO_NUMBERS, len(late_at), axis=1)
    numbers[Column.LATE_AT] = late_at
    return EndpointPool([endpoint()] * len(late_at), numbers, [NO_ADAPTERS] * len(late_at), now)


@pytest.mark.parametrize(
    ("late_at", "late"),
    [
        ((9.9, 10.0, 10.1), [True, False, False]),
        ((10.0, 10.1), None),
        ((9.0, 11.0), [True, False]),
        ((9.0, 9.0, 11.0), None),
        ((9.0, 9.9, 9.9, 11.0), [True, False, False, False]),
        ((9.9, 9.9, 9.9, 11.0), None),
        ((9.0,), None),
        ((9.0, np.inf, np.inf), None),
        ((9.0, 11.0, np.inf), [True, False, False]),
        ((), None),
    ],
    ids=[
        "one", "none", "half of them", "more than half", "one was late before", "we stood still", "the only one", "the only one that is known",
        "half of those that are known", "no endpoint",
    ],
)  # fmt: skip
def test_who_is_late(late_at: tuple[float, ...], late: list[bool] | None) -> None:
    found = pool_late_at(*late_at).late()
    assert (found if found is None else found.tolist()) == late


def test_nobody_is_late_before_the_time_that_a_pool_knows_of() -> None:
    pool = pool_late_at(9.0, 11.0)
    pool.punctual_until = 10.0
    assert pool.late() is None
