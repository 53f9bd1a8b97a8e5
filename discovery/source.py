"""What a backend implements: a Source reports whole Snapshots; SourceDiscovery turns them into everything else."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, Protocol, TypeGuard

from discovery.copy_on_write import FrozenDict
from discovery.instance import (
    Instance,
    InstanceStatus,
    MetadataReader,
    check_component,
    check_namespace,
)

SCHEMES: Final = (
    "file:///path, static://host:port,..., static:///file.yaml, kubernetes://[namespace], memory://name"
)
"""The URLs of what is built in."""


class ComponentKey(NamedTuple):
    """What is watched: one component of one namespace."""

    namespace: str
    component: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.component}"


def component_key(namespace: str, component: str) -> ComponentKey:
    """The key, checked; ValueError names the rule that is broken."""
    return ComponentKey(check_namespace(namespace), check_component(component))


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that is, or could be, an instance. `reason` says why it is none; `instance` is None when even its
    record cannot be read."""

    id: str
    instance: Instance | None = None
    reason: str | None = None


class Snapshot:
    """Every candidate of one component that a source knows at one moment. Never a difference."""

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self._candidates = tuple(candidates)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Snapshot) and self.candidates == other.candidates

    def __hash__(self) -> int:
        return hash(self.candidates)

    def __repr__(self) -> str:
        return f"Snapshot({self.candidates!r})"

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        return self._candidates

    @property
    def others(self) -> tuple[Candidate, ...]:
        """The candidates of which no sound record is had; each has a reason."""
        return tuple(candidate for candidate in self.candidates if candidate.instance is None)

    @cached_property
    def known(self) -> Mapping[str, Instance]:
        """The candidates whose record is sound, by id; of one id the READY incarnation, else the last one named."""
        known: dict[str, Instance] = {}
        for instance in (candidate.instance for candidate in self.candidates):
            if instance is not None and not is_ready(known.get(instance.id)):
                known[instance.id] = instance
        return known

    @cached_property
    def instances(self) -> Mapping[str, Instance]:
        """The READY ones, by id: the truth that readers are told."""
        return {i.id: i for i in self.known.values() if is_ready(i)}


class PersistentSnapshot(Snapshot):
    """As whole as any; it shares with the one before what did not change, and only the rest is compared. For sources
    of thousands. `others`: the candidates that are not in `known`. All instances are made with `Report.reader`.
    """

    def __init__(
        self, known: FrozenDict[Instance], instances: FrozenDict[Instance], others: Iterable[Candidate]
    ) -> None:
        super().__init__(others)
        self._known = known
        self._instances = instances

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        return (*(Candidate(i.id, i) for i in self._known.values()), *self._candidates)

    @property
    def others(self) -> tuple[Candidate, ...]:
        return self._candidates

    @property
    def known(self) -> FrozenDict[Instance]:
        return self._known

    @property
    def instances(self) -> FrozenDict[Instance]:
        return self._instances


def is_ready(instance: Instance | None) -> TypeGuard[Instance]:
    return instance is not None and instance.status is InstanceStatus.READY


class Report(Protocol):
    """How a source speaks. Each snapshot replaces the last one whole."""

    @property
    def reader(self) -> MetadataReader:
        """What `Instance.reader` is to be; a source that reports Snapshots need not care."""

    def __call__(self, snapshot: Snapshot) -> None: ...

    def degraded(self, reason: str) -> None:
        """Contact to the truth is lost: the last snapshot goes on serving. The next snapshot ends it."""


class Source(Protocol):
    """A source of truth. It retries for ever by itself; what it raises is final and reaches every reader.

    Its instances registered themselves, and are told in a watch with metadata once their documents are in. One whose
    instances are listed or selected by somebody else says `needs_documents = False`: they are told whatever they answer.
    """

    async def run(self, key: ComponentKey, report: Report) -> None:
        """Report the set of `key`, at once and whenever it changes, until cancelled."""

    def suspect(self, key: ComponentKey, instance_id: str) -> None:
        """A hint that this instance just stopped answering: look now rather than later."""

    async def explain(self, key: ComponentKey) -> list[Candidate]:
        """What a closer look finds beside the candidates of the snapshot, or says more about them; [] if nothing."""

    async def components(self) -> list[ComponentKey]:
        """Where something is registered, for people who look in the wrong place; empty where that cannot be known."""

    async def aclose(self) -> None:
        """Give back what `run` does not own."""


def needs_documents(source: Source) -> bool:
    """What it says of itself; it says nothing where its instances registered themselves."""
    return bool(getattr(source, "needs_documents", True))
