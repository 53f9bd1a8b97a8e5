"""The counters of the load generator, and the protocol of its clients."""

from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.process_usage import percentile


@dataclass(slots=True)
class Tally:
    """`latencies` in seconds, one per successful request; `numbers` makes each request distinct."""

    numbers: int = 0
    bad: int = 0
    received: int = 0
    latencies: list[float] = field(default_factory=list)
    said: str = ""
    """About the last one that went wrong."""

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def fail(self, why: str) -> None:
        self.bad += 1
        self.said = why

    def summary(self, seconds: float) -> dict[str, float | str]:
        """Returns the summary as JSON fields; latencies in microseconds."""
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
    """One connection that keeps some requests under way until it is `stopping`, or `leaving`: another one is to go on."""

    stopping: bool
    leaving: bool

    @property
    def under_way(self) -> int:
        """How many requests have no answer yet."""

    def receive(self, data: bytes) -> None:
        """`data` may end anywhere in a message."""

    def next_bytes(self) -> bytes:
        """Returns the bytes to write now."""
