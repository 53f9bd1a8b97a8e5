"""Who is there? Service discovery for LLM inference: list the instances of a component, watch them, read their metadata.

The words and the Protocols; backends are imported when `open` is asked for one.
"""

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
