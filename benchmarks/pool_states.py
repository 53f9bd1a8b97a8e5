"""What a pick costs in each state of the pool that leaves out some endpoints, or counts them differently; no network."""

import contextlib
import gc
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from benchmarks.process_usage import percentile
from discovery import Instance, InstanceAddedEvent
from epp.config.picker_config import CONFIG_OF_POOL, DEFAULT_CONFIG, load_config
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Adapters
from epp.endpoints.load import Load
from epp.outliers.slow_start import SlowStart, SlowStartSettings
from epp.request.subset import Subset
from epp.scheduling.director import Director
from epp.scheduling.pick import Pick
from epp.scheduling.request_reader import Policy

_ADAPTERS: Final = 16
_PICKS: Final = 500
_TURNS: Final = 30
"""Three choices and one are measured in turns; what is printed is the tenth of the medians that nothing else held up."""
_HEADERS: Final = {":path": "/v1/completions", ":method": "POST", "content-type": "application/json"}


@dataclass
class StatedPool:
    """A director over so many workers, whose pages have been read."""

    workers: int
    config: str = DEFAULT_CONFIG
    store: Datastore = field(default_factory=Datastore)

    def __post_init__(self) -> None:
        rng = random.Random(1)
        config = load_config(self.config, rng=rng, staleness=1e9)
        self.director = Director(self.store, config.scheduler, config.detector, Policy(), rng)
        names = [f"adapter-{number}" for number in range(_ADAPTERS)]
        for number in range(self.workers):
            address = f"10.0.{number >> 8}.{number & 255}"
            added = InstanceAddedEvent(Instance(f"w{number}", "ns", "c", address, 8000, "1"))
            self.store.apply(added, {"model": {"name": "m", "adapters": names}})
        for number, endpoint in enumerate(self.store.endpoints):
            adapters = Adapters(frozenset([names[number % _ADAPTERS]]))
            load = Load(waiting=0.0, running=float(number % 7), kv_usage=0.1, max_lora=4.0, adapters=adapters)
            self.store.observe(endpoint, load, time.monotonic())

    def pick_seconds(
        self, model: str = "m", subset: Subset | None = None, picks: int = _PICKS
    ) -> list[float]:
        """Processor time of each pick, the first tenth left out: each has a prompt of its own, and ends at once."""
        spent = []
        for number in range(picks):
            prompt = f"{number} " * 200
            body = f'{{"model": "{model}", "prompt": "{prompt}"}}'.encode()
            began, now = time.thread_time(), time.monotonic()
            picked = self.director.direct(_HEADERS, body, subset, now)
            spent.append(time.thread_time() - began)
            assert isinstance(picked, Pick)
            self.director.picks.release(picked, now)
        return spent[picks // 10 :]

    def with_subset(self, picks: int = _PICKS) -> list[float]:
        """The data plane names half of the endpoints."""
        named = Subset.of([endpoint.destination for endpoint in self.store.endpoints[::2]])
        return self.pick_seconds(subset=named, picks=picks)

    def with_new(self, picks: int = _PICKS) -> list[float]:
        """One endpoint of twenty is new."""
        slow = SlowStart(self.store, SlowStartSettings(), time.monotonic, random.Random(2))
        with contextlib.closing(slow):
            for endpoint in self.store.endpoints[::20]:
                slow.begin(endpoint)
            self.director.eligible.slow_start = slow
            spent = self.pick_seconds(picks=picks)
            self.director.eligible.slow_start = None
        return spent

    def with_adapter(self, picks: int = _PICKS) -> list[float]:
        return self.pick_seconds(model="adapter-3", picks=picks)

    def with_ejected(self, picks: int = _PICKS) -> list[float]:
        """One endpoint of twenty is ejected."""
        for endpoint in self.store.endpoints[::20]:
            self.store.set_ejected(endpoint, ejected=True)
        spent = self.pick_seconds(picks=picks)
        for endpoint in self.store.endpoints[::20]:
            self.store.set_ejected(endpoint, ejected=False)
        return spent


STATES: Final[dict[str, Callable[[StatedPool, int], list[float]]]] = {
    "all of them": lambda pool, picks: pool.pick_seconds(picks=picks),
    "a subset of half": StatedPool.with_subset,
    "1 of 20 new": StatedPool.with_new,
    "1 of 20 ejected": StatedPool.with_ejected,
    "an adapter": StatedPool.with_adapter,
}


async def main() -> None:
    """Prints a line for each size of the pool and state; some seconds."""
    for workers in (10, 100, 1000):
        pool, one = StatedPool(workers), StatedPool(workers, CONFIG_OF_POOL)
        gc.collect()
        gc.freeze()  # as `epp.process` does
        for state, measured in STATES.items():
            _print(f"{workers} workers, {state}", measured(pool, _PICKS))
        three, single = [], []
        for _ in range(_TURNS):
            three.append(statistics.median(pool.pick_seconds(picks=100)) * 1e6)
            single.append(statistics.median(one.pick_seconds(picks=100)) * 1e6)
        medians = [statistics.quantiles(turns, n=10)[0] for turns in (three, single)]
        print(f"{workers} workers, three choices: {medians[0]:.1f} µs a pick; one: {medians[1]:.1f} µs")


def _print(what: str, spent: list[float]) -> None:
    print(
        f"{what}: {statistics.median(spent) * 1e6:.0f} µs a pick, p99 {percentile(spent, 0.99) * 1e6:.0f} µs"
    )
