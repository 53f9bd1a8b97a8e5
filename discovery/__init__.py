"""Service discovery for LLM inference: list the instances of a component, watch them, read their metadata.

Each name is imported at its first use, each backend when `open` needs it: `import discovery` must stay fast.
"""

from typing import TYPE_CHECKING

from adsum.imports import lazy_imports

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
    from discovery.errors import AdsumError as AdsumError
    from discovery.errors import DiscoveryError as DiscoveryError
    from discovery.errors import DiscoveryTimeoutError as DiscoveryTimeoutError
    from discovery.errors import ForbiddenError as ForbiddenError
    from discovery.errors import InputFileError as InputFileError
    from discovery.errors import MetadataUnavailableError as MetadataUnavailableError
    from discovery.errors import RegistrationError as RegistrationError
    from discovery.errors import WorkerUnreachableError as WorkerUnreachableError
    from discovery.events import InstanceAddedEvent as InstanceAddedEvent
    from discovery.events import InstanceEvent as InstanceEvent
    from discovery.events import InstanceRemovedEvent as InstanceRemovedEvent
    from discovery.events import InstanceUpdatedEvent as InstanceUpdatedEvent
    from discovery.events import RemovalReason as RemovalReason
    from discovery.explanation import ExplainedCandidate as ExplainedCandidate
    from discovery.explanation import Explanation as Explanation
    from discovery.instance import Instance as Instance
    from discovery.instance import InstanceStatus as InstanceStatus
    from discovery.metadata.client import MetadataClient as MetadataClient
    from discovery.opening import default_url as default_url
    from discovery.opening import open as open
    from discovery.service import ServiceDiscovery as ServiceDiscovery
    from discovery.service import SourceDiscovery as SourceDiscovery
    from discovery.source import Candidate as Candidate
    from discovery.source import ComponentKey as ComponentKey
    from discovery.source import Report as Report
    from discovery.source import Snapshot as Snapshot
    from discovery.source import Source as Source
    from discovery.waiting import wait_for_instances as wait_for_instances
    from discovery.watch import InstanceEventStream as InstanceEventStream
    from discovery.watch import WatchHealth as WatchHealth
    from discovery.watch import WatchState as WatchState
else:
    __getattr__, __dir__, __all__ = lazy_imports(__name__, _EXPORTS)
