"""Applies discovery's events, with each instance's metadata, to the datastore; logs each event, and who is not there."""

import asyncio
import logging
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Never

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
"""Lines of one kind about workers: one worker may change its document a hundred times a second, and a pool may be large."""


async def follow_discovery(
    events: AsyncIterable[InstanceEvent],
    datastore: Datastore,
    on_event: Sequence[Callable[[InstanceEvent], None]] = (),
) -> None:
    """Apply events until the stream ends; raises what the stream raises. `on_event`: called with each."""
    ignored: dict[Key, tuple[str, ...]] = {}
    limited = RateLimitedLog(logger, most=LINES_A_MINUTE)
    async for event in events:
        _log_event(limited, event, datastore)
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


def _log_event(limited: RateLimitedLog, event: InstanceEvent, datastore: Datastore) -> None:
    if _is_news(event, datastore):
        is_lost = not event.instance.reachable and not isinstance(event, InstanceRemovedEvent)
        (limited.warning if is_lost else limited.info)(type(event).__name__, "%s", _describe(event))


def _is_news(event: InstanceEvent, datastore: Datastore) -> bool:
    """False if the log has said already that the worker seems dead, and this is a further sign of it."""
    key = event.instance.id, event.instance.incarnation
    match event:
        case InstanceRemovedEvent(_, reason):
            return reason not in ("deleted", "replaced") or not datastore.seems_dead(key)
        case InstanceUpdatedEvent(old, new) if old.reachable and not new.reachable:
            return datastore.first_sign_of_death(key)
    return True


_AVOIDED: Final = "is avoided until it answers or is gone: its GET /metadata was cut off or is silent, or it says that it is not ready"


def _describe(event: InstanceEvent) -> str:
    who = f"{event.instance.id} (metadata at {event.instance.authority})"
    match event:
        case InstanceRemovedEvent(_, reason):
            return f"{who} is gone: {reason}"
        case InstanceAddedEvent(instance):
            return f"{who} is there{'' if instance.reachable else ', and avoided: it does not answer or is not ready'}"
        case InstanceUpdatedEvent(old, new) if old.reachable != new.reachable:
            return f"{who} {'answers again' if new.reachable else _AVOIDED}"
    return f"{who} changed"


_CHECK_INTERVAL: Final = 1.0
"""Seconds between two checks, and the time that a new worker has to answer."""
_MAX_NAMED: Final = 10
"""Warnings of one check: if the whole pool is cut off, the log must not fill up."""


class Consequence(Enum):
    """The consequence for requests, as log lines: one for a worker, one for those that are not named."""

    NO_REQUESTS = ("%s gets no requests: %s", "%d more get no requests; adsum discovery explain names them")
    NO_DOCUMENT = (
        "%s has no metadata document, and stays an endpoint because it is listed: %s",
        "%d more have no metadata document; adsum discovery explain names them",
    )


class MissingWorkers:
    """Warns of each missing worker once for each reason. `missing`: returns the reasons by instance id."""

    def __init__(
        self, missing: Callable[[], Mapping[str, str]], consequence: Consequence = Consequence.NO_REQUESTS
    ) -> None:
        self._missing = missing
        self._one, self._others = consequence.value
        self._missing_before: set[str] = set()
        self._warned: dict[str, str] = {}

    async def run(self, interval: float = _CHECK_INTERVAL) -> Never:
        """Check repeatedly until cancelled. Workers that are missing at the start have had their time already."""
        self._missing_before = set(self._missing())
        while True:
            self.check()
            await asyncio.sleep(interval)

    def check(self) -> None:
        """Warn of the workers that were missing at the last check too."""
        missing = self._missing()
        late = {i: reason for i, reason in missing.items() if i in self._missing_before}
        new = [i for i in sorted(late) if self._warned.get(i) != late[i]]
        for instance_id in new[:_MAX_NAMED]:
            logger.warning(self._one, instance_id, late[instance_id])
        if len(new) > _MAX_NAMED:
            logger.warning(self._others, len(new) - _MAX_NAMED)
        self._warned, self._missing_before = late, set(missing)
