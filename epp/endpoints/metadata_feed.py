"""Applies discovery's events, with each instance's metadata, to the datastore, and logs each event."""

import logging
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from typing import Any, Final

from adsum.logs import RateLimitedLog
from discovery import (
    InstanceAddedEvent,
    InstanceEvent,
    InstanceRemovedEvent,
    InstanceUpdatedEvent,
    MetadataUnavailableError,
)
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Key

logger = logging.getLogger(__name__)

LINES_A_MINUTE: Final = 100
"""Of one kind about workers: one of them may change its document a hundred times a second, and a pool may be large."""


async def follow_discovery(
    events: AsyncIterable[InstanceEvent],
    datastore: Datastore,
    on_event: Sequence[Callable[[InstanceEvent], None]] = (),
) -> None:
    """Apply events until the stream ends; raises what the stream raises. `on_event`: told of each."""
    ignored: dict[Key, tuple[str, ...]] = {}
    limited = RateLimitedLog(logger, most=LINES_A_MINUTE)
    async for event in events:
        limited.info(type(event).__name__, "%s", _describe(event))
        for told in on_event:
            told(event)
        document: Mapping[str, Any] | None = None
        if not isinstance(event, InstanceRemovedEvent):
            try:
                document = await event.instance.metadata()
            except MetadataUnavailableError as error:
                limited.warning("no metadata", "%s; its last known metadata are kept", error)
        endpoint = datastore.apply(event, document)
        if endpoint is not None:
            before = ignored.pop(endpoint.key, ())
            if endpoint.ignored and not isinstance(event, InstanceRemovedEvent):
                ignored[endpoint.key] = endpoint.ignored
                for one in endpoint.ignored if endpoint.ignored != before else ():
                    limited.warning("ignored", "%s: %s", endpoint.id, one)


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
