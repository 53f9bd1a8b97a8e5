"""Follows the Pods of one selection: reflector, set, zones and publisher."""

import asyncio
from collections.abc import Collection, Iterator

from adsum.tasks import cancel_and_wait
from discovery.kubernetes.inference_pool import PodTargets
from discovery.kubernetes.node_zones import NodeZones
from discovery.kubernetes.objects import Pod, pod_decoder
from discovery.kubernetes.pod_set import PodSet
from discovery.kubernetes.reflector import Reflector
from discovery.kubernetes.reflector_loop import ReflectorLoop
from discovery.kubernetes.refusal import WATCH_PODS
from discovery.kubernetes.snapshot_publisher import SnapshotPublisher
from discovery.kubernetes.timings import Timings
from discovery.kubernetes.transport import ApiTransport
from discovery.source import Candidate, ComponentKey, Report

PODS = "/api/v1/namespaces/{}/pods"


class FollowedPods:
    """The set stays when the selection changes: only Pods that are not selected any more leave. Must be closed."""

    def __init__(
        self,
        transport: ApiTransport,
        namespace: str,
        key: ComponentKey,
        report: Report,
        grace: float,
        timings: Timings,
    ) -> None:
        self._transport = transport
        self._namespace = namespace
        self._timings = timings
        self._targets: PodTargets | None = None
        self._zones = NodeZones(transport, timings, self._zones_found)
        self._pods = PodSet(key, grace, report.reader, self._zones.zone)
        self.publisher: SnapshotPublisher[Pod] = SnapshotPublisher(
            self._pods, report, WATCH_PODS, namespace, timings
        )
        self._asking = asyncio.create_task(self._zones.run(), name=f"zones {key}")

    async def follow(self, targets: PodTargets) -> None:
        """Runs until it is cancelled, for another selection to follow. ForbiddenError when the first list is denied."""
        self._targets, self._pods.ports, self._pods.others = targets, targets.ports, ()
        self.publisher.report_next_list()
        selection = {"labelSelector": targets.selector} if targets.selector else {}
        reflector = Reflector(selection, pod_decoder(), self._timings)
        path = PODS.format(self._namespace)
        await ReflectorLoop(reflector, self._transport, path, self._timings, self.publisher).run()

    def clear(self, instead: Candidate) -> None:
        """There is no selection: nobody is an instance, and `instead` says why."""
        self._targets = None
        self._pods.clear()
        self._pods.others = (instead,)
        self.publisher.report_now()

    def explain(self) -> Iterator[Candidate]:
        """Each Pod that is no instance, with the reason; that there is no Pod; why zones are not known."""
        yield from self._pods.reasons()
        if self._targets is not None and not self._pods:
            wanted = f"the labels {self._targets.selector}" if self._targets.selector else "any labels"
            yield Candidate(
                "pods", reason=f"no Pod in the Kubernetes namespace {self._namespace} has {wanted}"
            )
        if self._zones.problem is not None:
            yield Candidate("nodes", reason=self._zones.problem)

    async def aclose(self) -> None:
        await cancel_and_wait(self._asking)
        await self.publisher.aclose()

    def _zones_found(self, nodes: Collection[str]) -> None:
        if self._pods.refresh(nodes):
            self.publisher.set_changed()
