"""What a load generator counts, and what its clients have in common."""

from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.process_usage import percentile


@dataclass(slots=True)
class Tally:
    """`latencies` in seconds, one for each that went well; `numbers` makes each request another one."""

    numbers: int = 0
    bad: int = 0
    received: int = 0
    latencies: list[float] = field(default_factory=list)
    said: str = ""
    """About the last one that went wrong."""

    def number(self) -> int:
        """The next one."""
        self.numbers += 1
        return self.numbers

    def fail(self, why: str) -> None:
        """One went wrong."""
        self.bad += 1
        self.said = why

    def summary(self, seconds: float) -> dict[str, float | str]:
        """For the one who asked for this load; latencies in microseconds."""
        done = len(self.latencies)
        return {
            "done": done,
            "bad": self.bad,
            "said": self.said,
            "seconds": seconds,
            "received": self.received / max(1, done),
            "p50": percentile(self.latencies, 0.5) * 1e6 if done else 0.0,
            "p99": percentile(self.latencies, 0.99) * 1e6 if done else 0.0,
        }


class Client(Protocol):
    """One connection that keeps some requests under way until it is `stopping`."""

    stopping: bool

    @property
    def under_way(self) -> int:
        """How many."""

    def receive(self, data: bytes) -> None:
        """What was read, cut anywhere."""

    def next_bytes(self) -> bytes:
        """What is to be written now."""
