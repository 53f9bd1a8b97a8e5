"""The page of a component, as JSON: each candidate with its state and the reason for it (pure)."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from discovery.instance import Instance, InstanceStatus
from discovery.source import ComponentKey
from discovery.watch import WatchHealth, WatchState
from discovery.web.membership_log import LONGEST_TEXT

MOST_CANDIDATES: Final = 5000
"""Candidates in one document; the others are counted."""
MOST_LABELS: Final = 20


class CandidateState(StrEnum):
    """The state of a candidate to a watcher with metadata."""

    READY = "ready"
    UNREACHABLE = "unreachable"
    """An instance that does not answer now, or a listed worker that has never answered."""
    PENDING = "pending"
    """Ready by its own word, but its metadata is not in."""
    NOT_READY = "not_ready"
    DRAINING = "draining"
    ABSENT = "absent"
    """Known by its name only: it died without leaving, its record is not valid, or nothing lists it."""


_ORDER: Final = {
    state: number
    for number, state in enumerate(
        (
            CandidateState.UNREACHABLE,
            CandidateState.PENDING,
            CandidateState.ABSENT,
            CandidateState.NOT_READY,
            CandidateState.DRAINING,
            CandidateState.READY,
        )
    )
}
"""The states that somebody should look at come first."""


@dataclass(frozen=True, slots=True)
class ComponentState:
    """All that is known of one component. Times are Unix seconds; mappings are by instance id.

    `known`: the candidates with a valid record. `published`: those of them that are instances. `reasons`: why one is no
    instance, or what is wrong with one. `models`: what each serves, by its metadata. `since`: when its state began, as
    far as this process saw it. `listed`: they are named from outside, and did not register themselves.
    """

    key: ComponentKey
    source: str
    health: WatchHealth
    health_since: float
    known: Mapping[str, Instance] = field(default_factory=dict)
    published: Mapping[str, Instance] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    since: Mapping[str, float] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    listed: bool = False


class _Facts(NamedTuple):
    """The fields of one row."""

    known: Instance | None
    published: Instance | None
    reason: str | None
    since: float | None
    model: str | None
    listed: bool

    @property
    def state(self) -> CandidateState:
        return candidate_state(self.known, self.published, listed=self.listed)


def candidate_state(known: Instance | None, published: Instance | None, *, listed: bool) -> CandidateState:
    """`known`: as the source has it; None: it has no valid record. `published`: as readers have it. `listed`: it did not
    register itself, so that it is in the list says nothing of the worker.
    """
    if published is not None:
        return CandidateState.READY if published.reachable else CandidateState.UNREACHABLE
    if known is None:
        return CandidateState.ABSENT
    if known.status is InstanceStatus.DRAINING:
        return CandidateState.DRAINING
    if known.status is not InstanceStatus.READY:
        return CandidateState.NOT_READY
    return CandidateState.UNREACHABLE if listed else CandidateState.PENDING


class CandidateRows:
    """The candidates as JSON. A row is made again only when something about its candidate differs: most stay as they are."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[_Facts, dict[str, Any]]] = {}

    def of(self, state: ComponentState) -> list[dict[str, Any]]:
        """Not to be changed: the next call returns the same rows."""
        before, self._kept = self._kept, {}
        for id in _all_ids(state):
            facts = _facts(id, state)
            kept = before.get(id)
            self._kept[id] = kept if kept is not None and kept[0] == facts else (facts, _row(id, facts))
        return [row for _, row in self._kept.values()]


def component_document(state: ComponentState, kept: CandidateRows | None = None) -> dict[str, Any]:
    """The page as JSON: those that are no instances or do not answer first, then by id. `kept`: of earlier documents."""
    rows = (kept or CandidateRows()).of(state)
    rows.sort(key=lambda row: (_ORDER[row["state"]], row["id"]))
    counts = Counter(row["state"] for row in rows)
    return {
        "namespace": state.key.namespace,
        "component": state.key.component,
        "source": {
            "url": _cut(state.source),
            "state": state.health.state,
            "since": state.health_since,
            "reason": _cut(state.health.reason) if state.health.state is WatchState.DEGRADED else None,
        },
        "counts": {str(name): counts[name] for name in CandidateState},
        "candidates": rows[:MOST_CANDIDATES],
        "left_off": max(0, len(rows) - MOST_CANDIDATES),
        "remarks": [_cut(remark) for remark in state.remarks],
    }


def model_name(metadata: Mapping[str, Any]) -> str | None:
    """The model that a document names; None if it names none."""
    model = metadata.get("model")
    name = model.get("name") if isinstance(model, Mapping) else model
    return name[:LONGEST_TEXT] if isinstance(name, str) and name else None


def _all_ids(state: ComponentState) -> Iterable[str]:
    ids = dict.fromkeys(state.known)
    ids.update(dict.fromkeys(state.published))
    ids.update((id, None) for id in state.reasons if id not in ids)
    return ids


def _facts(id: str, state: ComponentState) -> _Facts:
    return _Facts(
        state.known.get(id),
        state.published.get(id),
        state.reasons.get(id),
        state.since.get(id),
        state.models.get(id),
        state.listed,
    )


def _row(id: str, facts: _Facts) -> dict[str, Any]:
    instance = facts.published or facts.known
    row: dict[str, Any] = {
        "id": id,
        "state": facts.state,
        "reason": _cut(facts.reason),
        "since": facts.since,
        "model": facts.model,
    }
    if instance is not None:
        row |= {
            "url": instance.url,
            "address": instance.authority,
            "incarnation": _cut(instance.incarnation),
            "revision": _cut(instance.revision),
            "zone": _cut(instance.zone),
            "node": _cut(instance.node),
            "labels": {_cut(k): _cut(v) for k, v in list(instance.labels.items())[:MOST_LABELS]},
        }
    return row


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
