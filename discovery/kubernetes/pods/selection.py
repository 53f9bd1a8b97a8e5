"""Which Pods a label selector or an InferencePool selects, and which of their ports. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

_LIMIT: Final = 4096
_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = rf"(?:[a-z0-9](?:[-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_NAME}"
_VALUE = rf"(?:{_NAME})?"
# possessive quantifiers: in a row of spaces there is one way to match
_EQUALITY = rf"\s*+(?:==?|!=)\s*+{_VALUE}"
_SET = rf"\s++(?:in|notin)\s*+\(\s*+{_VALUE}\s*+(?:,\s*+{_VALUE}\s*+)*+\)"
_ORDER = r"\s*+[<>]\s*+[0-9]{1,19}"
# bounded: at most 4,096 characters
_REQUIREMENT: Final = re.compile(
    rf"\s*+(?:!\s*+{_KEY}|{_KEY}(?:{_EQUALITY}|{_SET}|{_ORDER})?)\s*+(?:,(?=.)|\Z)", re.ASCII | re.DOTALL
)
_MATCH_LABEL: Final = re.compile(rf"{_KEY}={_VALUE}", re.ASCII)


def check_label_selector(text: str) -> str:
    """Returns the selector. Raises ValueError if it is empty or not in the syntax of Kubernetes ("Labels and Selectors")."""
    at = 0
    while at < len(text) <= _LIMIT and (match := _REQUIREMENT.match(text, at)):
        at = match.end()
    if not text or at < len(text):
        raise ValueError(
            f"label selector {text[:200]!r} cannot be read{f' from {text[at : at + 40]!r} on' if at else ''}; expected "
            "requirements such as app=vllm, tier!=test, env in (a,b), gpu or !gpu, separated by commas"
        )
    return text


def match_labels_selector(labels: Mapping[str, str]) -> str:
    """The selector of `matchLabels`. Raises ValueError for what is no label."""
    found = [f"{key}={value}" for key, value in sorted(labels.items())]
    for requirement in found:
        if not _MATCH_LABEL.fullmatch(requirement):
            raise ValueError(f"{requirement[:200]!r} is not a label and its value")
    return ",".join(found)


POOL_GROUP: Final = "inference.networking.k8s.io"
OLD_POOL_GROUP: Final = "inference.networking.x-k8s.io"
POOL_VERSIONS: Final = {POOL_GROUP: "v1", OLD_POOL_GROUP: "v1alpha2"}

# bounded: at most 253 characters
_POOL_NAME: Final = re.compile(r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?", re.ASCII)
_MOST_PORTS: Final = 8
"""`targetPorts` has 1 to 8 items (InferencePool v1)."""


@dataclass(frozen=True, slots=True)
class PodTargets:
    """The Pods with these labels; each is one endpoint for each port. `selector` "": every Pod of the namespace."""

    selector: str
    ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PoolReference:
    """An InferencePool of the Kubernetes namespace."""

    name: str
    group: str = POOL_GROUP

    def __post_init__(self) -> None:
        if len(self.name) > 253 or not _POOL_NAME.fullmatch(self.name):
            raise ValueError(
                f"InferencePool name {self.name[:300]!r}; expected a DNS-1123 subdomain: lower-case letters, digits, "
                "'-' and '.'"
            )
        if self.group not in POOL_VERSIONS:
            raise ValueError(
                f"InferencePool group {self.group!r}; expected one of {', '.join(POOL_VERSIONS)}"
            )

    def path(self, namespace: str) -> str:
        """The path of all pools of that group in the namespace: to list and to watch."""
        return f"/apis/{self.group}/{POOL_VERSIONS[self.group]}/namespaces/{namespace}/inferencepools"


class LabelSelector(msgspec.Struct, frozen=True, rename="camel"):
    match_labels: dict[str, str]


class TargetPort(msgspec.Struct, frozen=True):
    number: int


class InferencePoolSpec(msgspec.Struct, frozen=True, rename="camel"):
    selector: LabelSelector
    target_ports: tuple[TargetPort, ...]


class OldInferencePoolSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of `inference.networking.x-k8s.io/v1alpha2`, which have other names and one port only."""

    selector: dict[str, str]
    target_port_number: int


def check_ports(ports: Iterable[int]) -> tuple[int, ...]:
    """Raises ValueError unless they are 1 to 8 different ports."""
    found = tuple(ports)
    if not 1 <= len(found) <= _MOST_PORTS or len(set(found)) < len(found):
        raise ValueError(f"target ports {_text(found)}; expected 1 to {_MOST_PORTS} different ports")
    if wrong := [port for port in found if not 1 <= port <= 65535]:
        raise ValueError(f"target port {wrong[0]}; expected 1 to 65535")
    return found


def read_targets(pool: Mapping[str, Any], group: str) -> PodTargets:
    """The targets of an InferencePool in JSON. ValueError for what its CustomResourceDefinition does not allow."""
    try:
        if group == OLD_POOL_GROUP:
            old = msgspec.convert(pool.get("spec"), OldInferencePoolSpec)
            return PodTargets(match_labels_selector(old.selector), check_ports([old.target_port_number]))
        spec = msgspec.convert(pool.get("spec"), InferencePoolSpec)
    except msgspec.ValidationError as error:
        raise ValueError(f"its spec cannot be read: {error}") from error
    ports = check_ports(port.number for port in spec.target_ports)
    return PodTargets(match_labels_selector(spec.selector.match_labels), ports)


def _text(ports: tuple[int, ...]) -> str:
    return ",".join(map(str, ports[:20])) or "(none)"
