"""What the charts render, put before the real API server: every field is one that it knows, and a picker runs with it."""

import base64
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from epp.wire.messages.health_pb2 import HealthCheckResponse
from tests.eventually import asked_until, eventually
from tests.system.api_client import Administrator
from tests.system.charts import Object, container, one, render, workload
from tests.system.cluster import Cluster
from tests.system.inference_extension import (
    NEW_GROUP,
    OLD_GROUP,
    POOL_GROUP,
    create,
    install,
    model_servers,
    picker_pod,
    pool,
    rights,
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
            "dashboards": {"enabled": True},
            "prometheusRule": {"enabled": True},
        },
    ),
]
ELSEWHERE: Final = {"PodMonitor", "PrometheusRule", "ServiceMonitor", "HTTPRoute", "DestinationRule"}
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
    for found in objects:
        if found["kind"].startswith("ClusterRole"):
            await cluster.admin.ask("POST", await place(cluster.admin, found), found)
    kinds = ("ServiceAccount", "Role", "RoleBinding")
    await cluster.install([found for found in objects if found["kind"] in kinds])


def pod_arguments(objects: list[Object], folder: Path) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of the picker's container as kubelet gives them; what it mounts is in `folder`."""
    picker = container(objects, "epp")
    for found in objects:
        if found["kind"] == "ConfigMap":
            for name, text in found["data"].items():
                (folder / name).write_text(text)
        if found["kind"] == "Secret" and "token" in found.get("data", ()):
            (folder / "token").write_bytes(base64.b64decode(found["data"]["token"]))
    arguments = [word.replace("=/config/", f"={folder}/") for word in picker["args"]]
    arguments = [word.replace("=/etc/epp/peers/", f"={folder}/") for word in arguments]
    fields = {"metadata.namespace": workload(objects)["metadata"]["namespace"], "metadata.name": "r-abc-x"}
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
        await asked_until(picker.destinations, lambda found: found == expected)
        await eventually(picker.serves)
        if create_pool:
            await asked_until(
                lambda: picker.resource("InferenceObjective"), lambda found: found["count"] == 1
            )


def test_the_server_is_asked_about_every_chart() -> None:
    charts = {path.parent.name for path in Path(__file__).parents[2].glob("charts/*/Chart.yaml")}
    assert {chart for chart, _ in ALL} == charts


async def test_the_metrics_page_of_a_monitored_picker_is_for_the_token_that_the_chart_makes(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The Go chart's values for Prometheus: its token may read the page, a stranger's may not, and none may not."""
    await install(cluster.admin, POOL_GROUP, NEW_GROUP, OLD_GROUP)
    router = {
        "modelServers": {"matchLabels": {"app": "vllm"}},
        "monitoring": {"prometheus": {"enabled": True}},
    }
    objects = render("epp", {**IMAGE, "router": router}, "r", cluster.namespace)
    await grant(cluster, objects)
    await create(cluster, one(objects, "InferencePool"))
    account = one(objects, "ServiceAccount")["metadata"]["name"]
    (secret,) = [found for found in objects if found["kind"] == "Secret" and "data" not in found]
    assert secret["metadata"]["annotations"]["kubernetes.io/service-account.name"] == account
    token = await cluster.admin.account_token(cluster.namespace, account)
    stranger = await cluster.admin.account_token(cluster.namespace, "stranger")
    arguments, variables = pod_arguments(objects, tmp_path)
    async with picker_pod(cluster, arguments, variables) as picker, aiohttp.ClientSession() as client:
        await eventually(picker.serves)

        async def status(bearer: str) -> int:
            headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
            async with client.get("http://127.0.0.1:9090/metrics", headers=headers) as answer:
                return answer.status

        await eventually(lambda: _is(status(token), 200))
        assert await status("") == 401
        assert await status(stranger) == 403


async def _is(answer: Awaitable[int], expected: int) -> bool:
    return await answer == expected


GO_CHART: Final = (
    ("--pool-name", "vllm"),
    ("--pool-namespace", "{namespace}"),
    ("--pool-group", "inference.networking.k8s.io"),
    ("--zap-encoder", "json"),
    ("--config-file", "{folder}/default-plugins.yaml"),
    ("--ha-enable-leader-election",),
    ("--grpc-health-port", "9003"),
    ("--v=3",),
    ("--tracing=false",),
    ("--metrics-endpoint-auth=false",),
)
"""The arguments that the Go picker's chart renders for two replicas, in its order and its form."""
GO_CONFIGURATION: Final = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: metrics-data-source
  parameters: {scheme: "http", path: "/metrics", insecureSkipVerify: true}
- type: core-metrics-extractor
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
"""
"""What that chart mounts."""
GO_ROLE: Final = (
    {"apiGroups": [OLD_GROUP], "resources": ["inferenceobjectives", "inferencemodelrewrites"]},
    {"apiGroups": [NEW_GROUP], "resources": ["inferenceobjectives", "inferencemodelrewrites"]},
    {"apiGroups": [POOL_GROUP], "resources": ["inferencepools"]},
    {"apiGroups": [""], "resources": ["pods"]},
)
"""Its two Roles; each rule has the verbs get, watch and list."""


async def test_only_the_image_of_the_go_picker_s_chart_changes(cluster: Cluster, tmp_path: Path) -> None:
    """Its arguments, configuration, variables, rights and both of its probes."""
    await install(cluster.admin, POOL_GROUP, NEW_GROUP, OLD_GROUP)
    (tmp_path / "default-plugins.yaml").write_text(GO_CONFIGURATION)
    rules = [{**rule, "verbs": ["get", "watch", "list"]} for rule in GO_ROLE]
    await cluster.install(rights(cluster.namespace, rules, "vllm-epp"))
    words = [word for pair in GO_CHART for word in pair]
    arguments = [word.format(namespace=cluster.namespace, folder=tmp_path) for word in words]
    variables = {"NAMESPACE": cluster.namespace, "POD_NAME": "vllm-epp-7c9f-x"}
    await create(cluster, pool("vllm", "vllm", 3000))
    async with (
        model_servers(cluster, "vllm", 3000, count=2) as pods,
        picker_pod(cluster, arguments, variables) as picker,
    ):
        expected = {f"{pod.address}:3000" for pod in pods}
        await asked_until(picker.destinations, lambda found: found == expected)
        for service in ("inference-extension", "readiness", "liveness"):
            await eventually(lambda name=service: _is(picker.health(name), HealthCheckResponse.SERVING))
