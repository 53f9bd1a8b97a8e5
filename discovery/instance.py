"""`Instance`, one registered worker, and the names of the wire contract: paths, headers, labels, rules for names."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address
from typing import Any, Final, Protocol

from adsum.addresses import authority, is_loopback
from discovery.errors import MetadataUnavailableError

METADATA_PATH: Final = "/metadata"
HEALTH_PATH: Final = "/health"
LIVE_PATH: Final = "/live"

INSTANCE_ID_HEADER: Final = "Instance-Id"
INSTANCE_INCARNATION_HEADER: Final = "Instance-Incarnation"
INSTANCE_STATUS_HEADER: Final = "Instance-Status"

METADATA_LIMIT: Final = 1024 * 1024
"""Largest metadata document in encoded bytes, for workers and readers."""

ENGINES: Final = (
    "vllm",
    "sglang",
    "trtllm-serve",
    "triton-tensorrt-llm",
    "triton",
    "llama.cpp",
    "tgi",
    "lmdeploy",
)
"""Values of `transport.http.engine` whose metrics the picker can read; its configuration may add more."""

NAMESPACE_LABEL: Final = "nvidia.com/dynamo-namespace"
COMPONENT_LABEL: Final = "nvidia.com/dynamo-component"

# labels and subdomains as Kubernetes restricts RFC 1123: lower case (kubernetes.io, "Object Names and IDs")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
# bounded: at most 200 characters
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_HOST_NAME = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?(\.[a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?)*",
    re.ASCII | re.IGNORECASE,
)
_INSTANCE_ID_LIMIT = 200
"""A Pod's name may have 253 characters, but a file's 255 bytes: `.<id>.json.<32 hexadecimal digits>.tmp` must fit."""


class InstanceStatus(StrEnum):
    """A worker's own status; only READY workers are instances."""

    READY = "ready"
    NOT_READY = "not_ready"
    DRAINING = "draining"

    @classmethod
    def _missing_(cls, value: object) -> "InstanceStatus":
        words = ", ".join(repr(status.value) for status in cls)
        raise ValueError(f"{value!r} is not an instance status; expected one of {words}")


class MetadataReader(Protocol):
    """Reads an instance's document: a `MetadataClient` by a GET, a watch with metadata from its pushed copy."""

    async def read(self, instance: "Instance") -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Instance:
    """One registered worker as the source of truth knows it. `port` serves the wire contract.

    `incarnation` is "" if the source knows only addresses. `ports`: by name, as in an EndpointSlice (TCP only), `port`
    among them. `revision` (the metadata's ETag) and `serving_port` (its `transport.http.port`) are set in
    `watch(..., metadata=True)` only, `reachable` in every watch.

    `rank`: for Pods that an InferencePool or a label selector selects, the index of the target port that this is. Its id
    is `<pod>-rank-<rank>`, its incarnation `<pod UID>/<container>`, and `port` serves whatever its metadata says.
    """

    id: str
    namespace: str
    component: str
    address: str
    port: int
    incarnation: str
    status: InstanceStatus = InstanceStatus.READY
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    zone: str | None = None
    node: str | None = None
    ports: Mapping[str, int] = field(default_factory=dict, hash=False)
    revision: str | None = None
    serving_port: int | None = None
    reachable: bool = True
    rank: int | None = None
    reader: MetadataReader | None = field(default=None, compare=False, repr=False)

    @property
    def authority(self) -> str:
        """`address:port`, IPv6 in brackets (RFC 3986 §3.2.2)."""
        return authority(self.address, self.port)

    @property
    def url(self) -> str:
        """Where requests go: to `serving_port` if it is known, else to `port`."""
        return f"http://{authority(self.address, self.serving_port or self.port)}"

    @property
    def registered_id(self) -> str:
        """By what a worker that registers itself calls itself: the Pod's name if this is one rank of it."""
        return self.id if self.rank is None else self.id.removesuffix(f"-rank-{self.rank}")

    @property
    def registered_incarnation(self) -> str:
        """As `registered_id`: the Pod's UID."""
        return self.incarnation if self.rank is None else self.incarnation.partition("/")[0]

    async def metadata(self) -> dict[str, Any]:
        """The worker's document, by a conditional GET or from the pushed copy. Raises `MetadataUnavailableError`."""
        if self.reader is None:
            raise MetadataUnavailableError(
                self.id,
                self.authority,
                "this instance has no metadata reader: take it from list_instances or watch",
            )
        return await self.reader.read(self)


def check_namespace(namespace: str) -> str:
    """Returns the namespace. Raises ValueError if it is not a DNS-1123 label."""
    return _check_label("namespace", namespace)


def check_component(component: str) -> str:
    """Returns the component. Raises ValueError if it is not a DNS-1123 label."""
    return _check_label("component", component)


def check_instance_id(instance_id: str) -> str:
    """Returns the id. Raises ValueError if it is not a DNS-1123 subdomain of at most 200 characters."""
    if len(instance_id) <= _INSTANCE_ID_LIMIT and _SUBDOMAIN.fullmatch(instance_id):
        return instance_id
    raise ValueError(
        f"instance id {instance_id!r} is not a DNS-1123 subdomain: lower-case letters, digits, '-' and '.', "
        f"starting and ending with a letter or digit, at most {_INSTANCE_ID_LIMIT} characters"
    )


def check_address(address: str) -> str:
    """Returns the address. Raises ValueError if it is not a host name or an IP address, without port or zone, that others
    can reach."""
    unspecified = address == "0.0.0.0"  # noqa: S104  # refused, not listened on
    if not _HOST_NAME.fullmatch(address):
        try:
            ip = ip_address(address)
        except ValueError as error:
            raise ValueError(
                f"address {address!r} is neither a host name nor an IP address (the port is an argument of its own)"
            ) from error
        if "%" in address:
            raise ValueError(f"address {address!r} has a zone, which only this machine knows: remove it")
        unspecified = ip.is_unspecified
    if unspecified:
        raise ValueError(f"nobody can reach {address!r}: give the host name or IP address that others use")
    return address


def _check_label(what: str, value: str) -> str:
    if isinstance(value, str) and _LABEL.fullmatch(value):
        return value
    raise ValueError(
        f"{what} {value!r} is not a DNS-1123 label: lower-case letters, digits and '-', "
        "starting and ending with a letter or digit, 1 to 63 characters"
    )


def find_same_address(instances: Iterable[Instance]) -> Mapping[str, list[str]]:
    """For each instance that shares its address and port, the sorted ids of the others there: one server was registered several
    times."""
    groups: dict[tuple[str, int, str | None], list[str]] = defaultdict(list)
    for instance in instances:
        groups[_server_key(instance)].append(instance.id)
    return {
        one: sorted(other for other in ids if other != one)
        for ids in groups.values()
        if len(ids) > 1
        for one in ids
    }


def _server_key(instance: Instance) -> tuple[str, int, str | None]:
    """Loopback addresses of different machines are different servers."""
    port = instance.serving_port or instance.port
    return instance.address, port, instance.node if is_loopback(instance.address) else None
