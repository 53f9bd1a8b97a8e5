"""Assembles the source: reflector, merged set and publisher for each component; diagnostics for `explain`."""

import logging
from collections.abc import Sequence

from discovery.kubernetes.decoding import SliceDecoder
from discovery.kubernetes.diagnostics import SLICES, Diagnostics
from discovery.kubernetes.endpointslice import AddressSelection
from discovery.kubernetes.merge import MergedSet
from discovery.kubernetes.reflector import Reflector
from discovery.kubernetes.reflector_loop import ReflectorLoop
from discovery.kubernetes.refusal import LIST_SLICES
from discovery.kubernetes.selection import Selection
from discovery.kubernetes.snapshot_publisher import SnapshotPublisher
from discovery.kubernetes.timings import Timings
from discovery.kubernetes.transport import ApiTransport
from discovery.source import Candidate, ComponentKey, Report

_log = logging.getLogger(__name__)


class KubernetesSource:
    """Instances are the pods in the merged slices; their incarnation is `targetRef.uid`. `namespace`: the Kubernetes
    namespace. `port_name`: the slice port on which workers serve the wire contract. `grace`: seconds that a ready pod
    may be missing from all slices before it is removed, since the controller moves endpoints between slices by two
    writes. `families`: the address families to use, the preferred one first.
    """

    def __init__(  # noqa: PLR0913  # each by name, with a default that holds for Dynamo's manifests
        self,
        transport: ApiTransport,
        namespace: str,
        selection: Selection,
        *,
        port_name: str = "http",
        grace: float = 0.5,
        families: Sequence[str] = ("IPv4", "IPv6"),
        timings: Timings | None = None,
    ) -> None:
        self._transport = transport
        self._namespace = namespace
        self._selection = selection
        self._address_selection = AddressSelection(port_name, tuple(families))
        self._grace = grace
        self._timings = timings or Timings()

    async def run(self, key: ComponentKey, report: Report) -> None:
        """ForbiddenError when the first list is denied; ValueError when no Service can have the name of `key`."""
        selector = self._selection.selector(key)
        report.degraded(
            f"no answer yet to the first list of {selector} in the Kubernetes namespace {self._namespace}"
        )
        reflector = Reflector({"labelSelector": selector}, SliceDecoder(), self._timings)
        merged = MergedSet(key, self._address_selection, self._grace, report.reader)
        publisher = SnapshotPublisher(merged, report, LIST_SLICES, self._namespace, self._timings)
        publisher.on_none_ready = lambda: self._warn(key)
        path = SLICES.format(self._namespace)
        try:
            await ReflectorLoop(reflector, self._transport, path, self._timings, publisher).run()
        finally:
            await publisher.aclose()

    def suspect(self, key: ComponentKey, instance_id: str) -> None:
        """Does nothing: a slice changes by itself when the pod's readiness probe fails."""

    async def components(self) -> list[ComponentKey]:
        return await self._diagnostics().components()

    async def explain(self, key: ComponentKey) -> list[Candidate]:
        """What slices do not show: the Service and the pods that it selects or should select, each with one reason why
        it is no instance. Needs more Role rules than a watch; one that is missing is a candidate with the rule to add.
        """
        return await self._diagnostics().explain(key)

    async def aclose(self) -> None:
        await self._transport.aclose()

    def _diagnostics(self) -> Diagnostics:
        return Diagnostics(
            self._transport, self._namespace, self._selection, self._address_selection.port_name
        )

    async def _warn(self, key: ComponentKey) -> None:
        found = await self.explain(key)
        reasons = "; ".join(f"{candidate.id}: {candidate.reason}" for candidate in found[:10])
        _log.warning(
            "no ready instance of %s for %g s in the Kubernetes namespace %s: %s",
            key,
            self._timings.none_ready_warning,
            self._namespace,
            reasons or "its pods exist and are not ready",
        )
