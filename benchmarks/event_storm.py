"""What a storm of discovery's events costs the loop that picks: 1,000 workers come, are lost, are replaced, load an adapter.

The events take their way from a watch to the picker's datastore; no network, and nobody scrapes.
"""

import asyncio
import gc
import logging
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from adsum.tasks import background
from benchmarks.process_usage import percentile
from benchmarks.stalls import Stalls
from discovery import Instance, InstanceEventStream
from discovery.watch import Truth
from epp.config.picker_config import load_config
from epp.endpoints.datastore import Datastore
from epp.endpoints.metadata_feed import follow_discovery
from epp.outlier_watch import OutlierWatch
from epp.outliers.settings import OutlierSettings
from epp.outliers.slow_start import SlowStartSettings
from epp.scheduling.director import Director
from epp.scheduling.pick import Pick
from epp.scheduling.request_reader import Policy

_WORKERS: Final = 1000
_CHANGES: Final = 50
_HEADERS: Final = {":path": "/v1/completions", ":method": "POST", "content-type": "application/json"}
_BODY: Final = b'{"model": "m", "prompt": "hello world"}'


def adapter_names(count: int) -> list[str]:
    return [f"adapter-{n}" for n in range(count)]


@dataclass(frozen=True, slots=True)
class _Documents:
    """Has each worker's document, as a watch with metadata has."""

    adapters: int

    async def read(self, instance: Instance) -> dict[str, Any]:
        names = adapter_names(self.adapters)
        return {"model": {"name": "m", "adapters": names, "revision": instance.revision}}


@dataclass
class _Picker:
    """A datastore that follows `truth`, and the director over it. It picks in every iteration of the loop."""

    adapters: int
    truth: Truth = field(default_factory=Truth)
    store: Datastore = field(default_factory=Datastore)
    pick_seconds: list[float] = field(default_factory=list)
    """Processor time of each pick."""

    def __post_init__(self) -> None:
        rng = random.Random(1)
        config = load_config(None, rng=rng, staleness=2.0)
        self._director = Director(self.store, config.scheduler, config.detector, Policy(), rng)
        watch = OutlierWatch(self._director, self.store, time.monotonic, rng)
        watch.use(OutlierSettings(), SlowStartSettings())
        documents = _Documents(self.adapters)
        self._instances: Mapping[str, Instance] = {
            f"w{n}": Instance(
                f"w{n}", "ns", "c", f"10.0.{n >> 8}.{n & 255}", 8000, "1", revision="0", reader=documents
            )
            for n in range(_WORKERS)
        }

    def come(self) -> None:
        self._replace(self._instances)

    def set_reachable(self, *, reachable: bool) -> None:
        self._replace({id: replace(one, reachable=reachable) for id, one in self._instances.items()})

    def replace_some(self, step: int) -> None:
        """A tenth of the workers is replaced: the same names, other processes."""
        tenth = [f"w{n}" for n in range(step - 1, _WORKERS, 10)]
        others = {id: replace(self._instances[id], incarnation="2") for id in tenth}
        self._replace({**self._instances, **others})

    def replaced(self, step: int) -> bool:
        return sum(one.incarnation == "2" for one in self.store.endpoints) == step * _WORKERS // 10

    def load_adapter(self) -> None:
        """Each worker loads one adapter more."""
        more = _Documents(self.adapters + 1)
        self._replace({id: replace(one, revision="1", reader=more) for id, one in self._instances.items()})

    def all_loaded(self) -> bool:
        new = adapter_names(self.adapters + 1)[-1]
        return all(new in one.models for one in self.store.endpoints)

    def change_one(self, revision: int) -> None:
        self._replace({**self._instances, "w0": replace(self._instances["w0"], revision=str(revision))})

    def _replace(self, instances: Mapping[str, Instance]) -> None:
        self._instances = instances
        self.truth.replace(instances, instances, instances)

    @property
    def all_reachable(self) -> bool:
        return len(self.store.endpoints) == _WORKERS and all(one.reachable for one in self.store.endpoints)

    @property
    def none_reachable(self) -> bool:
        return not any(one.reachable for one in self.store.endpoints)

    def pick(self) -> None:
        now, began = time.monotonic(), time.thread_time()
        picked = self._director.direct(_HEADERS, _BODY, None, now)
        assert isinstance(picked, Pick)
        self._director.picks.release(picked, now)
        self.pick_seconds.append(time.thread_time() - began)

    async def took(self, change: Callable[[], None], is_done: Callable[[], bool]) -> tuple[float, float]:
        """Processor time until the change has come, and the longest iteration of the loop meanwhile, in seconds."""
        changed = asyncio.Event()
        self.store.on_change.append(changed.set)
        with Stalls() as stalls:
            began = time.thread_time()
            change()
            while not is_done():
                await changed.wait()
                changed.clear()
                if self.store.endpoints:
                    self.pick()
            spent = time.thread_time() - began
        self.store.on_change.remove(changed.set)
        return spent, stalls.longest


