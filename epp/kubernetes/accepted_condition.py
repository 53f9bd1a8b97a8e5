"""Writes the condition `Accepted` to the status of custom resources that a picker applies, where its account may.

The Go picker writes no conditions, and the Roles of its charts do not allow it: only a right that somebody gave on purpose,
`patch` on the resource's `status`, makes this picker write one.
"""

import datetime
import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec

from discovery.kubernetes import TransportError
from epp.kubernetes.inference_resources import Object

logger = logging.getLogger(__name__)

_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
"""Every account may ask what it may do (ClusterRole system:basic-user)."""
_MAX_ANSWER: Final = 1024 * 1024
_ACCEPTED: Final = "Accepted"
_MESSAGE: Final = "a picker of the InferencePool applies it"


class WritingTransport(Protocol):
    """The part of ClusterTransport that writes."""

    async def post(self, path: str, document: bytes, limit: int) -> tuple[int, bytes]: ...

    async def patch(self, path: str, document: bytes, limit: int) -> tuple[int, bytes]: ...


async def may_write(transport: WritingTransport, namespace: str, group: str, resource: str) -> bool:
    """Whether our account may patch the status of `resource`; False if the API server does not say."""
    asked = {
        "namespace": namespace,
        "verb": "patch",
        "group": group,
        "resource": resource,
        "subresource": "status",
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    try:
        status, body = await transport.post(_REVIEWS, json.dumps(review).encode(), _MAX_ANSWER)
        answer = msgspec.json.decode(body, type=_Review) if status in (200, 201) else _Review()
    except (TransportError, msgspec.DecodeError):
        return False
    return answer.status.allowed


class _ReviewStatus(msgspec.Struct, frozen=True):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _ReviewStatus = _ReviewStatus()


async def write_accepted(
    transport: WritingTransport, collection: str, objects: Iterable[Object], now: datetime.datetime
) -> None:
    """Patch each object whose condition is missing or of an older generation. `collection`: the path of all objects.

    A write that fails is left to the next change or to another replica. TransportError: the API server does not answer.
    """
    for obj in objects:
        if (change := accepted_patch(obj, now)) is None:
            continue
        path = f"{collection}/{obj['metadata']['name']}/status"
        status, _ = await transport.patch(path, json.dumps(change).encode(), _MAX_ANSWER)
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
