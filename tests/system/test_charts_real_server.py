"""What the charts render, put before the real API server: every field is one that it knows, and a picker runs with it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.eventually import eventually
from tests.system.api_client import Administrator
from tests.system.charts import Object, container, one, render
from tests.system.cluster import Cluster
from tests.system.inference_extension import (
    NEW_GROUP,
    OLD_GROUP,
    POOL_GROUP,
    create,
    install,
    model_servers,
    picker_pod,
)
from tests.system.test_charts import RENDERINGS
from tests.system.test_charts_dispatcher import VALUES as DISPATCHER
from tests.system.test_charts_gateway import VALUES as GATEWAY
from tests.system.test_charts_of_pods import GO_VALUES, IMAGE, LABELS

ALL: Final[list[tuple[str, Mapping[str, Any]]]] = [
    *RENDERINGS,
    *(("gateway", values) for values in GATEWAY),
    *(("dispatcher", values) for values in DISPATCHER),
    ("epp", GO_VALUES),
    (
        "epp",
        {
            **IMAGE,
            "modelServers": {"matchLabels": LABELS},
            "nodeZones": True,
            "autoscaling": {"enabled": True},
            "networkPolicy": {
                "enabled": True,
                "gateways": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}],
                "monitoring": [{"podSelector": {"matchLabels": {"a": "b"}}}],
            },
            "metricsAuth": {"enabled": True, "secretName": "token"},
        },
    ),
]
ELSEWHERE: Final = {"PodMonitor", "ServiceMonitor", "HTTPRoute", "DestinationRule"}
"""Their CRDs belong to other projects, and are not in this server."""


async def place(admin: Administrator, obj: Object) -> str:
    """The path where objects of this kind are created."""
    version = obj["apiVersion"]
    base = f"/apis/{version}" if "/" in version else f"/api/{version}"
    known = (await admin.ask("GET", base))["resources"]
    (resource,) = [one for one in known if one["kind"] == obj["kind"] and "/" not in one["name"]]
    inside = f"/namespaces/{obj['metadata']['namespace']}" if resource["namespaced"] else ""
    return f"{base}{inside}/{resource['name']}"


@pytest.mark.parametrize(("chart", "values"), ALL)
async def test_the_server_knows_every_field(cluster: Cluster, chart: str, values: Mapping[str, Any]) -> None:
    """A dry run is checked like a creation; with fieldValidation=Strict an unknown or doubled field is an error."""
    await install(cluster.admin, POOL_GROUP, NEW_GROUP, OLD_GROUP)
    created = 0
    for obj in render(chart, values, "r", cluster.namespace):
        if (
            obj["kind"] in ELSEWHERE
            or obj["metadata"].get("namespace", cluster.namespace) != cluster.namespace
        ):
            continue
        params = {"dryRun": "All", "fieldValidation": "Strict"}
        await cluster.admin.ask("POST", await place(cluster.admin, obj), obj, params)
        created += 1
    assert created


async def grant(cluster: Cluster, objects: list[Object]) -> None:
    """The rights of a release, in effect, and its account's token mounted."""
    kinds = ("ServiceAccount", "Role", "RoleBinding")
    await cluster.install([found for found in objects if found["kind"] in kinds])


def pod_arguments(objects: list[Object], folder: Path) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of the picker's container as kubelet gives them; the ConfigMap's files are in `folder`."""
    picker = container(objects, "epp")
    for found in objects:
        if found["kind"] == "ConfigMap":
            for name, text in found["data"].items():
                (folder / name).write_text(text)
    arguments = [word.replace("=/config/", f"={folder}/") for word in picker["args"]]
    fields = {"metadata.namespace": one(objects, "Role")["metadata"]["namespace"], "metadata.name": "r-abc-x"}
    variables = {
        variable["name"]: variable.get("value") or fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        for variable in picker["env"]
    }
    return arguments, variables


@pytest.mark.parametrize("create_pool", [True, False], ids=["pool", "pods"])
async def test_a_picker_of_the_go_chart_s_values_follows_the_pods(
    cluster: Cluster, tmp_path: Path, create_pool: bool
) -> None:
    """With the account and the Role that the chart gives it, and nothing else."""
    await install(cluster.admin, POOL_GROUP, NEW_GROUP, OLD_GROUP)
    router = {
        "epp": {"flags": {"v": 4}, "pluginsConfigFile": "default-plugins.yaml"},
        "modelServers": {"matchLabels": {"app": "vllm"}, "targetPorts": [{"number": 3000}, {"number": 3002}]},
        "inferencePool": {"create": create_pool},
        "monitoring": {"prometheus": {"auth": {"enabled": False}}},
        "inferenceObjectives": [{"name": "batch", "priority": -1}] if create_pool else [],
    }
    objects = render("epp", {**IMAGE, "router": router}, "r", cluster.namespace)
    await grant(cluster, objects)
    for found in objects:
        if found["kind"] in ("InferencePool", "InferenceObjective"):
            await create(cluster, found)
    arguments, variables = pod_arguments(objects, tmp_path)
    async with (
        model_servers(cluster, "vllm", 3000, 3002, count=2) as pods,
        picker_pod(cluster, arguments, variables) as picker,
    ):
        expected = {f"{pod.address}:{port}" for pod in pods for port in (3000, 3002)}

        async def followed() -> bool:
            return await picker.destinations() == expected

        await eventually(followed)
        await eventually(picker.serves)
        if create_pool:

            async def objective() -> bool:
                return bool((await picker.resource("InferenceObjective"))["count"] == 1)

            await eventually(objective)


def test_the_server_is_asked_about_every_chart() -> None:
    charts = {path.parent.name for path in Path(__file__).parents[2].glob("charts/*/Chart.yaml")}
    assert {chart for chart, _ in ALL} == charts
