"""Follows the objects of one custom resource, in the API group and version that the cluster serves, and writes their
condition `Accepted`, where the account may.

The Go picker writes no conditions, and the Roles of its charts do not allow it: only a right that somebody gave on purpose,
`patch` on the resource's `status`, makes this picker write one.
"""

import asyncio
import datetime
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final, Never, TypeAlias

import msgspec

from adsum.tasks import first_of
from discovery.kubernetes import ClusterTransport, Timings, TransportError
from discovery.kubernetes.api.transport import ApiReadError, read_api
from discovery.kubernetes.reflector.informer import Informer
from epp.kubernetes.access_review import AccessReviews
from epp.kubernetes.inference_resources import Object

logger = logging.getLogger(__name__)

RECHECK: Final = 60.0
"""Seconds between two looks at which versions the cluster serves: a CRD may be installed while the picker runs."""
_RETRY: Final = 5.0
"""Seconds until the next look if the API server did not answer."""
_ACCEPTED: Final = "Accepted"
_MESSAGE: Final = "a picker of the InferencePool applies it"
_VERSIONS: Final = (
    ("llm-d.ai", "v1"),
    ("llm-d.ai", "v1alpha2"),
    ("inference.networking.x-k8s.io", "v1alpha2"),
)
"""Group and version; of those that are served the first is followed, as in the Go picker."""
_PREFERRED: Final = _VERSIONS[1]
"""The versions that are tried if the cluster does not let us look."""

GroupVersion = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """`without`: what it means for requests that none are followed."""

    kind: str
    resource: str
    without: str


OBJECTIVES: Final = ResourceKind(
    "InferenceObjective", "inferenceobjectives", "priorities come from --objective alone"
)
REWRITES: Final = ResourceKind(
    "InferenceModelRewrite", "inferencemodelrewrites", "no rule rewrites the model of a request"
)


Applied: TypeAlias = tuple[AbstractSet[str], Mapping[str, str]]
"""The names of the objects that are applied, and by name why others are left out."""


