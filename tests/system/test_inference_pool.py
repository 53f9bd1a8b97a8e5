"""A picker follows its InferencePool, InferenceObjectives and InferenceModelRewrites in a real API server."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp

from discovery.kubernetes import ClusterTransport, Timings
from epp.envoy.config import render
from epp.envoy.json_values import Address
from epp.envoy.settings import EnvoySettings
from epp.kubernetes.inference_resources import PoolIdentity
from epp.kubernetes.pool_resources import PoolResources, ResourceReaders
from epp.request.model_rewrite import RewriteRule
from tests.epp.conftest import envoy_running
from tests.eventually import asked_until, eventually
from tests.system.api_client import Administrator
from tests.system.api_process import ApiProcess
from tests.system.charts import Object
from tests.system.cluster import Cluster, a_cluster
from tests.system.inference_extension import (
    NEW_GROUP,
    OLD_GROUP,
    PICKER_AWAY,
    POOL_GROUP,
    ROLE,
    PickerPod,
    arguments_of_the_fixture,
    collection,
    create,
    custom,
    install,
    model_servers,
    picker_pod,
    pool,
    rights,
)

RESOURCES: Final = {
    "resources": ["inferenceobjectives", "inferencemodelrewrites"],
    "verbs": ["get", "list", "watch"],
}
WHOLE_ROLE: Final = (*ROLE, {"apiGroups": [NEW_GROUP, OLD_GROUP], **RESOURCES})
"""The rules of the Go picker's chart that concern a pool."""
QUICK: Final = Timings(backoff=(0.05, 0.2))
REF: Final = {"group": POOL_GROUP, "kind": "InferencePool", "name": "vllm"}


@asynccontextmanager
async def a_picker(cluster: Cluster, rules: Sequence[Object] = WHOLE_ROLE) -> AsyncIterator[PickerPod]:
    """Of the pool `vllm`, which need not be there."""
    await cluster.install(rights(cluster.namespace, rules))
    arguments = [*arguments_of_the_fixture("vllm", cluster.namespace), "--metrics-endpoint-auth=false"]
    async with picker_pod(cluster, arguments) as picker:
        yield picker


@asynccontextmanager
async def a_gateway() -> AsyncIterator[str]:
    """An Envoy before the picker; yields the URL of the completions."""
    local = Address("127.0.0.1", 0)
    async with envoy_running(render(EnvoySettings(listen=local, admin=local, access_log=""))) as envoy:
        yield envoy.url("/v1/completions")


