"""The Role rules that the code needs, as the manifest lines to add, and what a refusal means. Pure."""

from dataclasses import dataclass
from typing import Final


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
