"""Why something is, or is not, an instance: what `explain` answers and `wait_for_instances` says when it gives up."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from discovery.errors import MetadataUnavailableError, WorkerUnreachableError
from discovery.instance import METADATA_PATH, Instance
from discovery.same_address import sharing
from discovery.source import ComponentKey
from discovery.watch import WatchHealth, WatchState
from runtime.command_line import program


@dataclass(frozen=True, slots=True)
class ExplainedCandidate:
    """`reason` None: it is an instance and nothing is wrong. A reachable problem of an instance is a reason too."""

    id: str
    instance: Instance | None
    is_instance: bool
    reason: str | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Every candidate of one component, each with one reason; as text, one line each."""

    key: ComponentKey
    health: WatchHealth
    candidates: tuple[ExplainedCandidate, ...]
    elsewhere: tuple[ComponentKey, ...] = ()
    """Where something is registered, when nothing is here: most often a name is misspelt."""

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def remarks(self) -> Iterator[str]:
        """What is to be said of the whole, one sentence each: a degraded source, nothing here."""
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


def with_neighbours(candidates: Iterable[ExplainedCandidate]) -> Iterator[ExplainedCandidate]:
    """The candidates; those instances that are one server to whoever asks say so, beside what else is wrong."""
    candidates = list(candidates)
    others = sharing(c.instance for c in candidates if c.is_instance and c.instance is not None)
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


def in_full(error: MetadataUnavailableError, scheme: str) -> str:
    """Why a worker's metadata cannot be had, and what to do, in one line; `scheme` of the URL that was asked."""
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
        return "its process may have stopped, or something on the way drops what is sent to it"
    if isinstance(error, WorkerUnreachableError) or not error.connected:
        return ""
    return f"{program('discovery')} check {url} says what it should answer"
