"""A picker and the custom resources of its InferencePool, over HTTP to a fake API server."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from discovery.kubernetes import Cluster, ClusterTransport, Timings
from discovery.kubernetes.pods.selection import POOL_GROUP
from epp.kubernetes.inference_resources import PoolIdentity
from epp.kubernetes.pool_resources import PoolResources, ResourceReaders, open_pool_resources
from epp.server import PickerServer
from tests.epp.local_picker import addresses, local
from tests.eventually import eventually
from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.api_server import FakeApiServer

QUICK = Timings(backoff=(0.05, 0.1), relist_interval=(600.0, 600.0))
REF = {"group": POOL_GROUP, "kind": "InferencePool", "name": "vllm"}


def pool(**labels: str) -> dict[str, Any]:
    spec = {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 8000}]}
    return {"metadata": {"name": "vllm", "labels": labels}, "spec": spec}


def objective(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": spec}


class Told:
    """What a picker is told."""

    def __init__(self) -> None:
        self.reasons: list[str | None] = []
        self.priorities: dict[str, int] = {}
        self.rules: list[Any] = []

    @property
    def readers(self) -> ResourceReaders:
        return ResourceReaders(self.reasons.append, self._set_priorities, self._set_rules)

    def _set_priorities(self, given: Any) -> None:
        self.priorities = dict(given)

    def _set_rules(self, given: Any) -> None:
        self.rules = list(given)


@pytest.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer(FakeApi()) as server:
        yield server


@asynccontextmanager
async def following(api: FakeApiServer, told: Told) -> AsyncIterator[PoolResources]:
    transport = ClusterTransport(Cluster(api.url))
    identity = PoolIdentity("default", "vllm")
    async with PoolResources(transport, identity, told.readers, timings=QUICK, recheck=0.1) as resources:
        yield resources


async def test_a_picker_serves_while_its_pool_exists(api: FakeApiServer) -> None:
    settings = local(discovery=f"kubernetes://default?pool=vllm&server={api.url}")
    async with PickerServer(settings) as picker, aiohttp.ClientSession() as client:
        metrics = addresses(picker)["metrics"]

        async def status() -> tuple[bool, str | None]:
            async with client.get(f"http://{metrics}/status") as answer:
                said = json.loads(await answer.text())
                return said["serving"], said["reason"]

        absent = False, f"there is no InferencePool vllm of {POOL_GROUP} in the namespace default"
        assert await status() == absent
        for _ in range(2):
            api.api.put("inferencepools", pool())
            await eventually(lambda: _equal(status, (True, None)))
            api.api.log.delete("inferencepools", "default", "vllm")
            await eventually(lambda: _equal(status, absent))


async def _equal(asked: Any, expected: Any) -> bool:
    return bool(await asked() == expected)


async def test_a_pool_that_is_being_deleted_is_none(api: FakeApiServer) -> None:
    told, leaving = Told(), pool()
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    api.api.put("inferencepools", leaving)
    async with following(api, told):
        assert told.reasons[-1] is not None
        api.api.put("inferencepools", pool())
        await eventually(lambda: told.reasons[-1] is None)


async def test_a_picker_that_gateways_ask_on_another_port_is_told(
    api: FakeApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    def referring(port: int, **more: str) -> dict[str, Any]:
        made = pool()
        made["spec"]["endpointPickerRef"] = {"name": "picker", "port": {"number": port}, **more}
        return made

    api.api.put("inferencepools", referring(9003, failureMode="FailOpen"))
    transport = ClusterTransport(Cluster(api.url))
    identity, readers = PoolIdentity("default", "vllm"), Told().readers
    async with PoolResources(transport, identity, readers, grpc_port=9002, timings=QUICK) as resources:
        described = resources.describe()["pool"]
        assert described["endpoint_picker_ref"] == {
            "name": "picker",
            "port": 9003,
            "failure_mode": "FailOpen",
        }
        problem = described["endpoint_picker_ref_problem"]
        assert problem.startswith(
            "endpointPickerRef names port 9003 of the Service 'picker', and this picker listens on 9002"
        )
        assert "follow failureMode 'FailOpen'" in problem
        api.api.put("inferencepools", referring(9002))
        await eventually(lambda: resources.describe()["pool"]["endpoint_picker_ref_problem"] is None)
        assert resources.describe()["pool"]["endpoint_picker_ref"]["failure_mode"] == "FailClose"
    assert len([line for line in caplog.messages if "endpointPickerRef names port 9003" in line]) == 1


async def test_an_outage_of_the_api_server_changes_nothing(api: FakeApiServer) -> None:
    told = Told()
    api.api.put("inferencepools", pool())
    api.api.put("inferenceobjectives", objective("a", priority=1, poolRef=REF))
    async with following(api, told) as resources:
        await eventually(lambda: told.priorities == {"a": 1})
        await api.stop()
        await eventually(lambda: resources.describe()["pool"]["problem"] is not None)
        assert (told.reasons[-1], told.priorities) == (None, {"a": 1})
        await api.start()
        api.api.put("inferenceobjectives", objective("a", priority=2, poolRef=REF))
        await eventually(lambda: told.priorities == {"a": 2})


async def test_labels_of_the_pool_decide_who_selects_it(api: FakeApiServer) -> None:
    told = Told()
    api.api.put("inferencepools", pool(team="a"))
    selector = {"matchLabels": {"team": "b"}}
    api.api.put("inferenceobjectives", objective("x", priority=4, poolSelector=selector))
    async with following(api, told) as resources:
        await eventually(lambda: resources.describe()["resources"][0]["count"] == 1)
        assert told.priorities == {}
        api.api.put("inferencepools", pool(team="b"))
        await eventually(lambda: told.priorities == {"x": 4})


async def test_an_objective_that_cannot_be_read_is_named_and_left_out(
    api: FakeApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told()
    api.api.put("inferencepools", pool())
    api.api.put("inferenceobjectives", objective("bad", priority="high", poolRef=REF))
    async with following(api, told) as resources:
        await eventually(lambda: resources.describe()["resources"][0]["left_out"].keys() == {"bad"})
        api.api.put("inferenceobjectives", objective("good", priority=1, poolRef=REF))
        await eventually(lambda: told.priorities == {"good": 1})
    assert caplog.text.count("the InferenceObjective bad is left out") == 1


async def test_only_a_pool_has_resources_of_its_own() -> None:
    for url in (
        "file:///x",
        "static://127.0.0.1:9",
        "kubernetes://ns?selector=a%3Db&ports=80&server=http://x",
    ):
        assert await open_pool_resources(url, Told().readers) is None
