"""Explains why candidates are, or are not, instances: for `explain`, for the error of `wait_for_instances`, for pages."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from discovery.errors import MetadataUnavailableError
from discovery.instance import Instance, InstanceStatus, find_same_address
from discovery.metadata.client import describe_failure
from discovery.metadata.document import read_metadata
from discovery.metadata.known_keys import ignored_keys
from discovery.shared_watch import SharedWatch
from discovery.source import Candidate, ComponentKey
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


def missing(shared: SharedWatch) -> dict[str, str]:
    """As `SourceDiscovery.missing`: from what is known, without I/O."""
    reasons = {c.id: c.reason for c in shared.report.snapshot.others if c.reason is not None}
    if shared.document_follower is not None:
        reasons |= shared.document_follower.problems()
    published = shared.published
    return {i: reason for i, reason in reasons.items() if i not in published}


def excluded(shared: SharedWatch) -> dict[str, InstanceStatus | None]:
    """As `SourceDiscovery.excluded`: from what is known, without I/O."""
    snapshot, published = shared.report.snapshot, shared.published
    found: dict[str, InstanceStatus | None] = dict.fromkeys(c.id for c in snapshot.others)
    found |= {i: instance.status for i, instance in snapshot.known.items()}
    return {i: status for i, status in found.items() if i not in published}


async def explain_candidate(shared: SharedWatch, candidate: Candidate) -> ExplainedCandidate:
    """Asks the worker where the snapshot gives no reason."""
    instance, reason = candidate.instance, candidate.reason
    member = shared.membership.instances.get(candidate.id)
    is_instance = member is not None and instance is not None and member.incarnation == instance.incarnation
    if is_instance and member is not None:
        reason = await _metadata_problem(shared, member) or reason
    elif reason is None and instance is not None:
        reason = f"its status is {instance.status}"
        if instance.status is InstanceStatus.NOT_READY:
            reason += await _not_ready_reason(shared, instance)
    return ExplainedCandidate(candidate.id, instance, is_instance, reason)


def merge_explained(candidates: Iterable[Candidate], explained: Iterable[Candidate]) -> list[Candidate]:
    """The snapshot's candidates and those that only `Source.explain` found, whose reasons fill in missing ones."""
    closer = {candidate.id: candidate for candidate in explained}
    known = [
        replace(c, reason=closer[c.id].reason) if c.reason is None and c.id in closer else c
        for c in candidates
    ]
    ids = {candidate.id for candidate in known}
    return known + [candidate for candidate in closer.values() if candidate.id not in ids]


async def _metadata_problem(shared: SharedWatch, instance: Instance) -> str | None:
    """Why this member's metadata is unavailable, or which of its keys are ignored: from the follower if it knows, else by a
    GET."""
    unavailable = "its metadata is unavailable: "
    follower = shared.follower
    try:
        if follower is not None and follower.follows(instance.id):
            if (problem := follower.problem(instance.id)) is not None:
                return unavailable + problem
            document = await follower.read(instance)
        else:
            document = read_metadata(instance, (await shared.client.fetch(instance)).document)
    except MetadataUnavailableError as error:
        return unavailable + describe_failure(error, shared.client.scheme)
    ignored = "; ".join(ignored_keys(document))
    return f"in its metadata {ignored}" if ignored else None


async def _not_ready_reason(shared: SharedWatch, instance: Instance) -> str:
    """Its own reason in `/health`, or that nothing answers at its address."""
    try:
        reason = await shared.client.read_health(instance)
    except MetadataUnavailableError as error:
        return f", and nothing answers at {instance.authority}: {error.reason}"
    return "; " + (reason or 'it has not called set_ready("ready")')
