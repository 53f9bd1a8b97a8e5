"""The tables of the overload, and which of its claims hold (pure)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.overload.client import Fate
from benchmarks.overload.load import INTERACTIVE, SOURCES, Source
from benchmarks.process_usage import percentile

_SLOWER: Final = 0.20
"""By how much an interactive request may wait longer for its first token than in an idle pool, at the median."""
_UNEVEN: Final = 0.05
"""By how much a tenant's share may differ from half."""
_FULL_AFTER: Final = 4.0
"""Seconds after which every tenant of an overload has requests waiting."""
_HEADER: Final = (
    "| | asked | answered | TTFT p50 | p90 | p99 | 429, with `Retry-After` | 503 | no answer | share of its priority |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True, slots=True)
class OverloadOutcome:
    """One run with one picker. `unloaded`: interactive users alone. `outstanding`: what its gauges, and those of the workers,
    still count after the last answer. `cores`: what the picker used, on average; `megabytes`: what it holds at the end.
    """

    picker: str
    unloaded: Sequence[Fate]
    fates: Sequence[Fate]
    outstanding: Mapping[str, float]
    cores: float
    megabytes: float

    def of(self, source: Source) -> list[Fate]:
        return [one for one in self.fates if one.source == source]

    @property
    def slower(self) -> float:
        """How much longer an interactive user waits for the first token than in an idle pool, as a share; the median."""
        loaded = [one for one in self.fates if one.source in INTERACTIVE]
        return _ttft(loaded, 0.5) / _ttft(self.unloaded, 0.5) - 1.0

    def share(self, source: Source) -> float:
        """Of the answers of its priority that began while every tenant had requests waiting."""
        ends = max(one.at for one in self.fates)
        begun = [
            one.source
            for one in _answered(self.fates)
            if one.source.objective == source.objective and _FULL_AFTER < one.first < ends
        ]
        return begun.count(source) / max(1, len(begun))


def table(outcome: OverloadOutcome) -> list[str]:
    return [
        "",
        f"### {outcome.picker}",
        "",
        _HEADER,
        *(_row(outcome, source) for source in SOURCES),
        "",
        *_lines(outcome),
    ]


def broken(outcome: OverloadOutcome) -> list[str]:
    """The claims that do not hold."""
    found = [f"interactive users wait {outcome.slower:.0%} longer"] if outcome.slower > _SLOWER else []
    for source in SOURCES:
        if source.objective == "standard" and abs(outcome.share(source) / 0.5 - 1.0) > _UNEVEN:
            found.append(f"{source.name} got {outcome.share(source):.1%} of the answers of its priority")
    return found + wrong(outcome)


def wrong(outcome: OverloadOutcome) -> list[str]:
    """The claims that do not hold and that no slow machine can break."""
    refused = [one for one in outcome.fates if one.status not in (200, 0)]
    found = [
        f"{count} requests: {status or cause}"
        for (status, cause), count in sorted(Counter(_kind(one) for one in outcome.fates).items())
        if status not in (200, 429)
    ]
    if without := sum(not one.retry_after for one in refused):
        found.append(f"{without} of {len(refused)} refusals have no Retry-After")
    if failed := sum(one.status != 200 for one in outcome.fates if one.source in INTERACTIVE):
        found.append(f"{failed} interactive requests failed")
    return found + [f"{name} is {value:g} at the end" for name, value in outcome.outstanding.items()]


def _row(outcome: OverloadOutcome, source: Source) -> str:
    fates = outcome.of(source)
    answered = _answered(fates)
    seconds = " | ".join(f"{_ttft(answered, share):.2f} s" if answered else "-" for share in (0.5, 0.9, 0.99))
    refused = [one for one in fates if one.status == 429]
    told = sum(bool(one.retry_after) for one in refused)
    unavailable, none = (sum(one.status == status for one in fates) for status in (503, 0))
    counts = f"{len(fates)} | {len(answered)} | {seconds} | {len(refused)}, {told} | {unavailable} | {none}"
    return f"| {source.name} | {counts} | {outcome.share(source):.1%} |"


def _lines(outcome: OverloadOutcome) -> list[str]:
    late = percentile([one.late for one in outcome.fates], 0.99)
    unloaded = " / ".join(f"{_ttft(outcome.unloaded, share):.2f}" for share in (0.5, 0.9, 0.99))
    causes = Counter(one.cause for one in outcome.fates if one.status != 200)
    said = ", ".join(f"{count} {cause or 'no reason given'}" for cause, count in causes.most_common())
    return [
        f"Interactive users alone: {unloaded} s (p50 / p90 / p99); in the overload {outcome.slower:+.0%} at the median.",
        f"Refused: {said or 'none'}.",
        f"The picker: {outcome.cores:.2f} cores, {outcome.megabytes:.0f} MB. Requests left {late * 1e3:.0f} ms late (p99).",
        f"Does not hold: {'; '.join(broken(outcome)) or 'nothing'}.",
    ]


def _answered(fates: Sequence[Fate]) -> list[Fate]:
    return [one for one in fates if one.status == 200]


def _ttft(fates: Sequence[Fate], share: float) -> float:
    return percentile([one.ttft for one in _answered(fates)] or [float("inf")], share)


def _kind(one: Fate) -> tuple[int, str]:
    return one.status, one.cause
