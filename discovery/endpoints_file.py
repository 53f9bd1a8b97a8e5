"""Fixed endpoints as text: `host:port` lists, and the Go endpoint picker's `file-discovery` file (its docs/discovery.md).

endpoints:
  - name: vllm-0            # a DNS-1123 subdomain, unique within its namespace
    namespace: default      # optional
    address: 10.0.0.1       # IPv4, IPv6 or a host name (the Go picker: IPv4 only)
    port: "8000"            # a number or a string
    labels: {}              # optional
"""

import json
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from discovery.instance import check_instance_id

FILE_LIMIT: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FixedEndpoint:
    """One line of the list. `name` None: the id is made of the address and the port."""

    address: str
    port: int
    name: str | None = None
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def is_literal(self) -> bool:
        return _is_ip(self.address)

    def instance_id(self, ip: str) -> str:
        """The id of the instance at `ip`: a host name can mean several."""
        place = _dashed(ip)
        if self.name is not None:
            return self.name if self.is_literal else f"{self.name}-{place}"
        return f"{place}-{self.port}"


def parse_hosts(text: str) -> list[FixedEndpoint]:
    """`host:port,[::1]:8000,...`; ValueError names the entry that is none."""
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    if not entries:
        raise ValueError("no endpoint is named; expected host:port,host:port,...")
    return [parse_host(entry) for entry in entries]


def parse_host(entry: str) -> FixedEndpoint:
    """One `host:port`, IPv6 in brackets."""
    host, _, port = entry.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not _is_ip(host):
            raise ValueError(f"{entry!r}: {host!r} in brackets is not an IPv6 address")
    elif ":" in host:
        raise ValueError(f"{entry!r}: an IPv6 address needs brackets, as in [::1]:8000")
    if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError(f"{entry!r} is not host:port with a port from 1 to 65535")
    return FixedEndpoint(host.lower(), int(port))


def read_endpoints_file(path: Path) -> list[FixedEndpoint]:
    """What the file lists, all of it or nothing. OSError when it cannot be read, ValueError naming the wrong place."""
    with path.open("rb") as file:
        raw = file.read(FILE_LIMIT + 1)
    if len(raw) > FILE_LIMIT:
        raise ValueError(f"{path} is larger than {FILE_LIMIT} bytes")
    try:
        listed = _Endpoints.model_validate(_decode(raw, path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        said = "expected a mapping" if first["type"] == "model_type" else first["msg"]
        raise ValueError(f"{path}: {where}: {said}") from error
    seen: set[tuple[str, str]] = set()
    for endpoint in listed.endpoints:
        if (endpoint.namespace, endpoint.name) in seen:
            raise ValueError(
                f"{path}: the name {endpoint.name!r} stands twice in namespace {endpoint.namespace!r}"
            )
        seen.add((endpoint.namespace, endpoint.name))
    return [FixedEndpoint(e.address, e.port, e.name, e.labels) for e in listed.endpoints]


class _Listed(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    namespace: str = "default"
    address: str = Field(min_length=1)
    port: int = Field(ge=1, le=65535)
    labels: dict[str, str] = {}

    @field_validator("name")
    @classmethod
    def _is_an_id(cls, name: str) -> str:
        return check_instance_id(name)


class _Endpoints(BaseModel):
    model_config = ConfigDict(extra="forbid")

    endpoints: list[_Listed]


def _decode(raw: bytes, path: Path) -> Any:
    try:
        if path.suffix == ".json":
            return json.loads(raw)
        import yaml  # an extra: only who uses a YAML file needs it

        return yaml.safe_load(raw)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{path}: reading YAML needs PyYAML: pip install 'adsum[epp]', or use a .json file"
        ) from error
    except Exception as error:
        raise ValueError(f"{path} is neither YAML nor JSON: {error}") from error


def _is_ip(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _dashed(ip: str) -> str:
    address = ip_address(ip)
    return str(address).replace(".", "-") if address.version == 4 else address.exploded.replace(":", "-")
