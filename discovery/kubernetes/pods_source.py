"""Source: instances are the Pods that a label selector or an InferencePool selects, one for each target port."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from discovery.kubernetes.followed_pods import FollowedPods
from discovery.kubernetes.followed_pool import FollowedPool, PoolReport
from discovery.kubernetes.inference_pool import PodTargets, PoolReference
from discovery.kubernetes.informer import Informer
from discovery.kubernetes.timings import Timings
from discovery.kubernetes.transport import ApiTransport
from discovery.source import Candidate, ComponentKey, Report

_log = logging.getLogger(__name__)


class PodsSource:
    """Each namespace and component has the same instances: `selection` says all. `namespace`: the Kubernetes namespace.
    `grace`: seconds that a ready Pod may be missing; one that is shown as unavailable leaves at once.
    """

    needs_documents = False

    def __init__(
        self,
        transport: ApiTransport,
        namespace: str,
        selection: PodTargets | PoolReference,
        *,
        grace: float = 0.5,
        timings: Timings | None = None,
    ) -> None:
        self._transport = transport
        self._namespace = namespace
        self._selection = selection
        self._grace = grace
        self._timings = timings or Timings()
        self._followed: dict[ComponentKey, FollowedPods] = {}

    async def run(self, key: ComponentKey, report: Report) -> None:
        """ForbiddenError when the first list of pools or of Pods is denied."""
        if isinstance(self._selection, PodTargets):
            wanted = self._selection.selector
            report.degraded(f"no answer yet to the first list of the Pods {wanted} in {self._namespace}")
            async with self._following(key, report) as pods:
                await pods.follow(self._selection)
            return
        pool, changed, pool_report = self._selection, asyncio.Event(), PoolReport(report)
        report.degraded(f"no answer yet to the first list of InferencePool {pool.name} in {self._namespace}")
        path = pool.path(self._namespace)
        async with (
            Informer(
                self._transport, path, "", changed.set, self._timings, name=pool.name, quiet=True
            ) as pools,
            self._following(key, pool_report) as pods,
        ):
            await FollowedPool(pool, self._namespace, pools, pods, pool_report).run(changed)

    def suspect(self, key: ComponentKey, instance_id: str) -> None:
        """Does nothing: the Pod changes by itself when its readiness probe fails."""

    async def explain(self, key: ComponentKey) -> list[Candidate]:
        """From what is known, without requests: each Pod of the selection that is no instance."""
        followed = self._followed.get(key)
        return [] if followed is None else list(followed.explain())

    async def components(self) -> list[ComponentKey]:
        """Empty: every name has the same instances, so that none can be misspelt."""
        return []

    async def aclose(self) -> None:
        await self._transport.aclose()

    @asynccontextmanager
    async def _following(self, key: ComponentKey, report: Report) -> AsyncIterator[FollowedPods]:
        pods = FollowedPods(self._transport, self._namespace, key, report, self._grace, self._timings)
        pods.publisher.on_none_ready = lambda: self._warn(key)
        self._followed[key] = pods
        try:
            yield pods
        finally:
            del self._followed[key]
            await pods.aclose()

    async def _warn(self, key: ComponentKey) -> None:
        found = await self.explain(key)
        _log.warning(
            "no ready Pod for %g s in the Kubernetes namespace %s: %s",
            self._timings.none_ready_warning,
            self._namespace,
            "; ".join(f"{candidate.id}: {candidate.reason}" for candidate in found[:10])
            or "there is no selection",
        )
