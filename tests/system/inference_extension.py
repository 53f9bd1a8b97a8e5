"""The Gateway API inference extension in the real API server: its CRDs, its pools, and a picker in a pod beside them."""

import asyncio
import copy
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml
from grpc import aio

from epp.wire.messages.health_pb2 import HealthCheckRequest, HealthCheckResponse
from tests.eventually import eventually
from tests.started import next_line, started
from tests.system.api_client import Administrator, ApiError
from tests.system.building import CRDS
from tests.system.charts import Object
from tests.system.cluster import Cluster, Pod

POOL_GROUP: Final = "inference.networking.k8s.io"
NEW_GROUP, OLD_GROUP = "llm-d.ai", "inference.networking.x-k8s.io"
DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

PICKER_AWAY: Final = 503
"""Envoy's answer while the picker gets no processor for 1.5 s (_KEEPALIVE in epp/envoy/config.py)."""
ROLE: Final = (
    {"apiGroups": [POOL_GROUP], "resources": ["inferencepools"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
)
"""The rights of the picker in the conformance tests (conformance/resources/base.yaml)."""


def definitions() -> list[Object]:
    """All CRDs of the module; and llm-d's, whose schemas are the same under another group."""
    found = [yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("*.yaml"))]
    assert found, f"there is no CRD in {CRDS}: run `make test-system`"
    moved = []
    for crd in found:
        if crd["spec"]["names"]["plural"] in ("inferenceobjectives", "inferencemodelrewrites"):
            made = copy.deepcopy(crd)
            made["spec"]["group"] = NEW_GROUP
            made["metadata"] = {"name": f"{crd['spec']['names']['plural']}.{NEW_GROUP}"}
            moved.append(made)
    return found + moved


async def install(admin: Administrator, *groups: str) -> None:
    """The CRDs of these groups, served; those that are there stay."""
    for crd in definitions():
        if crd["spec"]["group"] not in groups:
            continue
        try:
            await admin.ask("POST", DEFINITIONS, crd)
        except ApiError as error:
            if error.status != 409:
                raise
        await eventually(lambda name=crd["metadata"]["name"]: _established(admin, name))


async def _established(admin: Administrator, name: str) -> bool:
    found = await admin.ask("GET", f"{DEFINITIONS}/{name}")
    conditions = found.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


def pool(name: str, app: str, *ports: int, failure_mode: str = "FailClose") -> Object:
    """An InferencePool as those of the conformance tests."""
    picker = {"name": f"{name}-epp", "port": {"number": 9002}, "failureMode": failure_mode}
    spec = {
        "selector": {"matchLabels": {"app": app}},
        "targetPorts": [{"number": port} for port in ports],
        "endpointPickerRef": picker,
    }
    return custom(POOL_GROUP, "v1", "InferencePool", name, spec)


def custom(group: str, version: str, kind: str, name: str, spec: Mapping[str, Any]) -> Object:
    return {"apiVersion": f"{group}/{version}", "kind": kind, "metadata": {"name": name}, "spec": dict(spec)}


def collection(cluster: Cluster, resource: str, group: str = POOL_GROUP, version: str = "v1") -> str:
    """The path of a custom resource's objects in the cluster's namespace."""
    return f"/apis/{group}/{version}/namespaces/{cluster.namespace}/{resource}"


async def create(cluster: Cluster, obj: Object) -> None:
    group, _, version = obj["apiVersion"].partition("/")
    resource = obj["kind"].lower() + "s"
    await cluster.admin.ask("POST", collection(cluster, resource, group, version), obj)


def rights(namespace: str, rules: Sequence[Object], account: str = "default") -> list[Object]:
    """A service account, and a Role with these rules for it."""
    placed = {"namespace": namespace}
    reference = {"kind": "Role", "name": "inference-model-reader", "apiGroup": "rbac.authorization.k8s.io"}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    return [
        {"kind": "ServiceAccount", "metadata": {"name": account, **placed}},
        {"kind": "Role", "metadata": {"name": "inference-model-reader", **placed}, "rules": list(rules)},
        {
            "kind": "RoleBinding",
            "metadata": {"name": "epp-to-inference-model-reader", **placed},
            "subjects": [subject],
            "roleRef": reference,
        },
    ]


@asynccontextmanager
async def model_servers(cluster: Cluster, app: str, *ports: int, count: int = 3) -> AsyncIterator[list[Pod]]:
    """Ready pods, each a process that says which pod and port it is, whatever it is asked."""
    async with AsyncExitStack() as stack:
        pods = [
            await cluster.pod(f"{app}-{number}", labels={"app": app}, ports={}) for number in range(count)
        ]
        await asyncio.gather(*(stack.enter_async_context(_echoing(pod, ports)) for pod in pods))
        yield pods


@asynccontextmanager
async def _echoing(pod: Pod, ports: Sequence[int]) -> AsyncIterator[None]:
    command = (sys.executable, "-m", "tests.system.echo_process", pod.name, pod.address, *map(str, ports))
    async with started(*command, stdin=asyncio.subprocess.PIPE) as process:
        assert await next_line(process) == "ready\n"
        yield


def arguments_of_the_fixture(name: str, namespace: str) -> list[str]:
    """Those of the picker in the conformance tests (conformance/resources/base.yaml), to the letter."""
    named = ["--pool-name", name, "--pool-namespace", namespace, "--zap-encoder", "json"]
    return [*named, "--grpc-port", "9002", "--grpc-health-port", "9003"]


@dataclass(frozen=True, slots=True)
class PickerPod:
    """A picker that runs with its default ports: 9002 with TLS, 9003, 9090; the last one at `pages`."""

    process: asyncio.subprocess.Process
    log: Path
    pages: str = "127.0.0.1"

    async def health(self, service: str = "inference-extension") -> int:
        """The answer to one Check, as kubelet's probe asks."""
        async with aio.insecure_channel("127.0.0.1:9003") as channel:
            call: Any = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=HealthCheckRequest.SerializeToString,
                response_deserializer=HealthCheckResponse.FromString,
            )
            answer: HealthCheckResponse = await call(HealthCheckRequest(service=service))
            return int(answer.status)

    async def serves(self) -> bool:
        return await self.health() == HealthCheckResponse.SERVING

    async def status(self) -> dict[str, Any]:
        """The page /status."""
        return dict(json.loads(await self.page("/status")))

    async def resource(self, kind: str) -> dict[str, Any]:
        """What the page says of one kind."""
        return next(one for one in (await self.status())["resources"] if one["kind"] == kind)

    async def destinations(self) -> set[str]:
        """The endpoints that it knows."""
        described = json.loads(await self.page("/debug/endpoints"))
        return {endpoint["destination"] for endpoint in described["endpoints"]}

    async def page(self, path: str) -> str:
        async with aiohttp.ClientSession() as client, client.get(f"http://{self.pages}:9090{path}") as answer:
            return await answer.text()


