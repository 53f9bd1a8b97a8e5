"""Which EndpointSlices belong to a component: those of one Service, or those that carry Dynamo's labels."""

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
    """How the slices of a component are found."""

    def selector(self, key: ComponentKey) -> str:
        """The labelSelector of list and watch. ValueError when the key cannot be selected."""
        ...

    def service(self, key: ComponentKey) -> str | None:
        """The name of the one Service, None when labels may select several."""
        ...


@dataclass(frozen=True, slots=True)
class ServiceSelection:
    """By the label that the EndpointSlice controller sets on each slice. The default is Dynamo's name; two
    namespaces in one Kubernetes namespace need a template with `{namespace}` in it.
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
                    f"Service template {self.template!r}: {{{field}}} means nothing; "
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
    """By `nvidia.com/dynamo-namespace` and `-component`. The controller copies a Service's own labels to its slices,
    never its selector: the Service must carry both in `metadata.labels`.
    """

    def selector(self, key: ComponentKey) -> str:
        return f"{NAMESPACE_LABEL}={key.namespace},{COMPONENT_LABEL}={key.component}"

    def service(self, key: ComponentKey) -> None:
        return None
