"""The static source: fixed addresses, where there is neither a cluster nor a shared directory.

Host names are resolved every 5 s, a file is read again when it changes. Every namespace and component has the same
instances.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import unquote

import anyio
import anyio.to_thread

from discovery.instance import Instance
from discovery.source import Candidate, ComponentKey, Report, Snapshot, Source
from discovery.static.endpoints_file import EndpointsFile, FixedEndpoint, describe_change, parse_hosts

INCARNATION: Final = ""
"""An address does not tell one life of a worker from the next: only the metadata's revision shows a restart."""
_READ_INTERVAL: Final = 0.5
"""Seconds between two checks of the file."""
_RESOLVE_INTERVAL: Final = 5.0
"""Seconds between two resolutions of a host name. `getaddrinfo` does not return the TTL of DNS records, so there is one
interval for all; Envoy's STRICT_DNS clusters resolve as often by default (`dns_refresh_rate`)."""

log = logging.getLogger(__name__)

_Read: TypeAlias = Callable[[], Awaitable[list[FixedEndpoint]]]


class StaticSource(Source):
    """Membership is the list that `read` returns. `read` runs in a thread and may raise ValueError or OSError. Returning the
    same object means that nothing changed, and costs nothing.

    If the first list cannot be read, `run` raises. Later the last valid list stays in use, the watch is degraded, and the
    log says why.
    """

    needs_documents = False

    def __init__(self, read: Callable[[], list[FixedEndpoint]], *, watched: bool = True) -> None:
        self._read = read
        self._watched = watched
        self._names = ResolvedNames()

    async def run(self, key: ComponentKey, report: Report) -> None:
        # one thread at most, which cancellation abandons: the file may be on a disk that hangs
        read = partial(
            anyio.to_thread.run_sync, self._read, limiter=anyio.CapacityLimiter(1), abandon_on_cancel=True
        )
        listed = await read()
        last = listed
        reported: Snapshot | None = None
        changes = 0
        while True:
            await self._names.refresh(listed)
            if reported is None or listed is not last or changes != self._names.changes:
                if listed is not last and (changed := describe_change(last, listed)):
                    log.info("the list of endpoints changed: %s", changed)
                last, changes = listed, self._names.changes
                snapshot = Snapshot(tuple(self._candidates(key, listed)))
                if snapshot != reported:
                    report(snapshot)
                reported = snapshot
            listed, was_degraded = await self._next_list(listed, read, report)
            if was_degraded:
                reported = None

    async def _next_list(
        self, listed: list[FixedEndpoint], read: _Read, report: Report
    ) -> tuple[list[FixedEndpoint], bool]:
        """The next valid list, and whether the watch was degraded meanwhile."""
        reason = None
        while True:
            # by polling: editors and ConfigMap volumes replace the file, which a watch of the old one would miss
            await asyncio.sleep(_READ_INTERVAL)
            try:
                listed = await read() if self._watched else listed
            except (OSError, ValueError) as error:
                before, reason = reason, _one_line(error)
                if reason != before:
                    log.warning("%s; the last valid list of endpoints stays in use", reason)
                    report.degraded(reason)
            else:
                if reason is not None:
                    log.info("the list of endpoints is valid again; before: %s", reason)
                return listed, reason is not None

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
    """Resolves host names. A name that stops resolving keeps its last addresses: an outage of DNS is not one of workers."""

    def __init__(self) -> None:
        self._addresses: dict[str, list[str]] = {}
        self._problems: dict[str, str] = {}
        self._resolved_at: dict[str, float] = {}
        self.changes = 0

    def addresses(self, name: str) -> list[str]:
        return self._addresses.get(name, [])

    def problem(self, name: str) -> str:
        return self._problems.get(name, "not resolved yet")

    async def refresh(self, listed: list[FixedEndpoint]) -> None:
        """Resolve the names whose last resolution is too old."""
        now = asyncio.get_running_loop().time()
        names = {endpoint.address for endpoint in listed if not endpoint.is_literal}
        old = [
            name
            for name in names
            if now - self._resolved_at.get(name, -_RESOLVE_INTERVAL) >= _RESOLVE_INTERVAL
        ]
        await asyncio.gather(*(self._resolve(name, now) for name in old))

    async def _resolve(self, name: str, now: float) -> None:
        self._resolved_at[name] = now
        before = self.addresses(name), self.problem(name)
        try:
            found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            self._problems[name] = getattr(error, "strerror", None) or str(error)
        else:
            addresses = {str(entry[4][0]) for entry in found}
            self._problems[name] = f"{', '.join(sorted(addresses))} is of use on one machine only"
            # an address with a zone index (RFC 4007 §6) is valid on this host only, and readers may be elsewhere
            self._addresses[name] = sorted(address for address in addresses if "%" not in address)
        self.changes += before != (self.addresses(name), self.problem(name))


def _one_line(error: OSError | ValueError) -> str:
    """The error in one line; YAML parsers use several. For files, the path first."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    # bounded: a message of the YAML reader
    return " ".join(str(error).split())


def open_static(url: str) -> StaticSource:
    """The source of `static://host:port,...` or `static:///file.yaml`. Raises ValueError for anything else."""
    hosts, slash, path = url.partition("://")[2].partition("/")
    path = unquote(slash + path)
    if hosts and path not in ("", "/"):
        raise ValueError(f"static://{hosts}{path} names hosts and a path; expected host:port,... or ///file")
    if hosts:
        listed = parse_hosts(hosts)
        return StaticSource(lambda: listed, watched=False)
    if path in ("", "/"):
        raise ValueError(
            "static:// names no endpoint; expected static://host:port,... or static:///file.yaml"
        )
    return StaticSource(EndpointsFile(Path(path)))
