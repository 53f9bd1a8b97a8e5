"""The kinds that the fake serves."""

from collections.abc import Collection

from tests.kubernetes.fake.rv_log import Object

OLD_POOLS = "inferencepools.inference.networking.x-k8s.io"
KINDS = {
    "endpointslices": ("EndpointSlice", "discovery.k8s.io/v1"),
    "services": ("Service", "v1"),
    "pods": ("Pod", "v1"),
    "nodes": ("Node", "v1"),
    "inferencepools": ("InferencePool", "inference.networking.k8s.io/v1"),
    OLD_POOLS: ("InferencePool", "inference.networking.x-k8s.io/v1alpha2"),
    "inferenceobjectives": ("InferenceObjective", "llm-d.ai/v1alpha2"),
    "inferencemodelrewrites": ("InferenceModelRewrite", "llm-d.ai/v1alpha2"),
}
"""By resource: its plural, and its group where two groups have the same plural."""


GROUPS = ("/api/v1/", "/apis/discovery.k8s.io/v1/")


def resource_at(group: str, plural: str) -> str:
    """The key in `KINDS` of a path's `/api/v1` or `/apis/GROUP/VERSION` and plural; "" if there is none."""
    version = group.removeprefix("/apis/").removeprefix("/api/")
    return next((r for r, (_, v) in KINDS.items() if v == version and plural_of(r) == plural), "")


def is_discovery(path: str) -> bool:
    """Whether it lists groups, or the resources of one: `/api`, `/apis`, `/api/v1`, `/apis/GROUP/VERSION`."""
    return path in ("/api", "/apis", "/api/v1") or (path.startswith("/apis/") and path.count("/") == 3)


def discovered(path: str, absent: Collection[str]) -> Object | None:
    """What clients with a REST mapper read first, without the resources `absent`; None if there is nothing."""
    versions = {version for resource, (_, version) in KINDS.items() if resource not in absent}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        named = sorted(version for version in versions if "/" in version)
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(version) for version in named]}
    asked = path.removeprefix("/apis/").removeprefix("/api/")
    listed = [described(r) for r, (_, version) in KINDS.items() if version == asked and r not in absent]
    if not listed:
        return None
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": asked, "resources": listed}


def _group(version: str) -> Object:
    one = {"groupVersion": version, "version": version.rpartition("/")[2]}
    return {"name": version.partition("/")[0], "versions": [one], "preferredVersion": one}


def described(resource: str) -> Object:
    """As an APIResourceList names it."""
    kind, _ = KINDS[resource]
    verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    names = {"name": plural_of(resource), "singularName": kind.lower(), "kind": kind}
    return {**names, "namespaced": True, "verbs": verbs, "storageVersionHash": "AAAAAAAAAAA="}


def plural_of(resource: str) -> str:
    return resource.partition(".")[0]


def group_of(resource: str) -> str:
    """The API group, "" for the core."""
    _, version = KINDS[resource]
    return version.rpartition("/")[0]


def about(resource: str, name: str) -> dict[str, str]:
    """How a Status names one object."""
    group = group_of(resource)
    kind = plural_of(resource)
    return {**({"name": name} if name else {}), **({"group": group} if group else {}), "kind": kind}


def qualified(resource: str) -> str:
    """How a message names a kind."""
    group = group_of(resource)
    return f"{plural_of(resource)}.{group}" if group else resource


def typed(resource: str, obj: Object) -> Object:
    """With kind and apiVersion, which the items of a list do not carry."""
    kind, version = KINDS[resource]
    return {"kind": kind, "apiVersion": version, **obj}
