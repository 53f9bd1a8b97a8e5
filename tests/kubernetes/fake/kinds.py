"""The kinds that the fake serves."""

from tests.kubernetes.fake.rv_log import Object

KINDS = {
    "endpointslices": ("EndpointSlice", "discovery.k8s.io/v1"),
    "services": ("Service", "v1"),
    "pods": ("Pod", "v1"),
}


GROUPS = ("/api/v1/", "/apis/discovery.k8s.io/v1/")


def group_of(resource: str) -> str:
    """The API group, "" for the core."""
    _, version = KINDS[resource]
    return version.rpartition("/")[0]


def about(resource: str, name: str) -> dict[str, str]:
    """How a Status names one object."""
    group = group_of(resource)
    return {**({"name": name} if name else {}), **({"group": group} if group else {}), "kind": resource}


def qualified(resource: str) -> str:
    """How a message names a kind."""
    group = group_of(resource)
    return f"{resource}.{group}" if group else resource


def typed(resource: str, obj: Object) -> Object:
    """With kind and apiVersion, which the items of a list do not carry."""
    kind, version = KINDS[resource]
    return {"kind": kind, "apiVersion": version, **obj}
