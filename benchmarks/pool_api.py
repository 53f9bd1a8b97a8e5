"""`python -m benchmarks.pool_api`: the fake API server with 1,000 Pods, their InferencePool and their Service's slices.

Prints its address. Each line on standard input, `pods N` or `slices N`, changes the readiness of N
Pods or of N endpoints, one after the other, and there and back with the next line. It runs in a process of its own.
"""

import asyncio
import json
import sys
from typing import Any, Final

from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.api_server import FakeApiServer
from tests.kubernetes.fake.objects import SERVICE, inference_pool, pod, service
from tests.kubernetes.fake.slice_controller import SliceController

PODS: Final = 1000
LABELS: Final = {
    "app": "vllm",
    "nvidia.com/dynamo-namespace": "dynamo",
    "nvidia.com/dynamo-component": "decode",
}
_MANAGED: Final[dict[str, object]] = {
    f"f:{word}{n}": {} for word in ("env", "volume", "probe") for n in range(60)
}
"""As much as kubectl, the scheduler and kubelet note in `managedFields`; nobody reads it."""


def a_pod(number: int, *, ready: bool) -> dict[str, Any]:
    labels = {**LABELS, "topology.kubernetes.io/zone": f"zone-{number % 3}"}
    made = pod(
        f"vllm-6d5f7c9b4-{number:05}",
        f"10.244.{number // 250}.{number % 250 + 1}",
        labels=labels,
        node=f"node-{number % 125}",
        ready=ready,
        ports={"http": 8000},
        restarts=1,
    )
    environment = [{"name": f"VLLM_SETTING_{n}", "value": f"value-{n}"} for n in range(20)]
    made["spec"]["containers"][0] |= {"args": ["serve", "meta-llama/Llama-3.1-70B"], "env": environment}
    made["metadata"]["managedFields"] = [{"manager": "kubelet", "fieldsV1": _MANAGED}]
    return made


class Changes:
    """Writes what the next line asks for; each object is as it was after every second line."""

    def __init__(self, api: FakeApi) -> None:
        self._api = api
        self._unready = {"pods": False, "slices": False}

    def write(self, kind: str, count: int) -> None:
        self._unready[kind] ^= True
        ready = not self._unready[kind]
        for number in range(count):
            if kind == "pods":
                self._api.put("pods", a_pod(number, ready=ready))
            else:
                self._write_slice(number, ready)

    def _write_slice(self, number: int, ready: bool) -> None:
        name = self._api.log.objects("endpointslices", "default")[0]["metadata"]["name"]
        found = json.loads(json.dumps(self._api.log.get("endpointslices", "default", name)))
        found["endpoints"][number]["conditions"] |= {"ready": ready, "serving": ready}
        self._api.put("endpointslices", found)


async def main() -> None:
    api = FakeApi()
    for number in range(PODS):
        api.put("pods", a_pod(number, ready=True))
    api.put("pods", pod("one", "10.244.99.1", labels={"app": "one"}))
    api.put("services", service(SERVICE, selector=LABELS, ports={"http": 8000}))
    SliceController(api).sync(SERVICE)
    api.put("inferencepools", inference_pool("many", 8000, labels={"app": "vllm"}))
    api.put("inferencepools", inference_pool("few", 8000, labels={"app": "one"}))
    changes = Changes(api)
    async with FakeApiServer(api) as server:
        print(server.url, flush=True)
        loop = asyncio.get_running_loop()
        while order := await loop.run_in_executor(None, sys.stdin.readline):
            kind, count = order.split()
            changes.write(kind, int(count))


if __name__ == "__main__":
    asyncio.run(main())
