"""Parses `host:port` lists and the endpoints file of the Go endpoint picker's `file-discovery`:

endpoints:
  - name: vllm-0            # a DNS-1123 subdomain; name.namespace is the id where two namespaces have the name
    namespace: default      # optional
    address: 10.0.0.1       # IPv4, IPv6 or a host name (the Go picker: IPv4 only)
    port: "8000"            # a number or a string
    labels: {}              # optional
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from adsum.addresses import authority, check_host, is_ip, split_authority
from adsum.changing_files import ChangingFile
from adsum.command_line import install_hint
from adsum.config.problems import yaml_problem
from adsum.config.sections import describe_fault
from discovery.instance import check_instance_id

FILE_LIMIT: Final = 1024 * 1024
_MAX_DEPTH: Final = 20
"""Levels of nesting; a valid file has four."""
_LOGGED: Final = 10
"""Endpoints named in one log line."""


@dataclass(frozen=True, slots=True)
class FixedEndpoint:
    """One endpoint. `name` None: its id is made of address and port."""

    address: str
    port: int
    name: str | None = None
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def is_literal(self) -> bool:
        return is_ip(self.address)

    @property
    def authority(self) -> str:
        return authority(self.address, self.port)

    def instance_id(self, ip: str) -> str:
        """The id of the instance at `ip`: a host name can have several addresses."""
        dashed = _dashed(ip)
        if self.name is not None:
            return self.name if self.is_literal else f"{self.name}-{dashed}"
        return f"{dashed}-{self.port}"


def parse_hosts(text: str) -> list[FixedEndpoint]:
    """`host:port,[::1]:8000,...`. Raises ValueError with the invalid entry."""
    # bounded: the operator's URL
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    if not entries:
        raise ValueError("no endpoint is named; expected host:port,host:port,...")
    return [parse_host(entry) for entry in entries]


def parse_host(entry: str) -> FixedEndpoint:
    """One `host:port`, IPv6 in brackets. Raises ValueError with the entry."""
    host, port = split_authority(entry)
    try:
        return FixedEndpoint(check_host(host), port)
    except ValueError as error:
        raise ValueError(f"{entry!r}: {error}") from error


def describe_change(old: Iterable[FixedEndpoint], new: Iterable[FixedEndpoint]) -> str:
    """Say in one line which endpoints were added, removed and changed; "" if none."""
    before, after = ({e.name or e.authority: e for e in listed} for listed in (old, new))
    groups = {
        "added": [name for name in after if name not in before],
        "removed": [name for name in before if name not in after],
        "changed": [name for name in after if name in before and before[name] != after[name]],
    }
    return "; ".join(f"{what} {_join_names(names)}" for what, names in groups.items() if names)


def _join_names(names: list[str]) -> str:
    rest = f" and {len(names) - _LOGGED} more" if len(names) > _LOGGED else ""
    return ", ".join(names[:_LOGGED]) + rest


class EndpointsFile(ChangingFile[list[FixedEndpoint]]):
    """An endpoints file; each call returns the list, read again if the file changed. Raises OSError and ValueError."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, read_endpoints_file)


def read_endpoints_file(path: Path) -> list[FixedEndpoint]:
    """The list, which must be valid as a whole. Raises OSError, and ValueError with the place of the fault."""
    with path.open("rb") as file:
        raw = file.read(FILE_LIMIT + 1)
    if len(raw) > FILE_LIMIT:
        raise ValueError(f"{path} is larger than {FILE_LIMIT} bytes")
    try:
        listed = _EndpointsDocument.model_validate(_decode(raw, path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise ValueError(f"{path}: {_line(raw, where)}{where}: {describe_fault(first)}") from error
    try:
        names = _instance_names(listed.endpoints)
    except _EntryError as error:
        where = f"endpoints.{error.index}.name"
        raise ValueError(f"{path}: {_line(raw, where)}{where}: {error}") from error
    return [
        FixedEndpoint(e.address, e.port, name, e.labels)
        for e, name in zip(listed.endpoints, names, strict=True)
    ]


class _EndpointEntry(BaseModel):
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

    @field_validator("address")
    @classmethod
    def _is_a_host(cls, address: str) -> str:
        return check_host(address)


class _EndpointsDocument(BaseModel):
    model_config = ConfigDict(extra="forbid")

    endpoints: list[_EndpointEntry]


class _EntryError(ValueError):
    """An entry that contradicts another one; `index`: its place in the list."""

    def __init__(self, index: int, text: str) -> None:
        super().__init__(text)
        self.index = index


def _instance_names(listed: Iterable[_EndpointEntry]) -> list[str]:
    """The id of each endpoint: its name, or `name.namespace` if several namespaces have that name. Raises `_EntryError`."""
    listed = list(listed)
    times = Counter(endpoint.name for endpoint in listed)
    seen: dict[str, _EndpointEntry] = {}
    for index, endpoint in enumerate(listed):
        name = endpoint.name
        if times[name] > 1:
            try:
                name = check_instance_id(f"{name}.{endpoint.namespace}")
            except ValueError as error:
                raise _EntryError(index, str(error)) from error
        if (other := seen.get(name)) is not None and other.name == endpoint.name:
            text = f"the name {other.name!r} appears twice in namespace {other.namespace!r}"
            raise _EntryError(index, text)
        if other is not None:
            text = f"two endpoints would have the instance id {name!r}: give one of them another name"
            raise _EntryError(index, text)
        seen[name] = endpoint
    return list(seen)


def _decode(raw: bytes, path: Path) -> Any:
    try:
        if path.suffix == ".json":
            return json.loads(raw)
        import yaml  # from an extra that only YAML files need

        # libyaml, if PyYAML was built with it: ten times as fast
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        _check_depth(yaml.parse(raw, Loader=loader))
        return yaml.load(raw, Loader=loader)  # noqa: S506  # both are safe loaders
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{path}: reading YAML needs PyYAML: {install_hint('epp')}; or use a .json file"
        ) from error
    except Exception as error:
        raise ValueError(f"{path} is neither YAML nor JSON: {yaml_problem(error)}") from error


def _line(raw: bytes, where: str) -> str:
    """`line 3: ` for the place of a fault in a file that could be decoded; empty if PyYAML is not there to find it."""
    try:
        import yaml

        from adsum.config.yaml_document import YamlDocument
    except ModuleNotFoundError:
        return ""
    try:
        root = yaml.compose(raw, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError):  # JSON that is no YAML, such as "\ud800"
        return ""
    line = YamlDocument(None, root, ()).line(where)
    return "" if line is None else f"line {line}: "


def _check_depth(events: Iterable[object]) -> None:
    """Raises ValueError for deep nesting: libyaml recurses on the C stack, and an overflow there kills the process."""
    depth = 0
    for event in events:
        kind = type(event).__name__
        depth += kind.endswith("StartEvent") - kind.endswith("EndEvent")
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")


def _dashed(ip: str) -> str:
    address = ip_address(ip)
    return str(address).replace(".", "-") if address.version == 4 else address.exploded.replace(":", "-")
