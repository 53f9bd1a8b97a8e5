"""What a pick costs among a thousand workers, if the request or the moment restricts it. Processor time, as ratios."""

import itertools
import random
import time
from collections.abc import Callable

import pytest

from discovery import InstanceAddedEvent
from epp.config.picker_config import load_config
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Adapters
from epp.endpoints.load import Load
from epp.outliers.slow_start import SlowStart, SlowStartSettings
from epp.request.subset import Subset
from epp.scheduling.director import Director
from epp.scheduling.request_reader import Policy
from tests.epp.endpoints.test_datastore import instance

HEADERS = {":path": "/v1/completions", ":method": "POST", "content-type": "application/json"}
DOCUMENT = {"model": {"name": "m", "adapters": [f"lora-{number}" for number in range(16)]}}
NOW = 10.0


class Pool:
    """A thousand workers with the adapters of `DOCUMENT`, each with one of them loaded, picked by the default policy."""

    def __init__(self) -> None:
        self.store, rng = Datastore(), random.Random(1)
        config = load_config(None, rng=rng, staleness=1e9)
        self.director = Director(self.store, config.scheduler, config.detector, Policy(), rng)
        for number in range(1000):
            worker = instance(f"w{number}", address=f"10.0.{number >> 8}.{number & 255}")
            self.store.apply(InstanceAddedEvent(worker), DOCUMENT)
        for number, endpoint in enumerate(self.store.endpoints):
            loaded = Adapters(frozenset({f"lora-{number % 16}"}))
            self.store.observe(endpoint, Load(running=number % 7, max_lora=4, adapters=loaded), NOW, 1e9)
        self._prompts = itertools.count()

    def cost(self, subset: Callable[[], Subset | None] = lambda: None, model: str = "m") -> float:
        """The least seconds of a pick."""
        times = []
        for _ in range(60):
            body = b'{"model":"%s","prompt":"%s"}' % (model.encode(), b"%d " % next(self._prompts) * 200)
            hint, began = subset(), time.perf_counter()
            pick = self.director.direct(HEADERS, body, hint, NOW)
            times.append(time.perf_counter() - began)
            self.director.picks.release(pick, NOW)
        return min(times[10:])


@pytest.fixture(scope="module")
def pool() -> Pool:
    return Pool()


def test_a_subset_of_all_workers_costs_no_look_at_each(pool: Pool) -> None:
    destinations = [endpoint.destination for endpoint in pool.store.endpoints]
    assert pool.cost(lambda: Subset.of(list(destinations))) < 2.5 * pool.cost()
    assert Subset.of(destinations) is Subset.of(list(destinations)), "nor is an equal list read again"


def test_an_adapter_costs_no_look_at_each_worker(pool: Pool) -> None:
    assert pool.cost(model="lora-3") < 2.5 * pool.cost()


def test_a_new_worker_costs_no_look_at_each_other(pool: Pool) -> None:
    plain = pool.cost()
    slow = SlowStart(pool.store, SlowStartSettings(), lambda: NOW, random.Random(2))
    slow.begin(pool.store.endpoints[0])
    pool.director.eligible.slow_start = slow
    try:
        assert pool.cost() < 2.0 * plain
    finally:
        pool.director.eligible.slow_start = None
        slow.close()