MOUNT: Final = """
mount -t tmpfs none /run && mkdir -p /run/secrets/kubernetes.io/serviceaccount &&
cp "$ACCOUNT"/* /run/secrets/kubernetes.io/serviceaccount/ && unset ACCOUNT && exec "$@"
"""
"""What kubelet mounts into a pod, in a mount namespace of its own."""


@asynccontextmanager
async def picker_pod(
    cluster: Cluster,
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    pages: str = "127.0.0.1",
) -> AsyncIterator[PickerPod]:
    """A picker in a pod with the account that is mounted in `cluster`; ready, and killed in the end. `pages`: where its
    `--metrics-address` is reached."""
    server = cluster.admin.server
    pod = {
        "KUBERNETES_SERVICE_HOST": server.address,
        "KUBERNETES_SERVICE_PORT": str(server.port),
        "ACCOUNT": str(cluster.account),
    }
    log = cluster.folder / f"epp-{pages}.log"
    with log.open("w") as written:
        process = await asyncio.create_subprocess_exec(
            *("unshare", "--mount", "sh", "-c", MOUNT, "sh", sys.executable, "-m", "epp", *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=written,
            env=os.environ | pod | dict(environment or {}),
        )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(90):
            ready = await process.stdout.readline()
            assert ready.startswith(b"ready ") or b'"msg": "ready"' in ready, log.read_text()
        yield PickerPod(process, log, pages)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
