"""Selects the EndpointSlices of a component: those of one Service, or those with Dynamo's labels. Pure."""

import re
from dataclasses import dataclass
from string import Formatter
from typing import Final, Protocol

from discovery.instance import COMPONENT_LABEL, NAMESPACE_LABEL
from discovery.source import ComponentKey

SERVICE_NAME_LABEL: Final = "kubernetes.io/service-name"
SERVICE_TEMPLATE: Final = "dynamo-{component}-service"

_FIELDS: Final = ("namespace", "component")
_SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)


class Selection(Protocol):
    """Finds the slices of a component."""

    def selector(self, key: ComponentKey) -> str:
        """The labelSelector of list and watch. ValueError for a key that no Service can have."""
        ...

    def service(self, key: ComponentKey) -> str | None:
        """The Service's name; None when labels may select several Services."""
        ...


@dataclass(frozen=True, slots=True)
class ServiceSelection:
    """By `kubernetes.io/service-name`, which the EndpointSlice controller sets on each slice. The default is Dynamo's name
    of a Service. It lacks the Dynamo namespace: two of them in one Kubernetes namespace need a template with
    `{namespace}`.
    """

    template: str = SERVICE_TEMPLATE

    def __post_init__(self) -> None:
        try:
            parts = list(Formatter().parse(self.template))
        except ValueError as error:
            raise ValueError(f"Service template {self.template!r}: {error}") from error
        for _, field, layout, conversion in parts:
            if field is not None and (field not in _FIELDS or layout or conversion):
                raise ValueError(
                    f"Service template {self.template!r}: {{{field}}} is unknown; "
                    "expected {namespace} and {component} only"
                )

    def selector(self, key: ComponentKey) -> str:
        return f"{SERVICE_NAME_LABEL}={self.service(key)}"

    def service(self, key: ComponentKey) -> str:
        name = self.template.format(namespace=key.namespace, component=key.component)
        if not _SERVICE_NAME.fullmatch(name):
            raise ValueError(
                f"{key}: the Service name {name!r} (from the template {self.template!r}) is not a DNS-1035 label: "
                "lower-case letters, digits and '-', starting with a letter, at most 63 characters"
            )
        return name


@dataclass(frozen=True, slots=True)
class LabelSelection:
    """By `nvidia.com/dynamo-namespace` and `-component`. The controller copies a Service's `metadata.labels` to its slices,
    and neither its selector nor the labels of pods: the Service itself needs both.
    """

    def selector(self, key: ComponentKey) -> str:
        return f"{NAMESPACE_LABEL}={key.namespace},{COMPONENT_LABEL}={key.component}"

    def service(self, key: ComponentKey) -> None:
        return None
