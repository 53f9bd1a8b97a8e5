"""How an API server says no, as an HTTP status or as an ERROR event: one shape for both; the Role rules to add. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from discovery.kubernetes.wire import Status

_TOO_LARGE: Final = "ResourceVersionTooLarge"
_LONGEST_WAIT: Final = 300.0
"""Seconds of a Retry-After that are believed; more is a mistake of somebody's clock or unit."""


@dataclass(frozen=True, slots=True)
class ApiRefusal:
    """`code` as HTTP has it. `wait`: seconds that the server asks for. `too_large`: it does not know our version."""

    code: int
    text: str
    wait: float | None = None
    too_large: bool = False


def read_refusal(code: int, status: Status, headers: Mapping[str, str] | None = None) -> ApiRefusal:
    """From an HTTP answer (`headers`) or an ERROR event (none, and `code` is the Status' own)."""
    details = status.details
    causes = (details.causes if details is not None else None) or ()
    seconds = details.retry_after_seconds if details is not None else None
    said = (headers or {}).get("Retry-After", "")
    if said.isascii() and said.isdigit():
        seconds = int(said)
    wait = min(float(seconds), _LONGEST_WAIT) if seconds and (code == 429 or code >= 500) else None
    too_large = code == 504 and (any(c.reason == _TOO_LARGE for c in causes) or "Too large" in status.message)
    return ApiRefusal(code, _text(code, status), wait, too_large)


def _text(code: int, status: Status) -> str:
    said = f": {status.message}" if status.message else ""
    return f"HTTP {code}{f' {status.reason}' if status.reason else ''}{said}"[:1000]


@dataclass(frozen=True, slots=True)
class Right:
    """One rule of a Role."""

    group: str
    resource: str
    verbs: tuple[str, ...]

    def rule(self) -> str:
        """As in a manifest."""
        return f'- apiGroups: ["{self.group}"]\n  resources: ["{self.resource}"]\n  verbs: [{", ".join(self.verbs)}]'


LIST_SLICES: Final = Right("discovery.k8s.io", "endpointslices", ("list", "watch"))
GET_SERVICES: Final = Right("", "services", ("get", "list"))
LIST_PODS: Final = Right("", "pods", ("list",))


def explain_refusal(code: int | None, said: str, right: Right, namespace: str) -> str:
    """What the API server said, and what to do about it."""
    if code == 403:
        return (
            f"{said}\nThe service account needs this rule in a Role of the namespace {namespace}, bound to it by a "
            f"RoleBinding:\n{right.rule()}"
        )
    if code == 401:
        return f"{said}: the credentials are not accepted; is the token or the kubeconfig of another cluster?"
    if code == 404:
        return f"{said}: it serves no {right.resource} there; is this a Kubernetes API server, 1.21 or newer?"
    return said
