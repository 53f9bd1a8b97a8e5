"""The kinds that the fake serves."""

from tests.kubernetes.fake.rv_log import Object

KINDS = {
    "endpointslices": ("EndpointSlice", "discovery.k8s.io/v1"),
    "services": ("Service", "v1"),
    "pods": ("Pod", "v1"),
}


def typed(resource: str, obj: Object) -> Object:
    """With kind and apiVersion, which the items of a list do not carry."""
    kind, version = KINDS[resource]
    return {"kind": kind, "apiVersion": version, **obj}
