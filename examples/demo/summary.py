"""Derives the demo's claims from what was measured, and whether each held."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from examples.demo.load import Exchange
from examples.demo.scenario import ScenarioEvent

_NOTICE_LIMIT = 1.0
_MIN_SHARE = 0.05
_LEAST_HELD = 0.9
"""A worker that is new to a prompt computes it once."""


@dataclass(frozen=True, slots=True)
class Claim:
    """`sentence` states the claim with its measured figure."""

    sentence: str
    passed: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """`exchanges`: all that ended. `caches`: what the picker's `/status` has of KV events; empty: no worker publishes any."""

    exchanges: list[Exchange]
    events: list[ScenarioEvent]
    caches: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    @property
    def killing(self) -> ScenarioEvent | None:
        return next((h for h in self.events if "SIGKILL" in h.what), None)

    def shares(self) -> dict[str, float]:
        """Each worker's share of the answered requests, 0 to 1."""
        served = Counter(e.worker for e in self.exchanges if e.worker and not e.failure)
        return {worker: count / max(1, served.total()) for worker, count in sorted(served.items())}

    def failures(self) -> Counter[str]:
        """The number of failed requests for each cause."""
        return Counter(e.failure for e in self.exchanges if e.failure)

    def unexplained(self) -> list[Exchange]:
        """Failures other than those of answers that the killed worker was streaming."""
        return [e for e in self.exchanges if e.failure and not self._is_explained(e)]

    def claims(self) -> Iterator[Claim]:
        """All of them must hold for exit code 0."""
        for event in self.events:
            yield noticed(event)
        yield Claim(f"all five things happened: {len(self.events)}", len(self.events) == 5)
        unexplained = self.unexplained()
        yield Claim(
            f"no request failed but those that the killed worker was streaming: {len(unexplained)} others",
            not unexplained,
        )
        share = self.shares().get("worker-4", 0.0)
        yield Claim(f"the worker that joined serves its share: {share:.0%}", share > _MIN_SHARE)
        if self.caches:
            yield from self._cache_claims()

    def _cache_claims(self) -> Iterator[Claim]:
        """What answers say that they found in caches, and whether the picker knew it."""
        answered = dict[str, float]()
        for one in sorted(self.exchanges, key=lambda one: one.ended or math.inf):
            if one.ended is not None and not one.failure:
                answered.setdefault(one.about, one.ended)
        asked = [
            one
            for one in self.exchanges
            if one.cached is not None and one.started > answered.get(one.about, math.inf)
        ]
        held = sum(2 * (one.cached or 0) >= (one.prompt or 0) for one in asked)
        yield Claim(
            f"{held} of {len(asked)} prompts whose beginning some cache held were sent to a worker that really holds it",
            bool(asked) and held >= _LEAST_HELD * len(asked),
        )
        truths, known = self.caches["confidence"], self.caches["workers"]
        exact = [name for name, of in known.items() if all(one["knowledge"] == "exact" for one in of)]
        wrong = [name for name, one in truths.items() if not one["believed"]]
        checks = sum(one["checks"] for one in truths.values())
        yield Claim(
            f"without configuration, the picker knows from their events what {len(exact)} of {len(known)} caches hold, and "
            f"in {checks} comparisons no worker was found to hold something else",
            bool(exact) and len(exact) == len(known) and bool(checks) and not wrong,
        )

    def _is_explained(self, exchange: Exchange) -> bool:
        kill = self.killing
        if kill is None:
            return False
        was_under_way = exchange.started <= kill.at <= (exchange.ended or kill.at)
        return exchange.streamed and was_under_way and exchange.worker == kill.worker


def noticed(event: ScenarioEvent) -> Claim:
    """That the picker knew of it in time."""
    known = event.seconds_to_notice
    return Claim(
        f"the picker knows within {_NOTICE_LIMIT:g} s that {event.worker} {event.what}: "
        f"{'never' if known is None else f'{known * 1e3:.0f} ms'}",
        known is not None and known < _NOTICE_LIMIT,
    )
