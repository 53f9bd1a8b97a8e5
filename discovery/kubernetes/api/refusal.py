"""Reads how an API server refuses, by HTTP status or ERROR event, and names the Role rule that is missing. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec


class StatusCause(msgspec.Struct, frozen=True):
    reason: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    retry_after_seconds: int | None = None
    causes: tuple[StatusCause, ...] | None = None


class Status(msgspec.Struct, frozen=True):
    """How the API server reports an error, in a body or in an ERROR event."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


def decode_status(body: bytes | bytearray) -> Status:
    """An empty Status for a body that is none, such as a proxy's HTML page."""
    try:
        return msgspec.json.decode(body, type=Status)
    except msgspec.DecodeError:
        return Status()


_TOO_LARGE: Final = "ResourceVersionTooLarge"
_LONGEST_RETRY_AFTER: Final = 300.0
"""Seconds; a longer Retry-After is taken for a mistake in a clock or a unit."""


@dataclass(frozen=True, slots=True)
class ApiRefusal:
    """`code`: the HTTP status. `retry_after`: seconds. `version_too_large`: our resourceVersion is from its future."""

    code: int
    text: str
    retry_after: float | None = None
    version_too_large: bool = False


def parse_refusal(code: int, status: Status, headers: Mapping[str, str] | None = None) -> ApiRefusal:
    """`headers` None: an ERROR event, which has only its Status."""
    details = status.details
    causes = (details.causes if details is not None else None) or ()
    seconds = details.retry_after_seconds if details is not None else None
    header = (headers or {}).get("Retry-After", "")
    if header.isascii() and header.isdigit():
        seconds = int(header)
    retry_after = (
        min(float(seconds), _LONGEST_RETRY_AFTER) if seconds and (code == 429 or code >= 500) else None
    )
    # Old servers say it only in the message (client-go, isTooLargeResourceVersionError)
    too_large = code == 504 and (any(c.reason == _TOO_LARGE for c in causes) or "Too large" in status.message)
    return ApiRefusal(code, _text(code, status), retry_after, too_large)


def _text(code: int, status: Status) -> str:
    message = f": {status.message}" if status.message else ""
    return f"HTTP {code}{f' {status.reason}' if status.reason else ''}{message}"[:1000]


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """A rule of a Role (rbac.authorization.k8s.io/v1). `group` "": the core API."""

    group: str
    resource: str
    verbs: tuple[str, ...]

    @property
    def qualified(self) -> str:
        """The resource as the server's messages name it."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    def manifest(self) -> str:
        """The rule as YAML."""
        return f'- apiGroups: ["{self.group}"]\n  resources: ["{self.resource}"]\n  verbs: [{", ".join(self.verbs)}]'


def rule_for(path: str) -> tuple[PolicyRule, str]:
    """The rule to follow `/apis/GROUP/VERSION/namespaces/NAMESPACE/RESOURCE`, or `/api/v1/...`, and the namespace."""
    # bounded: a path of ours
    parts = path.strip("/").split("/")
    group = parts[1] if parts[0] == "apis" else ""
    return PolicyRule(group, parts[-1], ("get", "list", "watch")), parts[-2]


LIST_SLICES: Final = PolicyRule("discovery.k8s.io", "endpointslices", ("list", "watch"))
GET_SERVICES: Final = PolicyRule("", "services", ("get", "list"))
LIST_PODS: Final = PolicyRule("", "pods", ("list",))
GET_NODES: Final = PolicyRule("", "nodes", ("get",))
WATCH_PODS: Final = PolicyRule("", "pods", ("get", "list", "watch"))
_BUILT_IN_GROUPS: Final = ("", "discovery.k8s.io")


def explain_refusal(code: int | None, text: str, rule: PolicyRule, namespace: str) -> str:
    """`text` and what to do about it. `rule`: what the request needed."""
    if code == 403:
        return (
            f"{text}\nThe service account needs this rule in a Role of the namespace {namespace}, bound to it by a "
            f"RoleBinding:\n{rule.manifest()}"
        )
    if code == 401:
        return f"{text}: the credentials are not accepted; is the token or the kubeconfig of another cluster?"
    if code == 404 and rule.group in _BUILT_IN_GROUPS:
        return f"{text}: it serves no {rule.resource} there; is this a Kubernetes API server, 1.21 or newer?"
    if code == 404:
        return (
            f"{text}: the CustomResourceDefinition {rule.qualified} is not installed, or not in this version"
        )
    return text
