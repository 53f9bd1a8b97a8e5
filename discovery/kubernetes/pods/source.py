"""Source: instances are the Pods that a label selector or an InferencePool selects, one for each target port."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from adsum.tasks import cancel_and_wait
from discovery.errors import ForbiddenError
from discovery.instance import MetadataReader
from discovery.kubernetes.api.timings import Timings
from discovery.kubernetes.api.transport import ApiTransport
from discovery.kubernetes.pods.followed_pods import FollowedPods
from discovery.kubernetes.pods.selection import PodTargets, PoolReference, read_targets
from discovery.kubernetes.reflector.informer import Informer
from discovery.source import Candidate, ComponentKey, Report, Snapshot, Source

_log = logging.getLogger(__name__)


class PoolReport:
    """`Report` of the Pods of a pool, degraded while the pool itself is out of reach or not there."""

    def __init__(self, report: Report) -> None:
        self.problem: str | None = None
        self._report = report
        self._snapshot: Snapshot | None = None
        self._pods_lost = False

    @property
    def reader(self) -> MetadataReader:
        return self._report.reader

    def __call__(self, snapshot: Snapshot) -> None:
        self._snapshot, self._pods_lost = snapshot, False
        self._report(snapshot)
        if self.problem is not None:
            self._report.degraded(self.problem)

    def degraded(self, reason: str) -> None:
        self._pods_lost = True
        self._report.degraded(reason)

    def set_problem(self, problem: str | None) -> None:
        """Why changes of the pool cannot be seen, or that there is no pool."""
        before, self.problem = self.problem, problem
        if problem is not None and problem != before:
            self._report.degraded(problem)
        elif before is not None and problem is None and self._snapshot is not None and not self._pods_lost:
            self._report(self._snapshot)


class FollowedPool:
    """Each change of the pool's selector or ports begins another list of Pods, in which the known ones stay."""

    def __init__(
        self, pool: PoolReference, namespace: str, pools: Informer, pods: FollowedPods, report: PoolReport
    ) -> None:
        self._pool = pool
        self._namespace = namespace
        self._pools = pools
        self._pods = pods
        self._report = report
        self._following: asyncio.Task[None] | None = None
        self._targets: PodTargets | str | None = None

    async def run(self, changed: asyncio.Event) -> None:
        """`changed`: set by the informer. Runs until it is cancelled. ForbiddenError when a first list is denied."""
        try:
            while True:
                changed.clear()
                await self._apply()
                await self._wait(changed)
        finally:
            await self._stop_following()

    async def _apply(self) -> None:
        found = self._find_targets()
        problem = found if isinstance(found, str) else self._pools.problem
        if problem is not None and problem != self._report.problem:
            _log.warning("%s", problem)
        if found is None or found == self._targets:
            self._report.set_problem(problem)
            return
        self._report.problem = problem  # the next snapshot tells it, or ends the last one
        await self._stop_following()
        before, self._targets = self._targets, found
        if isinstance(found, str):
            self._pods.clear(Candidate(self._pool.name, reason=found))
            return
        selected, ports = found.selector or "every Pod", ",".join(map(str, found.ports))
        _log.info("InferencePool %s: selects %s, ports %s", self._pool.name, selected, ports)
        if not isinstance(before, PodTargets):
            self._report.degraded(
                f"no answer yet to the first list of the Pods of InferencePool {self._pool.name}"
            )
        self._following = asyncio.create_task(self._pods.follow(found), name=f"pods of {self._pool.name}")

    def _find_targets(self) -> PodTargets | str | None:
        """None while it is not known; a text says why there are none."""
        pools = self._pools
        if not pools.synced:
            if pools.problem_code == 403 and pools.problem is not None:
                raise ForbiddenError(pools.problem)
            return pools.problem if pools.problem_code == 404 else None
        pool = pools.objects.get(self._pool.name)
        where = f"InferencePool {self._pool.name} ({self._pool.group})"
        if pool is None:
            return f"there is no {where} in the Kubernetes namespace {self._namespace}"
        if pool["metadata"].get("deletionTimestamp") is not None:
            return f"{where} is being deleted"
        try:
            return read_targets(pool, self._pool.group)
        except ValueError as error:
            return f"{where}: {error}"

    async def _wait(self, changed: asyncio.Event) -> None:
        """Until the pool changes; raises what ended the watch of its Pods."""
        waiting = asyncio.ensure_future(changed.wait())
        tasks = {waiting} if self._following is None else {waiting, self._following}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait(waiting)
        if self._following is not None and self._following.done():
            self._following.result()

    async def _stop_following(self) -> None:
        following, self._following = self._following, None
        if following is not None and not following.done():
            await cancel_and_wait(following)


class PodsSource(Source):
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
            Informer(self._transport, path, changed.set, self._timings, name=pool.name, quiet=True) as pools,
            self._following(key, pool_report) as pods,
        ):
            await FollowedPool(pool, self._namespace, pools, pods, pool_report).run(changed)

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
        pods.publisher.explain_none_ready("Pod", partial(self.explain, key), "there is no selection")
        self._followed[key] = pods
        try:
            yield pods
        finally:
            del self._followed[key]
            await pods.aclose()
