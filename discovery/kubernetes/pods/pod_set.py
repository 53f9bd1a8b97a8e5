"""The instances of selected Pods: one for each target port of each Pod. Pure: time is passed in.

Names, ranks and the annotation are those of the Go picker (llm-d-router, pkg/epp/datastore).
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from discovery.instance import Instance, InstanceStatus, MetadataReader
from discovery.kubernetes.api.objects import Annotations, Pod, is_ready, not_ready_reason
from discovery.kubernetes.reflector.publisher import InstanceSet
from discovery.source import Candidate, ComponentKey

ZONE_LABEL: Final = "topology.kubernetes.io/zone"
"""On Nodes, and since Kubernetes 1.35 on the Pods that run there (KEP-4742)."""


@dataclass(frozen=True, slots=True)
class _ShownPod:
    """`ports`: the target ports at that time. `keys`: what it is shown as in the `InstanceSet`."""

    pod: Pod
    ports: tuple[int, ...]
    keys: tuple[str, ...]


class PodSet(InstanceSet[Pod]):
    """`ports`: the target ports of Pods that are put from now on. `others`: candidates that are no Pods. `zone_of`: the
    zone of a node, None if it is not known (yet).
    """

    def __init__(
        self,
        key: ComponentKey,
        grace: float,
        reader: MetadataReader | None = None,
        zone_of: Callable[[str], str | None] = lambda node: None,
    ) -> None:
        super().__init__(grace)
        self.ports: tuple[int, ...] = ()
        self.others: tuple[Candidate, ...] = ()
        self._key = key
        self._reader = reader
        self._zone_of = zone_of
        self._pods: dict[str, _ShownPod] = {}
        self._without_address: dict[str, Candidate] = {}

    def names(self) -> Iterable[str]:
        return self._pods

    def unnamed(self) -> Iterable[Candidate]:
        return (*self.others, *self._without_address.values())

    def __len__(self) -> int:
        """The number of Pods, ready or not."""
        return len(self._pods)

    def reasons(self) -> Iterator[Candidate]:
        """Why each Pod that is not ready is no instance."""
        for shown in self._pods.values():
            if not is_ready(shown.pod):
                reason = not_ready_reason(shown.pod)
                yield from (Candidate(key, reason=reason) for key in shown.keys)

    def put(self, pod: Pod, now: float) -> bool:
        before = self._pods.get(pod.metadata.name)
        if before is not None and (before.pod, before.ports) == (pod, self.ports):
            return False
        return self._show(pod, self.ports, before)

    def remove(self, name: str, now: float) -> bool:
        before = self._pods.pop(name, None)
        changes = [self.miss(key, now) for key in before.keys] if before is not None else []
        return self._without_address.pop(name, None) is not None or any(changes)

    def clear(self) -> None:
        """Removes every Pod at once, without grace."""
        for shown in self._pods.values():
            for key in shown.keys:
                self.show(key, None)
        self._pods.clear()
        self._without_address.clear()
        while self.expire(float("inf")):
            pass  # each call removes some of very many

    def refresh(self, nodes: Collection[str]) -> bool:
        """The zones of these nodes are known now; returns whether the set changed."""
        moved = [shown for shown in self._pods.values() if shown.pod.spec.node_name in nodes]
        changes = [self._show(shown.pod, shown.ports, shown) for shown in moved]
        return any(changes)

    def _show(self, pod: Pod, ports: tuple[int, ...], before: _ShownPod | None) -> bool:
        candidates = {c.id: c for c in self._candidates(pod, ports)}
        self._pods[pod.metadata.name] = _ShownPod(pod, ports, tuple(candidates))
        changes = [self._note_address(pod)]
        changes += [self.show(key, None) for key in (before.keys if before else ()) if key not in candidates]
        for key, candidate in candidates.items():
            excluded = (candidate,) if candidate.instance is None else ()
            changes.append(self.show(key, candidate.instance, excluded))
        return any(changes)

    def _note_address(self, pod: Pod) -> bool:
        """Whether that the Pod has no address is news."""
        name = pod.metadata.name
        before = self._without_address.pop(name, None)
        if not pod.status.address:
            # by its own name: not among the instances, where another Pod's rank may have that name
            self._without_address[name] = Candidate(name, reason=not_ready_reason(pod))
        return before != self._without_address.get(name)

    def _candidates(self, pod: Pod, ports: tuple[int, ...]) -> Iterator[Candidate]:
        name = pod.metadata.name
        if not pod.status.address:
            return
        active = _active_ports(pod)
        for rank, port in enumerate(ports):
            if active is None or port in active:
                yield Candidate(f"{name}-rank-{rank}", self._instance(pod, rank, port))
            else:
                said = ",".join(map(str, sorted(active))) or "no port"
                reason = f"its pod's annotation llm-d.ai/active-ports names {said}, not {port}"
                yield Candidate(f"{name}-rank-{rank}", reason=reason)

    def _instance(self, pod: Pod, rank: int, port: int) -> Instance:
        labels = pod.metadata.labels or {}
        node = pod.spec.node_name or None
        return Instance(
            f"{pod.metadata.name}-rank-{rank}",
            self._key.namespace,
            self._key.component,
            pod.status.address,
            port,
            _incarnation(pod, port),
            _status(pod),
            labels=labels,
            zone=labels.get(ZONE_LABEL) or (self._zone_of(node) if node else None),
            node=node,
            rank=rank,
            reader=self._reader,
        )


def _status(pod: Pod) -> InstanceStatus:
    if pod.metadata.deletion_timestamp is not None:
        return InstanceStatus.DRAINING
    return InstanceStatus.READY if is_ready(pod) else InstanceStatus.NOT_READY


def _incarnation(pod: Pod, port: int) -> str:
    """The UID, and the ids of the containers that may serve the port: a container that is restarted in place has lost its
    cache, though the Pod stays the same. A restart of another container counts only if no container declares the port.
    """
    running = {c.name: c.id.rpartition("/")[2][:12] for c in pod.status.containers or () if c.id}
    declaring = {
        container.name
        for container in pod.spec.containers or ()
        if any(p.container_port == port for p in container.ports or ())
    }
    ids = [running[name] for name in sorted(running.keys() & declaring or running)]
    return "/".join([pod.metadata.uid, "-".join(ids)] if ids else [pod.metadata.uid])


def _active_ports(pod: Pod) -> set[int] | None:
    """The ports that an annotation names; None without one. What is no port is ignored, as by the Go picker."""
    annotations = pod.metadata.annotations or Annotations()
    text = annotations.active_ports
    if text is None and (text := annotations.old_active_ports) is None:
        return None
    # bounded: an annotation: the API server bounds them to 256 KiB
    words = (word.strip() for word in text.split(","))
    return {int(word) for word in words if word.isascii() and word.isdigit() and len(word) <= 5}
