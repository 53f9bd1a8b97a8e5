"""Service discovery for LLM inference: list the instances of a component, watch them, read their metadata.

Each name is imported at its first use, each backend when `open` needs it: `import discovery` must stay fast.
"""

from typing import TYPE_CHECKING

from adsum.imports import lazy_imports

__all__ = [
    "AdsumError",
    "Candidate",
    "ComponentKey",
    "DiscoveryError",
    "DiscoveryTimeoutError",
    "ExplainedCandidate",
    "Explanation",
    "ForbiddenError",
    "InputFileError",
    "Instance",
    "InstanceAddedEvent",
    "InstanceEvent",
    "InstanceEventStream",
    "InstanceRemovedEvent",
    "InstanceStatus",
    "InstanceUpdatedEvent",
    "MetadataClient",
    "MetadataUnavailableError",
    "RegistrationError",
    "RemovalReason",
    "Report",
    "ServiceDiscovery",
    "Snapshot",
    "Source",
    "SourceDiscovery",
    "WatchHealth",
    "WatchState",
    "WorkerUnreachableError",
    "default_url",
    "open",
    "wait_for_instances",
]

_EXPORTS = {
    "discovery.errors": (
        "AdsumError",
        "DiscoveryError",
        "DiscoveryTimeoutError",
        "ForbiddenError",
        "InputFileError",
        "MetadataUnavailableError",
        "RegistrationError",
        "WorkerUnreachableError",
    ),
    "discovery.events": (
        "InstanceAddedEvent",
        "InstanceEvent",
        "InstanceRemovedEvent",
        "InstanceUpdatedEvent",
        "RemovalReason",
    ),
    "discovery.explanation": ("ExplainedCandidate", "Explanation"),
    "discovery.instance": ("Instance", "InstanceStatus"),
    "discovery.metadata.client": ("MetadataClient",),
    "discovery.opening": ("default_url", "open"),
    "discovery.service": ("ServiceDiscovery", "SourceDiscovery"),
    "discovery.source": ("Candidate", "ComponentKey", "Report", "Snapshot", "Source"),
    "discovery.waiting": ("wait_for_instances",),
    "discovery.watch": ("InstanceEventStream", "WatchHealth", "WatchState"),
}
"""The same as the imports below, which type checkers read."""

if TYPE_CHECKING:
    from discovery.errors import (
        AdsumError,
        DiscoveryError,
        DiscoveryTimeoutError,
        ForbiddenError,
        InputFileError,
        MetadataUnavailableError,
        RegistrationError,
        WorkerUnreachableError,
    )
    from discovery.events import (
        InstanceAddedEvent,
        InstanceEvent,
        InstanceRemovedEvent,
        InstanceUpdatedEvent,
        RemovalReason,
    )
    from discovery.explanation import ExplainedCandidate, Explanation
    from discovery.instance import Instance, InstanceStatus
    from discovery.metadata.client import MetadataClient
    from discovery.opening import default_url, open
    from discovery.service import ServiceDiscovery, SourceDiscovery
    from discovery.source import Candidate, ComponentKey, Report, Snapshot, Source
    from discovery.waiting import wait_for_instances
    from discovery.watch import InstanceEventStream, WatchHealth, WatchState
else:
    __getattr__, __dir__ = lazy_imports(__name__, _EXPORTS)
