"""The workloads: what users ask, and what becomes of the workers meanwhile."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from benchmarks.routing.published_turns import mooncake, tenants
from benchmarks.routing.turns import (
    BASE_MODEL,
    Turn,
    adapted,
    burst,
    fan_out,
    long_tail,
    sessions,
    shared,
)

__all__ = [
    "BASE_MODEL",
    "WORKLOADS",
    "Event",
    "Turn",
    "Workload",
    "adapted",
    "burst",
    "fan_out",
    "long_tail",
    "mooncake",
    "sessions",
    "shared",
    "tenants",
]


@dataclass(frozen=True, slots=True)
class Event:
    """What happens to a worker `at` seconds after the start.

    join: it comes; one whose first event this is was not there before. kill: it ends at once, and all requests there fail;
    pickers hear of it at once, as from the registry's watch. drain: it gets no new requests, and those that it has end.
    stop, continue: SIGSTOP and SIGCONT; meanwhile it computes nothing and has no page, and nobody says so. restart: it ends at
    once and starts again at the same address, with an empty cache; nobody says so.
    """

    at: float
    worker: int
    what: Literal["join", "kill", "drain", "stop", "continue", "restart"]


@dataclass(frozen=True, slots=True)
class Watched:
    """A worker whose share of the requests is told: of those that come from `since` to `until`, in seconds."""

    worker: int
    since: float = 0.0
    until: float = float("inf")


@dataclass(frozen=True, slots=True)
class Workload:
    """`streamed`: response headers come before the first token, else with the last. `kv_usage`: what the page of each
    worker says of its cache before anything is sent; empty: nothing is used. `pickers`: requests go to them in turn.
    `slowness`: by worker, how many times longer each step takes; empty: all are alike. `max_lora`: adapters that a worker
    holds at a time; 0: none is used. `kv_blocks`: of each worker's KV cache; 0: as many as its kind has. `tuning`: constants were
    chosen by it; all others only verify. `roles`: of each worker; empty: none has one.
    """

    turns: Callable[..., list[Turn]]
    streamed: bool = True
    kv_usage: tuple[float, ...] = ()
    pickers: int = 1
    slowness: tuple[float, ...] = ()
    workers: int = 5
    events: tuple[Event, ...] = ()
    max_lora: int = 0
    kv_blocks: int = 0
    watched: Watched | None = None
    tuning: bool = False
    roles: tuple[str, ...] = ()

    def at_rate(self, rate: float) -> "Workload":
        """The same with so many arrivals a second. ValueError if all requests come at once."""
        if "rate" not in inspect.signature(self.turns).parameters:
            raise ValueError("a workload whose requests come all at once has no rate")
        return replace(self, turns=partial(self.turns, rate=rate))

    def times(self, rate: float) -> "Workload":
        """The same with so many times as many arrivals a second; itself if all requests come at once."""
        given = inspect.signature(self.turns).parameters.get("rate")
        return self if given is None else self.at_rate(given.default * rate)

    def lasting(self, seconds: float) -> "Workload":
        """The same with arrivals for so long; itself if all requests come at once."""
        if "seconds" not in inspect.signature(self.turns).parameters:
            return self
        return replace(self, turns=partial(self.turns, seconds=seconds))

    def there_at_the_start(self) -> list[int]:
        """The workers whose first event is not their joining."""
        firsts: dict[int, Event] = {}
        for event in sorted(self.events, key=lambda event: event.at):
            firsts.setdefault(event.worker, event)
        joining = {number for number, event in firsts.items() if event.what == "join"}
        return [number for number in range(self.workers) if number not in joining]


_SLOW: Final = (1.0, 1.0, 1.0, 1.0, 2.0)
_STEADY: Final = partial(shared, rate=10.0)

WORKLOADS: Final[Mapping[str, Workload]] = {
    "shared, streamed": Workload(shared, tuning=True),
    "shared, not streamed": Workload(shared, streamed=False),
    "shared, Zipf": Workload(partial(shared, skew=1.0)),
    "growing sessions": Workload(sessions, tuning=True),
    "growing sessions, not streamed": Workload(sessions, streamed=False),
    "long tail": Workload(long_tail, tuning=True),
    "long tail, not streamed": Workload(long_tail, streamed=False),
    "60 at once, same": Workload(partial(burst, same=True), tuning=True),
    "60 at once, distinct": Workload(partial(burst, same=False)),
    "300 at once, near ties": Workload(
        partial(burst, count=300, same=False, beginning=100, apart=0.0001),
        kv_usage=(0.05, 0.10, 0.15),
        workers=3,
    ),
    "adapters": Workload(adapted, max_lora=4),
    "fan-out": Workload(fan_out),
    "Mooncake's conversations": Workload(mooncake),
    "llm-d's tenants": Workload(tenants),
    "shared, two pickers": Workload(shared, pickers=2),
    "growing sessions, two pickers": Workload(sessions, pickers=2),
    "long tail, two pickers": Workload(long_tail, pickers=2),
    "shared, one at half speed": Workload(
        partial(shared, rate=12.0), slowness=_SLOW, watched=Watched(worker=4)
    ),
    "growing sessions, one at half speed": Workload(sessions, slowness=_SLOW, watched=Watched(worker=4)),
    "long tail, one at half speed": Workload(
        partial(long_tail, rate=9.0), slowness=_SLOW, watched=Watched(worker=4)
    ),
    "shared, one joins": Workload(
        partial(shared, rate=11.0), events=(Event(15.0, 4, "join"),), watched=Watched(4, 15.0, 25.0)
    ),
    "growing sessions, one joins": Workload(
        sessions, events=(Event(15.0, 4, "join"),), watched=Watched(4, 15.0, 25.0)
    ),
    "shared, one joins, one is killed, one drains": Workload(
        _STEADY,
        workers=6,
        events=(Event(10.0, 5, "join"), Event(20.0, 0, "kill"), Event(30.0, 1, "drain")),
        watched=Watched(5, 10.0, 20.0),
    ),
    "shared, Zipf, small caches": Workload(partial(shared, groups=40, skew=1.0), kv_blocks=2560),
    "shared, one restarts": Workload(shared, events=(Event(15.0, 2, "restart"),)),
    "shared, one stands still for 5 s": Workload(
        _STEADY, events=(Event(15.0, 2, "stop"), Event(20.0, 2, "continue")), watched=Watched(2, 15.0, 20.0)
    ),
}
