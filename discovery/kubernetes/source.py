"""The truth is the EndpointSlices of one Service."""

import logging
from collections.abc import Sequence

from discovery.kubernetes.endpointslice import SliceReading
from discovery.kubernetes.investigation import SLICES, Investigation
from discovery.kubernetes.merge import MergedSet
from discovery.kubernetes.reflector import Reflector
from discovery.kubernetes.reflector_loop import Drive
from discovery.kubernetes.selection import Selection
from discovery.kubernetes.snapshot_publisher import Following
from discovery.kubernetes.timings import Timings
from discovery.kubernetes.transport import ApiTransport
from discovery.source import Candidate, ComponentKey, Report

_log = logging.getLogger(__name__)


class KubernetesSource:
    """Instances are the pods in the merged slices, by `targetRef.uid`. `namespace` is the Kubernetes namespace,
    `port_name` the slice port on which workers serve their HTTP contract. `grace`: seconds that a ready pod may be
    missing from all slices before it counts as gone (the controller moves endpoints between slices by two writes).
    `families`: the address families to use, the preferred one first.
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
        self._reading = SliceReading(port_name, tuple(families))
        self._grace = grace
        self._timings = timings or Timings()

    async def run(self, key: ComponentKey, report: Report) -> None:
        """As any source; raises ForbiddenError when the first list is refused, ValueError when `key` has no Service."""
        selector = self._selection.selector(key)
        report.degraded(f"no answer yet to the first list of {selector} in the namespace {self._namespace}")
        reflector = Reflector(selector, self._timings)
        merged = MergedSet(key, self._reading, self._grace, report.reader)
        following = Following(merged, report, self._namespace, self._timings)
        following.on_nobody = lambda: self._warn(key)
        path = SLICES.format(self._namespace)
        try:
            await Drive(reflector, self._transport, path, self._timings, following).run()
        finally:
            await following.aclose()

    def suspect(self, key: ComponentKey, instance_id: str) -> None:
        """Nothing to look at: a slice changes when the pod's probe says so."""

    async def components(self) -> list[ComponentKey]:
        return await self._investigation().components()

    async def explain(self, key: ComponentKey) -> list[Candidate]:
        """What slices cannot tell: the Service and the pods behind it, each with the one reason why it is no
        instance. Asks for more rights than a watch needs; without them it says which. Never raises for what it finds.
        """
        return await self._investigation().explain(key)

    async def aclose(self) -> None:
        await self._transport.aclose()

    def _investigation(self) -> Investigation:
        return Investigation(self._transport, self._namespace, self._selection, self._reading.port_name)

    async def _warn(self, key: ComponentKey) -> None:
        found = await self.explain(key)
        reasons = "; ".join(f"{candidate.id}: {candidate.reason}" for candidate in found[:10])
        _log.warning(
            "no ready instance of %s for %g s in the Kubernetes namespace %s: %s",
            key,
            self._timings.nobody,
            self._namespace,
            reasons or "its pods are there and not ready",
        )
