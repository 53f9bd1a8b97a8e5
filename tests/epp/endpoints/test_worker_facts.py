"""What one process finds out about workers is the same in another one, whenever that begins to listen."""

import random
from itertools import chain
from typing import Any

import pytest

from discovery import Instance, InstanceAddedEvent, InstanceEvent, InstanceRemovedEvent, InstanceUpdatedEvent
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Adapters
from epp.endpoints.load import Load
from epp.endpoints.served_model import ServedModel
from epp.endpoints.worker_facts import Fact, FactCodec, WorkerFacts
from epp.endpoints.worker_metrics import PROMPT_TOKENS, WORKER_METRICS

CODEC = FactCodec(WORKER_METRICS)


def instance(number: int, **changes: Any) -> Instance:
    given: dict[str, Any] = {"labels": {"a": "b"}, "ports": {"http": 8000}, "revision": "i.e.1", "zone": "z"}
    return Instance(f"w{number}", "ns", "worker", f"10.0.0.{number + 1}", 8000, "1", **given | changes)


def shown(store: Datastore, now: float) -> Any:
    pool = store.pool(now)
    order = sorted(range(len(pool)), key=lambda row: pool.endpoints[row].id)
    return [
        (
            repr(pool.endpoints[row]),
            pool.adapters[row],
            pool.numbers[:, row].tolist(),
            store.cache_tokens(pool.endpoints[row]),
        )
        for row in order
    ]


class Side:
    """`told`: what it finds out. `events`: what it hears of others."""

    def __init__(self) -> None:
        self.store = Datastore()
        self.events: list[InstanceEvent] = []
        self.facts = WorkerFacts(self.store, [self.events.append])
        self.told: list[Fact] = []

    def hear(self, facts: list[Fact]) -> None:
        for fact in CODEC.decode(CODEC.encode(facts)):
            self.facts.apply(fact)


def happens(rng: random.Random, store: Datastore, now: float) -> None:
    one = instance(rng.randrange(6), reachable=rng.random() < 0.9)
    known = store.find((one.id, one.incarnation))
    match rng.randrange(10):
        case 0 if known is not None:
            store.apply(InstanceRemovedEvent(one, rng.choice(["deleted", "not_ready"])))
        case 1 if known is not None:
            store.apply(InstanceUpdatedEvent(one, one), rng.choice([None, {"model": {"name": "other"}}]))
        case _ if known is None:
            store.apply(InstanceAddedEvent(one), {"model": {"name": "m", "big": 2**70}})
        case 2:
            store.record_failed_scrape(known, has_page=rng.random() < 0.8)
        case 3:
            store.set_lost(known, lost=rng.random() < 0.5)
        case 4:
            store.set_cache_tokens(known, rng.randrange(9) * 1000)
        case 5:
            store.set_listed_models(known, (ServedModel(id="m", created=rng.randrange(3)),))
        case 6:
            store.process_replaced(known)
        case _:
            adapters = rng.choice([Adapters(), Adapters(frozenset("ab"), frozenset("c"))])
            waiting = float(rng.randrange(4))  # a worker's pages have the same series
            load = Load(
                waiting=waiting,
                running=1.0,
                adapters=adapters,
                others={PROMPT_TOKENS: float(rng.randrange(99))},
            )
            store.observe(known, load, now, rng.choice([0.0, 0.05]))


@pytest.mark.parametrize("seed", range(20))
def test_all_that_is_found_out_is_known_to_who_listens_and_to_who_comes_later(seed: int) -> None:
    rng, now = random.Random(seed), 100.0
    one, other, later = Side(), Side(), Side()
    one.facts.tell = one.told.append
    for event in range(300):
        now += 0.01
        happens(rng, one.store, now)
        if event % 7 == 0:
            other.hear(one.told)
            one.told.clear()
    other.hear(one.told)
    later.hear(list(chain.from_iterable(one.facts.snapshot())))
    expected = shown(one.store, now)
    assert shown(other.store, now) == expected
    assert shown(later.store, now) == expected
    assert len(other.events) > 10
    third = Side()
    third.hear(list(chain.from_iterable(other.facts.snapshot())))
    assert shown(third.store, now) == expected, "who heard can tell it on"


def test_a_page_is_late_elsewhere_only_once_it_is_overdue() -> None:
    """Otherwise all pages would be late there when this process stands still."""
    one, other = Side(), Side()
    one.facts.tell = one.told.append
    for number in range(2):
        one.store.apply(InstanceAddedEvent(instance(number)), {})
        one.store.observe(one.store.endpoints[number], Load(running=1.0), 1.0, 0.05)
    one.store.expect_page(one.store.endpoints[1], 1.2)
    assert one.facts.overdue(1.1) == []
    other.hear(one.told)
    assert other.store.pool(1.3).late() is None
    other.hear(one.facts.overdue(1.3))
    assert other.store.pool(1.3).late().tolist() == [False, True]
    assert one.facts.overdue(1.4) == [], "it is told once"


def test_a_page_that_makes_no_sense_makes_none_elsewhere() -> None:
    one, other = Side(), Side()
    one.facts.tell = one.told.append
    one.store.apply(InstanceAddedEvent(instance(1)), {})
    one.store.observe(one.store.endpoints[0], Load(running=float("nan")), 1.0, 0.05)
    other.hear(one.told)
    assert not other.store.pool(1.0).fresh(5.0).any()


def test_workers_that_are_not_told_of_are_gone() -> None:
    side = Side()
    for number in range(3):
        side.store.apply(InstanceAddedEvent(instance(number)), {})
    side.facts.retain({("w1", "1")})
    assert [one.id for one in side.store.endpoints] == ["w1"]