@asynccontextmanager
async def _following(adapters: int) -> AsyncIterator[_Picker]:
    picker = _Picker(adapters)

    @asynccontextmanager
    async def attach() -> AsyncIterator[Truth]:
        yield picker.truth

    async with (
        InstanceEventStream(attach) as events,
        background(follow_discovery(events, picker.store), "follow"),
    ):
        yield picker


@dataclass(frozen=True, slots=True)
class Storm:
    """Seconds of processor time: of all events of a kind, picks included; `longest_stall` of the loop; `pick` is the 99th
    percentile."""

    start: float
    lost: float
    back: float
    replaced: float
    adapter: float
    one_change: float
    longest_stall: float
    pick: float


async def measure(adapters: int, changes: int = _CHANGES) -> Storm:
    async with _following(adapters) as picker:
        start = await picker.took(picker.come, lambda: picker.all_reachable)
        lost = await picker.took(lambda: picker.set_reachable(reachable=False), lambda: picker.none_reachable)
        back = await picker.took(lambda: picker.set_reachable(reachable=True), lambda: picker.all_reachable)
        one_by_one = []
        for number in range(1, changes + 1):
            seen = asyncio.Event()
            picker.store.on_change.append(seen.set)
            one_by_one.append(await picker.took(partial(picker.change_one, number + 1), seen.is_set))
            picker.store.on_change.remove(seen.set)
        adapter = await picker.took(picker.load_adapter, picker.all_loaded)
        update = [
            await picker.took(partial(picker.replace_some, step), partial(picker.replaced, step))
            for step in range(1, 11)
        ]
        return Storm(
            start[0],
            lost[0],
            back[0],
            sum(spent for spent, _ in update),
            adapter[0],
            statistics.median(spent for spent, _ in one_by_one),
            max(stall for _, stall in (start, lost, back, adapter, *one_by_one, *update)),
            percentile(picker.pick_seconds, 0.99),
        )


async def main() -> None:
    """Prints milliseconds of processor time for each number of adapters; some seconds."""
    for name in ("epp", "discovery"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for adapters in (0, 8, 32):
        gc.collect()
        gc.freeze()  # with the threshold, as `epp.process` does
        gc.set_threshold(10_000)
        storm = await measure(adapters)
        print(
            f"{_WORKERS} workers with {adapters} adapters each: start {storm.start * 1e3:.0f} ms, all unreachable "
            f"{storm.lost * 1e3:.0f} ms, all back {storm.back * 1e3:.0f} ms, all replaced in ten steps "
            f"{storm.replaced * 1e3:.0f} ms, an adapter more everywhere {storm.adapter * 1e3:.0f} ms, one change of metadata "
            f"{storm.one_change * 1e3:.2f} ms, longest stall {storm.longest_stall * 1e3:.0f} ms, picks meanwhile "
            f"{storm.pick * 1e3:.2f} ms (p99)"
        )
