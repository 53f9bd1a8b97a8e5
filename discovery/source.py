"""The `Source` Protocol that a backend implements, and the `Snapshot`s of `Candidate`s that it reports."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, Protocol, TypeGuard

from discovery.copy_on_write import FrozenDict
from discovery.errors import DiscoveryError
from discovery.instance import Instance, InstanceStatus, MetadataReader, check_component, check_namespace


class BuiltInSource(NamedTuple):
    """Describes a scheme. A `module:function` is imported by `discovery.opening.import_backend`, for a URL of the scheme only."""

    form: str
    """The form of its URLs."""
    opener: str
    """The `module:function` of its `OpenSource`."""
    membership: str = ""
    """The `module:function` that makes the registry of a URL and an `Announcement`; empty if workers cannot register there."""


SCHEMES: Final[Mapping[str, BuiltInSource]] = {
    "file": BuiltInSource(
        "file:///path",
        "discovery.filesystem.source:open_filesystem",
        "registry.filesystem.membership:open_filesystem_registry",
    ),
    "static": BuiltInSource(
        "static://host:port,..., static:///file.yaml", "discovery.static.source:open_static"
    ),
    "kubernetes": BuiltInSource(
        "kubernetes://[namespace][?pool=NAME]",
        "discovery.kubernetes.opening:open_kubernetes",
        "registry.kubernetes.membership:open_pod",
    ),
    "etcd": BuiltInSource(
        "etcd://host:2379/prefix",
        "discovery.etcd.source:open_etcd_source",
        "registry.etcd.membership:open_etcd_registry",
    ),
    "memory": BuiltInSource(
        "memory://name", "discovery.memory:open_memory", "registry.memory:open_memory_registry"
    ),
}
"""The built-in sources. A new one is an entry here; a library that it needs is in the extra of its name."""
SOURCE_URLS: Final = ", ".join(source.form for source in SCHEMES.values())
"""For help and error messages."""


class ComponentKey(NamedTuple):
    """One component of one namespace."""

    namespace: str
    component: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.component}"


def component_key(namespace: str, component: str) -> ComponentKey:
    """Raises ValueError with the rule that a name breaks."""
    return ComponentKey(check_namespace(namespace), check_component(component))


@dataclass(frozen=True, slots=True)
class Candidate:
    """An instance, or what could be one. `reason`: why it is none. `instance` is None if its record is not valid."""

    id: str
    instance: Instance | None = None
    reason: str | None = None


class Snapshot:
    """Every candidate of one component that a source knows at one moment. Never a difference: after a lost connection a
    source cannot know what it missed.
    """

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
        """The candidates without a valid record; each has a reason."""
        return tuple(candidate for candidate in self.candidates if candidate.instance is None)

    @cached_property
    def known(self) -> Mapping[str, Instance]:
        """The instances of all candidates by id. The READY one of several incarnations counts, else the last listed."""
        known: dict[str, Instance] = {}
        for instance in (candidate.instance for candidate in self.candidates):
            # while a worker is replaced, both lives can be listed: the draining one must not hide the ready one
            if instance is not None and not is_ready(known.get(instance.id)):
                known[instance.id] = instance
        return known

    @cached_property
    def instances(self) -> Mapping[str, Instance]:
        """The READY ones, by id: what watches report."""
        return {i.id: i for i in self.known.values() if is_ready(i)}


class PersistentSnapshot(Snapshot):
    """A snapshot that shares its unchanged parts with the one before: only the rest is compared. For thousands of
    instances. `others`: the candidates that are not in `known`. Each instance must have `Report.reader`.
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
    """Takes each snapshot from `Source.run`; it replaces the one before."""

    @property
    def reader(self) -> MetadataReader:
        """For `Instance.reader`; only a source that reports `PersistentSnapshot`s must set it."""

    def __call__(self, snapshot: Snapshot) -> None: ...

    def degraded(self, reason: str) -> None:
        """The source of truth is out of reach: the last snapshot stays in use. The next snapshot ends this."""


class Source(Protocol):
    """A source of truth. It retries for ever by itself; an error that it raises is final and reaches every reader.

    A source inherits from this class and has at least `run`.
    """

    needs_documents: bool = True
    """Its instances registered themselves: a watch with metadata adds them once their documents have arrived. False: they
    are listed or selected by others, and are added whatever they answer."""

    @abstractmethod
    async def run(self, key: ComponentKey, report: Report) -> None:
        """Report the snapshot of `key`, at once and after each change, until cancelled."""

    def suspect(self, key: ComponentKey, instance_id: str) -> None:
        """A hint that this instance just stopped answering: check it now rather than later, if the source can."""
        return

    async def explain(self, key: ComponentKey) -> list[Candidate]:
        """Further candidates, or further reasons, that need requests of their own; [] if there are none."""
        return []

    async def components(self) -> list[ComponentKey]:
        """The components with registrations; raises `DiscoveryError` if the source cannot list them."""
        raise DiscoveryError("this source cannot list its components: name a namespace and a component")

    async def aclose(self) -> None:
        """Free what `run` does not own."""
        return
