"""What the demo claims, and whether it held."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from examples.demo.load import Exchange
from examples.demo.story import Happening

_KNOWN_WITHIN = 1.0
_LEAST_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence and whether it is true."""

    sentence: str
    held: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """`exchanges` are all that ended; `killed` is the worker that got SIGKILL and the moment, None if none did."""

    exchanges: list[Exchange]
    happenings: list[Happening]

    @property
    def killing(self) -> Happening | None:
        return next((h for h in self.happenings if "SIGKILL" in h.what), None)

    def shares(self) -> dict[str, float]:
        """Of the answered requests, per worker, 0..1."""
        served = Counter(e.worker for e in self.exchanges if e.worker and not e.failure)
        return {worker: count / max(1, served.total()) for worker, count in sorted(served.items())}

    def failures(self) -> Counter[str]:
        """Causes and how often."""
        return Counter(e.failure for e in self.exchanges if e.failure)

    def unexplained(self) -> list[Exchange]:
        """Failures that the killed worker does not explain: not under way when it died and was not known to be dead."""
        return [e for e in self.exchanges if e.failure and not self._explained(e)]

    def claims(self) -> Iterator[Claim]:
        """Everything that must hold for exit code 0."""
        for happening in self.happenings:
            known = happening.known_after
            yield Claim(
                f"the picker knows within {_KNOWN_WITHIN:g} s that {happening.worker} {happening.what}: "
                f"{'never' if known is None else f'{known * 1e3:.0f} ms'}",
                known is not None and known < _KNOWN_WITHIN,
            )
        yield Claim(f"all five things happened: {len(self.happenings)}", len(self.happenings) == 5)
        unexplained = self.unexplained()
        yield Claim(
            f"no request failed but those that were at the killed worker: {len(unexplained)} others",
            not unexplained,
        )
        share = self.shares().get("worker-4", 0.0)
        yield Claim(f"the worker that joined serves its share: {share:.0%}", share > _LEAST_SHARE)

    def _explained(self, exchange: Exchange) -> bool:
        kill = self.killing
        if kill is None or kill.known_after is None:
            return False
        under_way = exchange.started <= kill.at + kill.known_after and (exchange.ended or kill.at) >= kill.at
        return under_way and exchange.worker in (None, kill.worker)
