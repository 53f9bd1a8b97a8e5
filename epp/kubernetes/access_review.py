"""Asks the API server whose a bearer token is, and what that user or this picker may do."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from discovery.kubernetes import ClusterTransport, TransportError

_WHOSE: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_MAY: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_WE_MAY: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
"""Every account may ask what it may do (ClusterRole system:basic-user)."""
_RULES: Final = (
    '- apiGroups: ["authentication.k8s.io"]\n  resources: ["tokenreviews"]\n  verbs: [create]\n'
    '- apiGroups: ["authorization.k8s.io"]\n  resources: ["subjectaccessreviews"]\n  verbs: [create]'
)
"""The rights that both reviews need. They are not of a namespace, so a Role cannot grant them."""


class ReviewError(Exception):
    """The API server does not say; the text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class ApiUser:
    """A user as the API server knows it; `details`: the fields that a SubjectAccessReview takes over."""

    name: str
    details: Mapping[str, Any] = field(default_factory=dict)


class AccessReviews:
    """Both reviews over one transport; any number may run at once."""

    def __init__(self, transport: ClusterTransport) -> None:
        self._transport = transport

    async def user(self, token: str) -> ApiUser | None:
        """Return the user whose token it is; None: nobody's. Raises ReviewError."""
        status = await self._review("TokenReview", "authentication.k8s.io/v1", _WHOSE, {"token": token})
        if status.get("authenticated") is not True:
            return None
        user = status.get("user")
        given = user if isinstance(user, dict) else {}
        name = given.get("username")
        if not isinstance(name, str) or not name:
            raise ReviewError("the API server accepts the token, but does not say whose it is")
        details = {key: given[key] for key in ("uid", "groups", "extra") if given.get(key)}
        return ApiUser(name, details)

    async def may(self, user: ApiUser, verb: str, path: str) -> bool:
        """Whether RBAC allows it, by a rule with `nonResourceURLs`. Raises ReviewError."""
        asked = {"user": user.name, **user.details, "nonResourceAttributes": {"verb": verb, "path": path}}
        status = await self._review("SubjectAccessReview", "authorization.k8s.io/v1", _MAY, asked)
        return status.get("allowed") is True and status.get("denied") is not True

    async def may_patch_status(self, namespace: str, group: str, resource: str) -> bool:
        """Whether our account may patch the status of `resource`; False if the API server does not say."""
        wanted = {"namespace": namespace, "verb": "patch", "group": group, "resource": resource}
        asked = {"resourceAttributes": wanted | {"subresource": "status"}}
        try:
            status = await self._review("SelfSubjectAccessReview", "authorization.k8s.io/v1", _WE_MAY, asked)
        except ReviewError:
            return False
        return status.get("allowed") is True

    async def _review(self, kind: str, version: str, path: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        document = json.dumps({"apiVersion": version, "kind": kind, "spec": asked}).encode()
        try:
            code, body = await self._transport.post(path, document)
        except TransportError as error:
            raise ReviewError(f"no {kind}: {error}") from error
        if code == 403:
            raise ReviewError(
                f"no {kind}: HTTP 403: the service account needs these rules in a ClusterRole, bound to it by a "
                f"ClusterRoleBinding:\n{_RULES}"
            )
        if code not in (200, 201):
            raise ReviewError(f"no {kind}: HTTP {code} of the API server")
        status = _status(body)
        if status is None:
            raise ReviewError(f"no {kind}: the API server's answer is not one")
        return status


def _status(body: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return None
    status = answer.get("status") if isinstance(answer, dict) else None
    return status if isinstance(status, dict) else None
