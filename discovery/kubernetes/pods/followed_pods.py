"""Follows the Pods of one selection: reflector, set and publisher, and the zones of their nodes."""

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

from adsum.tasks import cancel_and_wait
from discovery.kubernetes.api.objects import Node, Pod
from discovery.kubernetes.api.refusal import GET_NODES, WATCH_PODS
from discovery.kubernetes.api.timings import Timings
from discovery.kubernetes.api.transport import ApiReadError, ApiTransport, read_api
from discovery.kubernetes.pods.pod_set import ZONE_LABEL, PodSet
from discovery.kubernetes.pods.selection import PodTargets
from discovery.kubernetes.reflector.decoding import ResourceDecoder
from discovery.kubernetes.reflector.informer import ReflectorLoop
from discovery.kubernetes.reflector.publisher import SnapshotPublisher
from discovery.kubernetes.reflector.reflector import Reflector
from discovery.source import Candidate, ComponentKey, Report

_AT_ONCE: Final = 16
_NODES: Final = "/api/v1/nodes"


class NodeZones:
    """`on_found` is called with nodes whose zones became known. A node's zone never changes while it exists.

    A node that does not exist is asked for again later: a Pod may be bound before its node is readable.
    """

    def __init__(
        self, transport: ApiTransport, timings: Timings, on_found: Callable[[Collection[str]], object]
    ) -> None:
        self.problem: str | None = None
        """Why zones are not known. Nothing else depends on it, so it is not logged."""
        self._transport = transport
        self._timings = timings
        self._on_found = on_found
        self._zones: dict[str, str | None] = {}
        self._wanted: dict[str, None] = {}
        self._missing: dict[str, float] = {}
        """Nodes that do not exist, and until when that is believed; the earliest first."""
        self._wake = asyncio.Event()

    def zone(self, node: str) -> str | None:
        """The zone as far as it is known; an unknown one is asked for."""
        if node not in self._zones:
            self._wanted[node] = None
            self._wake.set()
        return self._zones.get(node)

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self._wait()
            # one request shows whether the right is there now, or the server answers again
            batch = list(islice(self._wanted, 1 if self.problem else _AT_ONCE))
            errors = await asyncio.gather(*map(self._ask, batch))
            if found := [node for node in batch if node in self._zones]:
                self._on_found(found)
            error = next(filter(None, errors), None)
            self.problem = None if error is None else _explain(error)
            if error is not None:
                # time does not heal a missing right; a new ClusterRole is noticed all the same
                waits = self._timings.relist_interval if error.code == 403 else self._timings.backoff
                await asyncio.sleep(waits[0] if error.code == 403 else waits[1])
            elif not self._wanted:
                self._wake.clear()

    async def _wait(self) -> None:
        """Until a node is wanted; whoever has a node that was missing for long asks for it again."""
        while not self._wake.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(next(iter(self._missing.values()), None)):
                    await self._wake.wait()
            now = asyncio.get_running_loop().time()
            forgotten = [node for node, until in self._missing.items() if until <= now]
            for node in forgotten:
                del self._missing[node], self._zones[node]
            if forgotten:
                self._on_found(forgotten)

    async def _ask(self, node: str) -> ApiReadError | None:
        try:
            found = await read_api(self._transport, f"{_NODES}/{node}", {}, Node)
        except ApiReadError as error:
            if error.code != 404:
                return error
            self._zones[node] = None
            self._missing[node] = asyncio.get_running_loop().time() + self._timings.relist_interval[0]
        else:
            self._zones[node] = (found.metadata.labels or {}).get(ZONE_LABEL)
        del self._wanted[node]
        return None


def _explain(error: ApiReadError) -> str:
    if error.code != 403:
        return f"the zones of their nodes are not known: {error}"
    return (
        f"the zones of their nodes are not known, which hurts nothing else: {error}\nA ClusterRole with this rule, bound to "
        f"the service account by a ClusterRoleBinding, shows them:\n{GET_NODES.manifest()}"
    )


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
        reflector = Reflector(selection, ResourceDecoder[Pod](Pod), self._timings)
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
