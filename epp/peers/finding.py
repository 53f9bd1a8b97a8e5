"""Finds the other pickers at `--peers URL`, and lets them find this one, as a worker is found."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Never

import discovery
import registry
from adsum.addresses import authority
from adsum.logs import RateLimitedLog
from epp.config.settings import Settings

COMPONENT_SUFFIX: Final = "-picker"
PORT_LABEL: Final = "adsum-peer-port"
_LOOK_AGAIN: Final = 5.0
"""Seconds until a source of peers that failed is asked again."""

log = logging.getLogger(__name__)


class PeerFinder:
    """Raises ValueError for a URL that is none of discovery's."""

    def __init__(self, url: str, settings: Settings, clock: Callable[[], float]) -> None:
        try:
            discovery.open(url, silent_after=0)
        except ValueError as error:
            raise ValueError(f"--peers: {error}") from None
        self._url = url
        self._key = settings.namespace, settings.component + COMPONENT_SUFFIX
        self._processes = settings.processes
        self._limited_log = RateLimitedLog(log, clock, most=20)
        self.looked = asyncio.Event()
        """Set once those that were there at first were tried, or the source failed."""

    async def follow(
        self,
        replace: Callable[[Sequence[str]], Awaitable[None]],
        add: Callable[[str], object],
        remove: Callable[[str], None],
    ) -> Never:
        """`replace` gets all addresses, each time the source was opened; returns once they were tried."""
        while True:
            problem = "the watch of the other pickers ended"
            try:
                # no GETs of theirs: a peer that is silent is noticed by its stream
                async with (
                    discovery.open(self._url, silent_after=0) as found,
                    found.watch(*self._key) as events,
                ):
                    named = [self._addresses(one) for one in events.instances.values()]
                    await replace([address for some in named for address in some])
                    self.looked.set()
                    async for event in events:
                        is_gone = isinstance(event, discovery.InstanceRemovedEvent)
                        for address in self._addresses(event.instance):
                            (remove if is_gone else add)(address)
            except (discovery.AdsumError, OSError) as error:
                problem = str(error)
            self.looked.set()
            self._limited_log.warning("source", "--peers: %s; it is asked again", problem)
            await asyncio.sleep(_LOOK_AGAIN)

    def _addresses(self, instance: discovery.Instance) -> list[str]:
        """One of each process: those that register say their ports, and a Pod has as many processes as this one."""
        if PORT_LABEL in instance.labels:
            return [_address_of(instance)]
        ports = range(instance.port, instance.port + self._processes)
        return [authority(instance.address, port) for port in ports]

    @property
    def registers(self) -> bool:
        """On Kubernetes the slices of a Service name the pickers, and a list is one already."""
        # bounded: the operator's flag
        return self._url.split("://", 1)[0] not in ("kubernetes", "static")

    async def register(self, host: str, port: int) -> Never:
        labels = {PORT_LABEL: str(port)}
        while True:
            try:
                async with (
                    registry.open(self._url, address=_announced(host), labels=labels) as opened,
                    opened.register_instance(*self._key) as handle,
                ):
                    handle.set_ready("ready")
                    await asyncio.Event().wait()
            except (discovery.AdsumError, OSError) as error:
                self._limited_log.warning("register", "--peers: %s; it is tried again", error)
            await asyncio.sleep(_LOOK_AGAIN)


def _address_of(instance: discovery.Instance) -> str:
    port = instance.labels.get(PORT_LABEL, "")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5
    return authority(instance.address, int(port) if is_port else instance.port)


def _announced(host: str) -> str | None:
    """The address at which others reach this picker; None: from this machine only."""
    if host not in ("::", "0.0.0.0"):  # noqa: S104  # it is compared
        return host
    return os.environ.get("POD_IP")
