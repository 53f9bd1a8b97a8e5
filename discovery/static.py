"""Fixed addresses, for people who have neither a cluster nor a shared directory. Host names are resolved again and
again; a list in a file is read again when it changes. Every namespace and component has the same instances.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from discovery.endpoints_file import FixedEndpoint, parse_hosts, read_endpoints_file
from discovery.instance import Instance
from discovery.source import Candidate, ComponentKey, Report, Snapshot

INCARNATION: Final = ""
"""A fixed address says nothing about who lives there: a restart shows in the metadata's revision only."""
_LOOK: Final = 0.5
"""Seconds between two looks at the list."""
_RESOLVE: Final = 5.0
"""Seconds between two resolutions of a host name."""


class StaticSource:
    """The truth is the list that `read` gives (ValueError, OSError: no sound list).

    Without a sound list at first `run` raises; later the last good one stays and the watch is degraded.
    """

    def __init__(self, read: Callable[[], list[FixedEndpoint]], *, watched: bool = True) -> None:
        self._read = read
        self._watched = watched
        self._names = ResolvedNames()

    async def run(self, key: ComponentKey, report: Report) -> None:
        listed = self._read()
        last: Snapshot | None = None
        while True:
            await self._names.refresh(listed)
            snapshot = Snapshot(tuple(self._candidates(key, listed)))
            if snapshot != last:
                report(snapshot)
            listed, was_degraded = await self._next_list(listed, report)
            last = None if was_degraded else snapshot

    async def _next_list(
        self, listed: list[FixedEndpoint], report: Report
    ) -> tuple[list[FixedEndpoint], bool]:
        """The list a moment later, and whether there was none to be had meanwhile."""
        was_degraded = False
        while True:
            await asyncio.sleep(_LOOK)
            try:
                return (self._read() if self._watched else listed), was_degraded
            except (OSError, ValueError) as error:
                report.degraded(str(error))
                was_degraded = True

    def suspect(self, key: ComponentKey, instance_id: str) -> None:
        """A list knows nothing of the living."""

    async def components(self) -> list[ComponentKey]:
        """Every name means the same list."""
        return []

    async def aclose(self) -> None:
        """Nothing is held between runs."""

    def _candidates(self, key: ComponentKey, listed: list[FixedEndpoint]) -> Iterator[Candidate]:
        for endpoint in listed:
            addresses = [endpoint.address] if endpoint.is_literal else self._names.addresses(endpoint.address)
            if not addresses:
                yield Candidate(
                    endpoint.name or endpoint.address,
                    reason=f"its name {endpoint.address!r} does not resolve: {self._names.problem(endpoint.address)}",
                )
            for address in addresses:
                instance = Instance(
                    id=endpoint.instance_id(address),
                    namespace=key.namespace,
                    component=key.component,
                    address=address,
                    port=endpoint.port,
                    incarnation=INCARNATION,
                    labels=endpoint.labels,
                )
                yield Candidate(instance.id, instance)


class ResolvedNames:
    """Host names and their addresses; a name that stops resolving keeps its last addresses."""

    def __init__(self) -> None:
        self._addresses: dict[str, list[str]] = {}
        self._problems: dict[str, str] = {}
        self._resolved_at: dict[str, float] = {}

    def addresses(self, name: str) -> list[str]:
        return self._addresses.get(name, [])

    def problem(self, name: str) -> str:
        return self._problems.get(name, "not asked yet")

    async def refresh(self, listed: list[FixedEndpoint]) -> None:
        """Ask anew for every name whose answer is old."""
        now = asyncio.get_running_loop().time()
        names = {endpoint.address for endpoint in listed if not endpoint.is_literal}
        old = [name for name in names if now - self._resolved_at.get(name, -_RESOLVE) >= _RESOLVE]
        await asyncio.gather(*(self._resolve(name, now) for name in old))

    async def _resolve(self, name: str, now: float) -> None:
        self._resolved_at[name] = now
        try:
            found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except OSError as error:
            self._problems[name] = error.strerror or str(error)
        else:
            self._addresses[name] = sorted({str(entry[4][0]) for entry in found})


def open_static(hosts: str, path: str) -> StaticSource:
    """The source of `static://host:port,...` or `static:///file.yaml`; ValueError when it is neither."""
    if hosts and path not in ("", "/"):
        raise ValueError(f"static://{hosts}{path} names hosts and a path; expected host:port,... or ///file")
    if hosts:
        listed = parse_hosts(hosts)
        return StaticSource(lambda: listed)
    if path in ("", "/"):
        raise ValueError(
            "static:// names no endpoint; expected static://host:port,... or static:///file.yaml"
        )
    return StaticSource(lambda: read_endpoints_file(Path(path)))
