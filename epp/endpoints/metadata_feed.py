"""Applies discovery's events, with each instance's metadata, to the datastore, and logs each event."""

import logging
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from typing import Any

from discovery import (
    InstanceAddedEvent,
    InstanceEvent,
    InstanceRemovedEvent,
    InstanceUpdatedEvent,
    MetadataUnavailableError,
)
from epp.endpoints.datastore import Datastore

logger = logging.getLogger(__name__)


async def follow_discovery(
    events: AsyncIterable[InstanceEvent],
    datastore: Datastore,
    on_event: Sequence[Callable[[InstanceEvent], None]] = (),
) -> None:
    """Apply events until the stream ends; raises what the stream raises. `on_event`: told of each."""
    async for event in events:
        logger.info("%s", _describe(event))
        for told in on_event:
            told(event)
        document: Mapping[str, Any] | None = None
        if not isinstance(event, InstanceRemovedEvent):
            try:
                document = await event.instance.metadata()
            except MetadataUnavailableError as error:
                logger.warning("%s; its last known metadata are kept", error)
        datastore.apply(event, document)


def _describe(event: InstanceEvent) -> str:
    who = f"{event.instance.id} (metadata at {event.instance.authority})"
    match event:
        case InstanceRemovedEvent(_, reason):
            return f"{who} is gone: {reason}"
        case InstanceAddedEvent(instance):
            return f"{who} is there{'' if instance.reachable else ', and avoided: it does not answer or is not ready'}"
        case InstanceUpdatedEvent(old, new) if old.reachable != new.reachable:
            return f"{who} {'answers again' if new.reachable else 'is avoided: it does not answer or is not ready'}"
    return f"{who} changed"
