"""Explains why candidates are, or are not, instances: for `explain`, and for the error of `wait_for_instances`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from adsum.command_line import program
from discovery.errors import MetadataUnavailableError, WorkerUnreachableError
from discovery.instance import METADATA_PATH, Instance
from discovery.same_address import find_same_address
from discovery.source import ComponentKey
from discovery.watch import WatchHealth, WatchState


@dataclass(frozen=True, slots=True)
class ExplainedCandidate:
    """`reason`: why it is not an instance, or what is wrong with an instance; None: an instance without problems."""

    id: str
    instance: Instance | None
    is_instance: bool
    reason: str | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Every candidate of one component; as text, one line each."""

    key: ComponentKey
    health: WatchHealth
    candidates: tuple[ExplainedCandidate, ...]
    elsewhere: tuple[ComponentKey, ...] = ()
    """Components with registrations, given if this one has none: most often a name is misspelt."""

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def remarks(self) -> Iterator[str]:
        """Sentences about the component: a degraded source, no registrations."""
        if self.health.state is WatchState.DEGRADED:
            yield f"the source of truth is degraded: {self.health.reason}"
        if not self.candidates:
            others = ", ".join(map(str, self.elsewhere))
            yield f"nothing is registered as {self.key}{f'; there is {others}' if others else ''}"

    def _lines(self) -> Iterator[str]:
        yield from self.remarks()
        for candidate in self.candidates:
            verdict = "is an instance" if candidate.is_instance else "is not an instance"
            yield f"{candidate.id} {verdict}{f': {candidate.reason}' if candidate.reason else ''}"


def is_faultless(explanation: Explanation) -> bool:
    """Whether there are candidates, and nothing is wrong with any."""
    return bool(explanation.candidates) and not any(candidate.reason for candidate in explanation.candidates)


def with_shared_addresses(candidates: Iterable[ExplainedCandidate]) -> Iterator[ExplainedCandidate]:
    """The candidates, with a reason added to instances that share their address."""
    candidates = list(candidates)
    others = find_same_address(c.instance for c in candidates if c.is_instance and c.instance is not None)
    for candidate in candidates:
        if candidate.instance is None or not candidate.is_instance or candidate.id not in others:
            yield candidate
            continue
        beside = (
            f"serves the same address as {', '.join(others[candidate.id])} ({candidate.instance.authority})"
        )
        yield replace(
            candidate, reason=f"{candidate.reason}; it {beside}" if candidate.reason else f"it {beside}"
        )


def describe_failure(error: MetadataUnavailableError, scheme: str) -> str:
    """The request, why it failed and what to do, in one line; `scheme`: `http` or `https`."""
    remedy = _remedy(error, f"{scheme}://{error.authority}")
    return f"GET {scheme}://{error.authority}{METADATA_PATH}: {error.reason}" + (
        f"; {remedy}" if remedy else ""
    )


def _remedy(error: MetadataUnavailableError, url: str) -> str:
    port = error.authority.rpartition(":")[2]
    if isinstance(error.__cause__, ConnectionRefusedError):
        return (
            f"nothing listens on port {port}: start the server there, or name the port that it listens on "
            "(a worker: registry.open(..., port=...); a list: host:port)"
        )
    if isinstance(error, WorkerUnreachableError) and error.silent:
        return "its process may have stopped, or a firewall on the way drops the packets"
    if isinstance(error, WorkerUnreachableError) or not error.connected:
        return ""
    return f"{program('discovery')} check {url} says what it should answer"
