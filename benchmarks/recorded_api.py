"""`python -m benchmarks.recorded_api`: an API server's bytes for one list and its watches, in a process of its own.

Prints its address. `few` is a Service of 1 slice, `many` one of 100, with 100 endpoints each. Lines on standard input:

    WHO COMPONENT changed  send MODIFIED on the watch: one endpoint becomes unready, the next time ready again
    WHO COMPONENT burst    send that for each of a slice's endpoints, one after the other, without a pause
    WHO COMPONENT expired  end the watch as one whose version is too old (410)
    swap                   from now on lists show other pods

WHO is `ours` for requests of our own user agent, else `theirs`.
"""

import asyncio
import json
import sys
import uuid
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from aiohttp import web

PATH: Final = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
NAMESPACE: Final = "bench"
SLICES: Final = {"few": 1, "many": 100}
ENDPOINTS: Final = 100

_VERSION: Final = b"@version@"


@dataclass(slots=True, eq=False)
class _Watch:
    request: web.Request
    response: web.StreamResponse
    expired: asyncio.Event
    unready: set[int] = field(default_factory=set)

    @property
    def is_read(self) -> bool:
        """Whether its client is still connected."""
        return self.request.transport is not None and not self.request.transport.is_closing()


class RecordedApi:
    """Lists and watches generated slices, with the field order and sizes of a real controller, without managedFields."""

    def __init__(self) -> None:
        self._version = 1000
        self._generation = 0
        self._lists: dict[tuple[str, int], bytes] = {}
        self._watches: defaultdict[tuple[str, str], asyncio.Queue[_Watch]] = defaultdict(asyncio.Queue)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        component = next(name for name in SLICES if f"-{name}-" in request.query["labelSelector"])
        if "watch" not in request.query:
            return web.Response(body=self._list(component), content_type="application/json")
        client = "ours" if request.headers.get("User-Agent") == "adsum" else "theirs"
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        watch = _Watch(request, response, asyncio.Event())
        self._watches[client, component].put_nowait(watch)
        await watch.expired.wait()
        return response

    async def execute(self, order: str) -> None:
        match order.split():
            case ["swap"]:
                self._generation += 1
            case [client, component, "expired"]:
                await self._expire(await self._open_watch(client, component))
            case [client, component, "changed" | "burst" as kind]:
                watch = await self._open_watch(client, component)
                await self._change(watch, component, ENDPOINTS if kind == "burst" else 1)
                self._watches[client, component].put_nowait(watch)

    async def _open_watch(self, client: str, component: str) -> "_Watch":
        while not (watch := await self._watches[client, component].get()).is_read:
            pass
        return watch

    async def _change(self, watch: "_Watch", component: str, count: int) -> None:
        for index in range(count):
            self._version += 1
            watch.unready ^= {index}
            line = _line(component, self._generation, frozenset(watch.unready))
            await watch.response.write(line.replace(_VERSION, b"%d" % self._version))

    async def _expire(self, watch: "_Watch") -> None:
        status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
        await watch.response.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
        watch.expired.set()

    def _list(self, component: str) -> bytes:
        key = component, self._generation
        if key not in self._lists:
            items = [a_slice(component, number, self._generation) for number in range(SLICES[component])]
            listed = {"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "items": items}
            self._lists[key] = json.dumps(listed, separators=(",", ":")).encode().removesuffix(b"}")
        return self._lists[key] + b',"metadata":{"resourceVersion":"%d"}}' % self._version


@cache
def _line(component: str, generation: int, unready: frozenset[int]) -> bytes:
    """A line of a watch, cached so that the next event does not wait for its encoding."""
    shown = a_slice(component, 0, generation, _VERSION.decode(), unready)
    return json.dumps({"type": "MODIFIED", "object": shown}, separators=(",", ":")).encode() + b"\n"


def a_slice(
    component: str, number: int, generation: int, version: str = "1000", unready: Collection[int] = ()
) -> dict[str, Any]:
    """Slice `number` of the Service; `unready`: the indices of endpoints that are not ready."""
    service, name = f"dynamo-{component}-service", f"{component}-{number:03}"
    metadata = {
        "name": f"dynamo-{component}-service-{number:05}",
        "generateName": f"dynamo-{component}-service-",
        "namespace": NAMESPACE,
        "uid": str(uuid.uuid5(uuid.NAMESPACE_OID, name)),
        "resourceVersion": version,
        "generation": 1000,
        "creationTimestamp": "2026-11-21T08:00:00Z",
        "labels": {
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            "kubernetes.io/service-name": service,
        },
        "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-11-21T08:00:00Z"},
    }
    endpoints = [
        _endpoint(f"{name}-g{generation}-{index:03}", number, index, ready=index not in unready)
        for index in range(ENDPOINTS)
    ]
    return {
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": metadata,
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    }


def _endpoint(pod: str, number: int, index: int, *, ready: bool) -> dict[str, Any]:
    return {
        "addresses": [f"10.{number}.1.{index}"],
        "conditions": {"ready": ready, "serving": ready, "terminating": False},
        "targetRef": {
            "kind": "Pod",
            "namespace": NAMESPACE,
            "name": pod,
            "uid": str(uuid.uuid5(uuid.NAMESPACE_OID, pod)),
        },
        "nodeName": f"node-{index % 16}.example.internal",
        "zone": f"zone-{index % 3}",
    }


async def main() -> None:
    api = RecordedApi()
    app = web.Application()
    app.router.add_get(PATH, api.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    loop = asyncio.get_running_loop()
    while order := await loop.run_in_executor(None, sys.stdin.readline):
        await api.execute(order)


if __name__ == "__main__":
    asyncio.run(main())
