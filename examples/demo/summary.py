"""Derives the demo's claims from what was measured, and whether each held."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from examples.demo.load import Exchange
from examples.demo.scenario import ScenarioEvent

_NOTICE_LIMIT = 1.0
_MIN_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Claim:
    """`sentence` states the claim with its measured figure."""

    sentence: str
    passed: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """`exchanges`: all that ended."""

    exchanges: list[Exchange]
    events: list[ScenarioEvent]

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
