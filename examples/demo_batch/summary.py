"""Derives figures and claims from a run: of the batch, and of the interactive users beside it."""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from examples.demo.load import Exchange
from examples.demo.summary import Claim
from examples.demo_batch.dispatcher import custom_id
from examples.demo_batch.monitor import Sample

_REACTION_SECONDS = 6.0
"""Seconds until the dispatcher reacts to new interactive requests: one reading, and its own requests in flight."""
_MAX_SLOWDOWN = 4.0
"""Upper bound of the median time to first token, as a multiple of the median without batch."""
_TOLERANCE = 0.05
"""A load counts as at the line within this share of the line."""


@dataclass(frozen=True, slots=True)
class BatchRun:
    """What was measured. Times are monotonic seconds, `submitted` when the batch was first seen. `capacity` of the pool in
    requests; the batch may use `line` of them. `counted`: the broker's totals at the end, by its metric names.
    """

    started: float
    submitted: float
    answered: float
    capacity: int
    line: float
    requests: int
    answers: Sequence[dict[str, Any]]
    counted: dict[str, int]
    samples: Sequence[Sample]
    exchanges: Sequence[Exchange]

    def first_tokens(self, *, batch: bool) -> list[float]:
        """Seconds to the first token of interactive requests, while the batch ran or before."""
        since, until = (self.submitted, self.answered) if batch else (self.started, self.submitted)
        asked = (e for e in self.exchanges if since <= e.started < until)
        return [e.first_token - e.started for e in asked if e.first_token is not None]

    def samples_over_line(self) -> list[tuple[float, float]]:
        """For each sample over the line: the requests above it, and the part that the dispatcher could not foresee.

        That part is how far interactive requests rose since `_REACTION_SECONDS` before the batch last sent one. A sent
        request cannot be recalled, and on a slow machine it runs longer than a wave of users takes to arrive.
        """
        return [
            (sample.load - self.line, self._rise(number))
            for number, sample in enumerate(self.samples)
            if sample.load > self.line
        ]

    def _rise(self, number: int) -> float:
        now = self.samples[number]
        last_sent = next(s.at for s in self.samples if s.sent == now.sent)
        recent = [s.interactive for s in self.samples[: number + 1] if s.at > last_sent - _REACTION_SECONDS]
        return max(recent) - min(recent)

    @property
    def shares_of_line(self) -> list[float]:
        """The load at each look while requests of the batch waited, as a share of the line."""
        waiting = (s for s in self.samples if s.at >= self.submitted and s.sent < self.requests)
        return [sample.load / self.line for sample in waiting]

    def figures(self) -> Iterator[str]:
        """The measured figures, one sentence each."""
        seconds = self.answered - self.submitted
        yield f"{self.requests} batch requests in {seconds:.1f} s, {self.requests / seconds:.0f} a second"
        if shares_of_line := self.shares_of_line:
            close = sum(abs(load - 1) <= _TOLERANCE for load in shares_of_line) / len(shares_of_line)
            yield (
                f"while requests waited the load was {statistics.mean(shares_of_line):.0%} of the line on average, within "
                f"{_TOLERANCE:.0%} of it at {close:.0%} of {len(shares_of_line)} looks, {max(shares_of_line):.0%} at most"
            )

    def claims(self) -> Iterator[Claim]:
        """All of them must hold for exit code 0."""
        yield self._answered_once()
        yield self._counted_once()
        over = self.samples_over_line()
        most = max((above for above, _ in over), default=0.0)
        yield Claim(
            f"the batch kept its distance: {len(over) / max(1, len(self.samples)):.0%} of {len(self.samples)} looks saw more "
            f"than {self.line:g} of {self.capacity} places taken, at most {most:g} more, and never more than {_TOLERANCE:.0%} "
            "beyond the interactive requests that had come meanwhile",
            all(above <= rise + _TOLERANCE * self.line for above, rise in over),
        )
        fullest = max(sample.load for sample in self.samples)
        yield Claim(
            f"the pool was never full: {fullest} of {self.capacity} places at most", fullest < self.capacity
        )
        failed = Counter(e.failure for e in self.exchanges if e.failure)
        yield Claim(
            f"no interactive request failed: {failed.total()} of {len(self.exchanges)} did"
            + "".join(f"; {count} x {cause}" for cause, count in failed.most_common(2)),
            not failed,
        )
        yield self._first_token_beside()

    def _answered_once(self) -> Claim:
        wanted = {custom_id(number) for number in range(self.requests)}
        found = Counter(answer["custom_id"] for answer in self.answers)
        good = sum((answer["response"] or {}).get("status_code") == 200 for answer in self.answers)
        twice = sum(count > 1 for count in found.values())
        return Claim(
            f"every batch request was answered, and once: {good} answers to {self.requests} requests, "
            f"{len(wanted - found.keys())} without, {twice} with two",
            found == Counter(wanted) and good == self.requests,
        )

    def _counted_once(self) -> Claim:
        names = ("submitted", "succeeded", "failed", "expired", "cancelled", "dropped", "backlog")
        return Claim(
            "the broker counted the same: " + ", ".join(f"{name} {self.counted[name]}" for name in names),
            self.counted["submitted"] == self.counted["succeeded"] == self.requests
            and not any(self.counted[name] for name in names[2:]),
        )

    def _first_token_beside(self) -> Claim:
        alone, beside = self.first_tokens(batch=False), self.first_tokens(batch=True)
        if not alone or not beside:
            return Claim("interactive users were there with and without batch", False)
        ratio = statistics.median(beside) / statistics.median(alone)
        return Claim(
            f"interactive users waited less than {_MAX_SLOWDOWN:g} x as long for their first token: median {ratio:.1f} x, "
            f"{_ms(statistics.median(alone))} without batch and {_ms(statistics.median(beside))} with it; longest "
            f"{_ms(max(alone))} and {_ms(max(beside))}",
            ratio < _MAX_SLOWDOWN,
        )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"
