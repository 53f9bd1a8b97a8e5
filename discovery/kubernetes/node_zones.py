"""Zones of nodes, for Pods without a zone label: one GET for each node, where the rights allow."""

import asyncio
from collections.abc import Callable, Collection
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
    """`on_found` is called with nodes whose zones became known. A node's zone never changes while it exists."""

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
            await self._wake.wait()
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

    async def _ask(self, node: str) -> ApiReadError | None:
        try:
            found = await read_api(self._transport, f"{_NODES}/{node}", {}, Node)
        except ApiReadError as error:
            if error.code != 404:
                return error
            self._zones[node] = None
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
