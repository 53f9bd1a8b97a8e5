"""Follows what Kubernetes has for one InferencePool: whether it exists, the priorities, the model rewrites."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from adsum.tasks import ResourceOwner, wait_at_most
from discovery.kubernetes import ClusterTransport, Timings
from discovery.kubernetes.opening import find_cluster, parse_options
from discovery.kubernetes.pods.selection import POOL_GROUP, PoolReference
from discovery.kubernetes.reflector.informer import Informer
from epp.kubernetes import inference_resources
from epp.kubernetes.followed_resource import OBJECTIVES, RECHECK, REWRITES, Applied, FollowedResource
from epp.request.model_rewrite import RewriteRule

logger = logging.getLogger(__name__)

_FIRST_ANSWER: Final = 5.0
"""Seconds that entering waits, at most, until it is known whether the pool exists."""


@dataclass(frozen=True, slots=True)
class ResourceReaders:
    """Called after changes. `pool`: with the reason why the picker cannot serve, None if it can."""

    pool: Callable[[str | None], None]
    priorities: Callable[[Mapping[str, int]], None]
    rewrites: Callable[[Sequence[RewriteRule]], None]


class PoolResources(ResourceOwner):
    """An async context manager. `grpc_port`: where this picker listens, 0: anywhere. Nothing that Kubernetes answers raises: it
    is retried for ever, and shown by `describe`.
    """

    def __init__(
        self,
        transport: ClusterTransport,
        pool: inference_resources.PoolIdentity,
        readers: ResourceReaders,
        *,
        grpc_port: int = 0,
        timings: Timings | None = None,
        recheck: float = RECHECK,
    ) -> None:
        self._transport = transport
        self._pool = pool
        self._readers = readers
        self._grpc_port = grpc_port
        self._reference: inference_resources.PickerReference | None = None
        self._parsed_objectives, self._parsed_rewrites = (
            inference_resources.ParsedObjects(inference_resources.ObjectiveSpec),
            inference_resources.ParsedObjects(inference_resources.RewriteSpec),
        )
        self._reason: str | None = self._unknown
        self._answered = asyncio.Event()
        path = PoolReference(pool.name, pool.group).path(pool.namespace)
        self._informer = Informer(transport, path, self._pool_changed, timings, name=pool.name)
        follow = partial(FollowedResource, transport, pool.namespace, timings=timings, recheck=recheck)
        self._objectives = follow(OBJECTIVES, self._apply_objectives)
        self._rewrites = follow(REWRITES, self._apply_rewrites)

    def describe(self) -> dict[str, Any]:
        """For the status page."""
        pool, reference = self._pool, self._reference
        return {
            "pool": {
                "name": pool.name,
                "namespace": pool.namespace,
                "group": pool.group,
                "problem": self._reason or self._informer.problem,
                "endpoint_picker_ref": None if reference is None else asdict(reference),
                "endpoint_picker_ref_problem": None
                if reference is None
                else reference.mismatch(self._grpc_port),
            },
            "resources": [self._objectives.describe(), self._rewrites.describe()],
        }

    async def _open(self) -> None:
        self._stack.push_async_callback(self._transport.aclose)
        self._readers.pool(self._reason)
        await self._stack.enter_async_context(self._informer)
        for followed in (self._objectives, self._rewrites):
            self._start(followed.run())
        await wait_at_most(_FIRST_ANSWER, self._answered)

    @property
    def _described(self) -> str:
        return (
            f"InferencePool {self._pool.name} of {self._pool.group} in the namespace {self._pool.namespace}"
        )

    @property
    def _unknown(self) -> str:
        return f"it is not known yet whether there is an {self._described}"

    def _pool_changed(self) -> None:
        self._answered.set()
        found = self._informer.objects.get(self._pool.name)
        before = self._reason
        if found is not None and not found["metadata"].get("deletionTimestamp"):
            self._reason = None
            self._pool = replace(self._pool, labels=found["metadata"].get("labels") or {})
            self._compare_reference(inference_resources.picker_reference(found))
            self._objectives.refresh()
            self._rewrites.refresh()
        elif self._informer.synced:
            self._reason = f"there is no {self._described}"
        else:
            self._reason = self._informer.problem or self._unknown
        if self._reason != before:
            if self._reason is None:
                logger.info("there is the %s", self._described)
            else:
                logger.warning("NOT_SERVING: %s", self._reason)
            self._readers.pool(self._reason)

    def _compare_reference(self, reference: inference_resources.PickerReference | None) -> None:
        before, self._reference = self._reference, reference
        problem = None if reference is None else reference.mismatch(self._grpc_port)
        if problem is not None and reference != before:
            logger.warning("the %s: %s", self._described, problem)

    def _apply_objectives(self, objects: Iterable[inference_resources.Object]) -> Applied:
        read = inference_resources.read_priorities(objects, self._pool, self._parsed_objectives)
        self._readers.priorities(read.by_objective)
        return read.by_objective.keys(), read.problems

    def _apply_rewrites(self, objects: Iterable[inference_resources.Object]) -> Applied:
        read = inference_resources.read_rewrites(objects, self._pool, self._parsed_rewrites)
        self._readers.rewrites(read.rules)
        return read.names, read.problems


async def open_pool_resources(url: str, readers: ResourceReaders, grpc_port: int = 0) -> PoolResources | None:
    """For a `kubernetes://` URL with `pool=`; None for any other URL. DiscoveryError if there is no cluster."""
    parts = urlsplit(url)
    if parts.scheme != "kubernetes":
        return None
    options = parse_options(parts, url)
    if "pool" not in options:
        return None
    cluster = await find_cluster(options)
    namespace = parts.netloc or cluster.namespace
    pool = inference_resources.PoolIdentity(namespace, options["pool"], options.get("group") or POOL_GROUP)
    return PoolResources(ClusterTransport(cluster), pool, readers, grpc_port=grpc_port)