async def send(url: str, model: str = "m", headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What the model server that was reached got."""
    body = {"model": model, "prompt": "hello"}
    async with asyncio.timeout(90), aiohttp.ClientSession() as client:
        while True:
            async with client.post(url, json=body, headers=headers) as answer:
                if answer.status == PICKER_AWAY:
                    await asyncio.sleep(0.1)
                    continue
                assert answer.status == 200, await answer.text()
                said: dict[str, Any] = await answer.json()
                return said


async def priorities(picker: PickerPod) -> set[str]:
    """Of all requests so far."""
    page = await picker.page("/metrics")
    return set(re.findall(r'^llm_d_epp_request_total\{.*priority="(-?[0-9]+)"', page, re.MULTILINE))


async def change_pool(cluster: Cluster, spec: Mapping[str, Any]) -> None:
    path = f"{collection(cluster, 'inferencepools')}/vllm"
    await cluster.admin.ask("PATCH", path, {"spec": spec}, kind="application/merge-patch+json")


async def delete(cluster: Cluster, resource: str, name: str, group: str, version: str) -> None:
    await cluster.admin.ask("DELETE", f"{collection(cluster, resource, group, version)}/{name}", {})


async def knows(picker: PickerPod, *destinations: str) -> None:
    await asked_until(picker.destinations, lambda found: found == set(destinations))


async def test_a_selector_and_ports_that_change_take_effect(cluster: Cluster) -> None:
    await install(cluster.admin, POOL_GROUP)
    await create(cluster, pool("vllm", "blue", 3000))
    async with (
        model_servers(cluster, "blue", 3000, count=1) as [blue],
        model_servers(cluster, "green", 3000, 3002, count=1) as [green],
        a_picker(cluster) as picker,
    ):
        await eventually(picker.serves)
        await knows(picker, f"{blue.address}:3000")
        await change_pool(cluster, {"selector": {"matchLabels": {"app": "green"}}})
        await knows(picker, f"{green.address}:3000")
        await change_pool(cluster, {"targetPorts": [{"number": 3000}, {"number": 3002}]})
        await knows(picker, f"{green.address}:3000", f"{green.address}:3002")
        await change_pool(cluster, {"endpointPickerRef": {"name": "another", "port": {"number": 9002}}})
        await change_pool(cluster, {"targetPorts": [{"number": 3002}]})
        await knows(picker, f"{green.address}:3002")
        assert await picker.serves()


async def test_a_pool_that_comes_goes_and_comes_again(cluster: Cluster) -> None:
    await install(cluster.admin, POOL_GROUP)

    async def refuses() -> bool:
        status = await picker.status()
        expected = f"there is no InferencePool vllm of {POOL_GROUP} in the namespace {cluster.namespace}"
        return not await picker.serves() and status["serving"] is False and expected in str(status["reason"])

    async with model_servers(cluster, "a", 3000, count=1) as [pod], a_picker(cluster) as picker:
        for _ in range(2):
            await eventually(refuses)
            await knows(picker)
            await create(cluster, pool("vllm", "a", 3000))
            await eventually(picker.serves)
            await knows(picker, f"{pod.address}:3000")
            assert (await picker.status())["reason"] is None
            await delete(cluster, "inferencepools", "vllm", POOL_GROUP, "v1")
        await eventually(refuses)
        assert picker.process.returncode is None
        await eventually(
            lambda: picker.log.read_text().count("NOT_SERVING: there is no InferencePool vllm") == 3
        )


async def test_objectives_give_priorities_and_rewrites_rewrite(cluster: Cluster) -> None:
    await install(cluster.admin, POOL_GROUP, NEW_GROUP, OLD_GROUP)
    await create(cluster, pool("vllm", "a", 3000))
    rule = {
        "matches": [{"model": {"type": "Exact", "value": "food"}}],
        "targets": [{"modelRewrite": "food-v2", "weight": 1}],
    }
    made = (
        custom(NEW_GROUP, "v1alpha2", "InferenceObjective", "batch", {"priority": 7, "poolRef": REF}),
        custom(NEW_GROUP, "v1alpha2", "InferenceModelRewrite", "food", {"poolRef": REF, "rules": [rule]}),
    )
    async with model_servers(cluster, "a", 3000, count=1) as [pod], a_picker(cluster) as picker:
        await knows(picker, f"{pod.address}:3000")
        async with a_gateway() as url:
            for obj in made:
                await create(cluster, obj)
            await asked_until(
                picker.status, lambda found: [one["count"] for one in found["resources"]] == [1, 1]
            )
            reached = await send(url, "food", {"x-llm-d-inference-objective": "batch"})
            assert json.loads(reached["body"])["model"] == "food-v2"
            assert await priorities(picker) == {"7"}
            await delete(cluster, "inferenceobjectives", "batch", NEW_GROUP, "v1alpha2")
            await delete(cluster, "inferencemodelrewrites", "food", NEW_GROUP, "v1alpha2")

            async def as_sent() -> bool:
                reached = await send(url, "food", {"x-llm-d-inference-objective": "batch"})
                return bool(json.loads(reached["body"])["model"] == "food") and await priorities(picker) == {
                    "7",
                    "0",
                }

            await eventually(as_sent)


async def test_without_the_rights_requests_are_served_and_the_missing_verb_is_named(cluster: Cluster) -> None:
    await install(cluster.admin, POOL_GROUP, NEW_GROUP)
    await create(cluster, pool("vllm", "a", 3000))
    async with model_servers(cluster, "a", 3000, count=1) as [pod], a_picker(cluster, ROLE) as picker:
        await knows(picker, f"{pod.address}:3000")
        await eventually(picker.serves)
        for kind, resource in (
            ("InferenceObjective", "inferenceobjectives"),
            ("InferenceModelRewrite", "inferencemodelrewrites"),
        ):

            async def named(kind: str = kind, resource: str = resource) -> bool:
                problem = str((await picker.resource(kind))["problem"])
                return f'resources: ["{resource}"]' in problem and "verbs: [get, list, watch]" in problem

            await eventually(named)
        async with a_gateway() as url:
            assert (await send(url))["pod"] == pod.name


async def test_conditions_are_written_where_the_role_allows_it_and_only_there(cluster: Cluster) -> None:
    """The Go picker writes none, and its Role allows none."""
    await install(cluster.admin, POOL_GROUP, NEW_GROUP)
    await create(cluster, pool("vllm", "a", 3000))
    rule = {"targets": [{"modelRewrite": "base"}]}
    await create(cluster, objective(NEW_GROUP, 1))
    await create(
        cluster,
        custom(NEW_GROUP, "v1alpha2", "InferenceModelRewrite", "all", {"poolRef": REF, "rules": [rule]}),
    )
    elsewhere = {"priority": 1, "poolRef": {**REF, "name": "another"}}
    await create(cluster, custom(NEW_GROUP, "v1alpha2", "InferenceObjective", "elsewhere", elsewhere))

    async def accepted(resource: str, name: str) -> str | None:
        path = f"{collection(cluster, resource, NEW_GROUP, 'v1alpha2')}/{name}"
        conditions = (await cluster.admin.ask("GET", path)).get("status", {}).get("conditions", ())
        return next((str(one["status"]) for one in conditions if one["type"] == "Accepted"), None)

    status = {"apiGroups": [NEW_GROUP], "resources": ["inferenceobjectives/status"], "verbs": ["patch"]}
    async with a_picker(cluster, (*WHOLE_ROLE, status)) as picker:
        await asked_until(lambda: accepted("inferenceobjectives", "batch"), lambda found: found == "True")
        await asked_until(lambda: picker.resource("InferenceModelRewrite"), lambda found: found["count"] == 1)
        assert await accepted("inferenceobjectives", "elsewhere") != "True", "it is of another pool"
        assert await accepted("inferencemodelrewrites", "all") != "True", "the Role does not allow it"


async def test_a_selector_needs_no_pool_and_no_other_right_than_pods(cluster: Cluster) -> None:
    """As the Go picker's chart without Gateway API starts it; NAMESPACE and POD_NAME come from the downward API."""
    await cluster.install(rights(cluster.namespace, ROLE[1:]))
    flags = ["--endpoint-selector", "app in (a,b),!old", "--endpoint-target-ports", "3000,3002"]
    pod_of_picker = {"NAMESPACE": cluster.namespace, "POD_NAME": "the-picker-7c9f8d-x2x9z"}
    async with (
        model_servers(cluster, "a", 3000, 3002, count=1) as [a],
        model_servers(cluster, "b", 3000, 3002, count=1) as [b],
        model_servers(cluster, "c", 3000, count=1),
        picker_pod(cluster, [*flags, "--metrics-endpoint-auth=false"], pod_of_picker) as picker,
    ):
        await eventually(picker.serves)
        await knows(picker, *(f"{pod.address}:{port}" for pod in (a, b) for port in (3000, 3002)))
        await cluster.admin.patch("pods", cluster.namespace, b.name, {"metadata": {"labels": {"old": "yes"}}})
        await knows(picker, *(f"{a.address}:{port}" for port in (3000, 3002)))
        await asked_until(
            lambda: picker.page("/metrics"),
            lambda found: 'llm_d_epp_ready_endpoints{name="the-picker"} 2.0' in found,
        )
        assert "resources" not in await picker.status()


async def test_definitions_may_be_installed_while_the_picker_runs_and_the_newer_group_counts(
    tmp_path: Path,
) -> None:
    """In a cluster of its own, which has no custom resource at first."""
    told = Told()
    with ApiProcess() as server:
        async with Administrator(server) as admin, a_cluster(admin, tmp_path) as cluster:
            await cluster.install(rights(cluster.namespace, WHOLE_ROLE))
            transport = ClusterTransport(await cluster.connect())
            pool_of = PoolIdentity(cluster.namespace, "vllm")
            resources = PoolResources(transport, pool_of, told.readers(), timings=QUICK, recheck=0.1)
            async with resources:
                await eventually(
                    lambda: "inferencepools" in str(told.reason) and "installed" in str(told.reason)
                )
                absent = "no CustomResourceDefinition inferenceobjectives is installed"
                described = partial(objectives_of, resources)
                await eventually(lambda: absent in str(described()["problem"]))
                assert (described()["api_version"], described()["count"]) == (None, 0)
                await install(admin, POOL_GROUP, OLD_GROUP)
                await create(cluster, pool("vllm", "a", 3000))
                await create(cluster, objective(OLD_GROUP, -1))
                await eventually(lambda: (told.reason, told.priorities) == (None, {"batch": -1}))
                await install(admin, NEW_GROUP)
                await eventually(lambda: told.priorities == {})
                await create(cluster, objective(NEW_GROUP, -2))
                await eventually(lambda: told.priorities == {"batch": -2})
                assert described()["api_version"] == f"{NEW_GROUP}/v1alpha2"


def objectives_of(resources: PoolResources) -> dict[str, Any]:
    """What the status page says of them."""
    objectives, _ = resources.describe()["resources"]
    return dict(objectives)


def objective(group: str, priority: int) -> Object:
    return custom(group, "v1alpha2", "InferenceObjective", "batch", {"priority": priority, "poolRef": REF})


@dataclass
class Told:
    """What a picker is told of its pool."""

    reason: str | None = "nothing yet"
    priorities: Mapping[str, int] = field(default_factory=dict)
    rules: Sequence[RewriteRule] = ()

    def readers(self) -> ResourceReaders:
        return ResourceReaders(
            pool=lambda reason: setattr(self, "reason", reason),
            priorities=lambda read: setattr(self, "priorities", dict(read)),
            rewrites=lambda rules: setattr(self, "rules", rules),
        )