class FollowedResource:
    """The objects of `kind` in one namespace. `apply` gets all of them after each change. An object that it applies gets the
    condition `Accepted`, where the account may write it.
    """

    def __init__(
        self,
        transport: ClusterTransport,
        namespace: str,
        kind: ResourceKind,
        apply: Callable[[Iterable[Object]], Applied],
        *,
        timings: Timings | None = None,
        recheck: float = RECHECK,
    ) -> None:
        self._transport = transport
        self._namespace = namespace
        self._kind = kind
        self._apply = apply
        self._timings = timings
        self._recheck = recheck
        self._served: GroupVersion | None = None
        self._informer: Informer | None = None
        self._absent = False
        self._problem: str | None = None
        self._applied: Applied = (frozenset(), {})
        self._changed = asyncio.Event()

    async def run(self) -> Never:
        """Follow until cancelled. What goes wrong is in `describe`, and in the log once."""
        while True:
            try:
                await self._follow()
            except Exception as error:  # a fault of ours must not end the updates
                logger.exception("cannot follow the %ss: unexpected error", self._kind.kind)
                self._problem = f"unexpected error: {error!r}"
            finally:
                self._informer = None
            await asyncio.sleep(self._recheck if self._absent else min(self._recheck, _RETRY))

    async def _follow(self) -> None:
        """Until another version is served; returns at once if none is."""
        self._served = await self._find_served()
        if self._served is None:
            return
        group, version = self._served
        path = f"/apis/{group}/{version}/namespaces/{self._namespace}/{self._kind.resource}"
        logger.info("following the %ss of %s/%s in %s", self._kind.kind, group, version, self._namespace)
        async with Informer(self._transport, path, self.refresh, self._timings) as informer:
            self._informer = informer
            await first_of(self._until_others_are_served(), self._write_conditions(group, path))

    def refresh(self) -> None:
        """Apply the objects as they are now."""
        if self._informer is None or not self._informer.synced:
            return
        (_, before), self._applied = self._applied, self._apply(self._informer.objects.values())
        _, left_out = self._applied
        for name in left_out.keys() - before.keys():
            logger.warning("the %s %s is left out: %s", self._kind.kind, name, left_out[name])
        self._changed.set()

    def describe(self) -> dict[str, Any]:
        """For the status page. `problem`: why the objects are not, or may not be, up to date."""
        informer = self._informer
        return {
            "kind": self._kind.kind,
            "api_version": "/".join(self._served) if self._served else None,
            "count": len(informer.objects) if informer else 0,
            "left_out": dict(self._applied[1]),
            "problem": informer.problem if informer else self._problem,
        }

    async def _write_conditions(self, group: str, path: str) -> None:
        reviews = AccessReviews(self._transport)
        while True:
            if not await reviews.may_patch_status(self._namespace, group, self._kind.resource):
                await asyncio.sleep(self._recheck)
                continue
            self._changed.clear()
            objects = self._informer.objects if self._informer is not None else {}
            accepted = [obj for name, obj in objects.items() if name in self._applied[0]]
            try:
                await write_accepted(self._transport, path, accepted, datetime.datetime.now(datetime.UTC))
            except TransportError as error:
                logger.debug("conditions cannot be written: %s", error)
                await asyncio.sleep(_RETRY)
                continue
            await self._changed.wait()

    async def _until_others_are_served(self) -> None:
        while True:
            await asyncio.sleep(self._recheck)
            found = await self._find_served()
            if found not in (None, self._served):
                return

    async def _find_served(self) -> GroupVersion | None:
        """The first version that is served; None: none is, or the API server does not say."""
        for group, version in _VERSIONS:
            try:
                listed = await read_api(self._transport, f"/apis/{group}/{version}", {}, _ApiResourceList)
            except ApiReadError as error:
                if error.code in (401, 403):
                    return _PREFERRED  # asked for its objects, the API server says which right is missing
                if error.code == 404:
                    continue
                self._problem = f"it is not known which {self._kind.resource} are served: {error}"
                return None
            if any(resource.name == self._kind.resource for resource in listed.resources):
                self._absent = False
                return group, version
        groups = " nor ".join(dict.fromkeys(group for group, _ in _VERSIONS))
        self._problem = f"no CustomResourceDefinition {self._kind.resource} is installed, neither of {groups}"
        if not self._absent:
            logger.info("%s: %s", self._problem, self._kind.without)
        self._absent = True
        return None


class _ApiResource(msgspec.Struct):
    name: str


class _ApiResourceList(msgspec.Struct):
    resources: list[_ApiResource]


async def write_accepted(
    transport: ClusterTransport, collection: str, objects: Iterable[Object], now: datetime.datetime
) -> None:
    """Patch each object whose condition is missing or of an older generation. `collection`: the path of all objects.

    A write that fails is left to the next change or to another replica. TransportError: the API server does not answer.
    """
    for obj in objects:
        if (change := accepted_patch(obj, now)) is None:
            continue
        path = f"{collection}/{obj['metadata']['name']}/status"
        status, _ = await transport.patch(path, json.dumps(change).encode())
        if status != 200:
            logger.debug("PATCH %s: HTTP %d", path, status)


def accepted_patch(obj: Object, now: datetime.datetime) -> Mapping[str, Any] | None:
    """A merge patch of the status; None if the condition is there. It fails if the object has changed meanwhile."""
    metadata = obj["metadata"]
    generation = metadata.get("generation", 0)
    status = obj.get("status")
    listed = status.get("conditions") if isinstance(status, dict) else None
    conditions = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    wanted = (_ACCEPTED, "True", generation)
    if any(
        (one.get("type"), one.get("status"), one.get("observedGeneration")) == wanted for one in conditions
    ):
        return None
    accepted = {
        "type": _ACCEPTED,
        "status": "True",
        "reason": _ACCEPTED,
        "message": _MESSAGE,
        "observedGeneration": generation,
        "lastTransitionTime": now.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    others = [one for one in conditions if one.get("type") != _ACCEPTED]
    return {
        "metadata": {"resourceVersion": metadata.get("resourceVersion")},
        "status": {"conditions": [*others, accepted]},
    }
