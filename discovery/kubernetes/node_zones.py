"""Zones of nodes, for Pods without a zone label: one GET for each node, where the rights allow."""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from itertools import islice
from typing import Final

from discovery.kubernetes.api_read import ApiReadError, read_api
from discovery.kubernetes.objects import Node
from discovery.kubernetes.pod_set import ZONE_LABEL
from discovery.kubernetes.refusal import GET_NODES
from discovery.kubernetes.timings import Timings
from discovery.kubernetes.transport import ApiTransport

_AT_ONCE: Final = 16
_NODES: Final = "/api/v1/nodes"


class NodeZones:
    """`on_found` is called with nodes whose zones became known. A node's zone never changes while it exists.

    A node that does not exist is asked for again later: a Pod may be bound before its node is readable.
    """

    def __init__(
        self, transport: ApiTransport, timings: Timings, on_found: Callable[[Collection[str]], object]
    ) -> None:
        self.problem: str | None = None
        """Why zones are not known. Of no importance to anything else, so it is not logged."""
        self._transport = transport
        self._timings = timings
        self._on_found = on_found
        self._zones: dict[str, str | None] = {}
        self._wanted: dict[str, None] = {}
        self._missing: dict[str, float] = {}
        """Nodes that do not exist, and until when that is believed; the earliest first."""
        self._wake = asyncio.Event()

    def zone(self, node: str) -> str | None:
        """The zone as far as it is known; an unknown one is asked for."""
        if node not in self._zones:
            self._wanted[node] = None
            self._wake.set()
        return self._zones.get(node)

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self._wait()
            # one request shows whether the right is there now, or the server answers again
            batch = list(islice(self._wanted, 1 if self.problem else _AT_ONCE))
            errors = await asyncio.gather(*map(self._ask, batch))
            if found := [node for node in batch if node in self._zones]:
                self._on_found(found)
            error = next(filter(None, errors), None)
            self.problem = None if error is None else _explain(error)
            if error is not None:
                # time does not heal a missing right; a new ClusterRole is noticed all the same
                waits = self._timings.relist_interval if error.code == 403 else self._timings.backoff
                await asyncio.sleep(waits[0] if error.code == 403 else waits[1])
            elif not self._wanted:
                self._wake.clear()

    async def _wait(self) -> None:
        """Until a node is wanted; whoever has a node that was missing for long asks for it again."""
        while not self._wake.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(next(iter(self._missing.values()), None)):
                    await self._wake.wait()
            now = asyncio.get_running_loop().time()
            forgotten = [node for node, until in self._missing.items() if until <= now]
            for node in forgotten:
                del self._missing[node], self._zones[node]
            if forgotten:
                self._on_found(forgotten)

    async def _ask(self, node: str) -> ApiReadError | None:
        try:
            found = await read_api(self._transport, f"{_NODES}/{node}", {}, Node)
        except ApiReadError as error:
            if error.code != 404:
                return error
            self._zones[node] = None
            self._missing[node] = asyncio.get_running_loop().time() + self._timings.relist_interval[0]
        else:
            self._zones[node] = (found.metadata.labels or {}).get(ZONE_LABEL)
        del self._wanted[node]
        return None


def _explain(error: ApiReadError) -> str:
    if error.code != 403:
        return f"the zones of their nodes are not known: {error}"
    return (
        f"the zones of their nodes are not known, which hurts nothing else: {error}\nA ClusterRole with this rule, bound to "
        f"the service account by a ClusterRoleBinding, shows them:\n{GET_NODES.manifest()}"
    )
