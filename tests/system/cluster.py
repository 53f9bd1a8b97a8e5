"""A Kubernetes namespace of the real server: its Services, its pods and their status, and watchers of them."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from discovery import MetadataClient, SourceDiscovery
from discovery.kubernetes import Cluster as ApiCluster
from discovery.kubernetes import ClusterTransport, KubernetesSource, ServiceSelection, Timings, load_cluster
from tests.kubernetes.fake import objects
from tests.kubernetes.fake.event_recorder import EventRecorder, recording_events
from tests.system.api_client import Administrator
from tests.system.charts import Object, render, rights

SERVICE: Final = objects.SERVICE
NODE: Final = "node-a"
_numbers: Final = itertools.count(256)


def pod_address() -> str:
    """One that nobody had before: of 10.244.1.0 and later."""
    number = next(_numbers)
    return f"10.244.{number // 256}.{number % 256}"


@dataclass(frozen=True, slots=True)
class Pod:
    """As the API server knows it."""

    name: str
    uid: str
    address: str
    labels: Mapping[str, str] = field(default_factory=dict)


class Cluster:
    """One Kubernetes namespace with a node to run on. `folder`: for what pods see mounted."""

    def __init__(self, admin: Administrator, namespace: str, folder: Path) -> None:
        self.admin = admin
        self.namespace = namespace
        self.folder = folder
        self.account = folder / "account"

    async def service(self, name: str = SERVICE, **how: Any) -> None:
        await self.admin.create("services", self.namespace, objects.service(name, **how))

    async def change_service(self, change: Any, name: str = SERVICE) -> None:
        await self.admin.patch("services", self.namespace, name, change)

    async def pod(
        self, name: str, *second: str, ready: bool = True, address: str | None = None, **how: Any
    ) -> Pod:
        """Created, on its node and running, as kubelet reports it. `second`: an address of the other family."""
        addresses = (address or pod_address(), *second)
        made = objects.pod(name, *addresses, ready=ready, namespace=self.namespace, **how)
        stored = await self.admin.create("pods", self.namespace, made)
        pod = Pod(name, stored["metadata"]["uid"], made["status"]["podIP"], made["metadata"]["labels"])
        await self.report(pod, made["status"])
        return pod

    async def pods(self, names: Sequence[str], **how: Any) -> list[Pod]:
        return list(await asyncio.gather(*(self.pod(name, **how) for name in names)))

    async def report(self, pod: Pod, status: Mapping[str, Any]) -> None:
        """What kubelet says of it."""
        await self.admin.patch("pods", self.namespace, pod.name, {"status": status}, "status")

    async def probed(self, pod: Pod, ready: bool) -> None:
        """What kubelet says after a probe."""
        condition = {"type": "Ready", "status": str(ready)}
        await self.report(pod, {"conditions": [condition]})

    async def terminate(self, pod: Pod) -> None:
        """It is asked to end, and is still there."""
        await self.admin.delete("pods", self.namespace, pod.name, grace=30)

    async def end(self, pod: Pod) -> None:
        """It is gone."""
        await self.admin.delete("pods", self.namespace, pod.name)

    async def slices(self, service: str = SERVICE) -> list[Object]:
        selector = f"kubernetes.io/service-name={service}"
        found = await self.admin.list("endpointslices", self.namespace, labelSelector=selector)
        return list(found["items"])

    async def endpoints(self) -> dict[str, Object]:
        """The endpoints of all Services by the uid of their pod; of two, one."""
        found = await self.admin.list("endpointslices", self.namespace)
        shown = (endpoint for item in found["items"] for endpoint in item["endpoints"] or ())
        return {endpoint["targetRef"]["uid"]: endpoint for endpoint in shown}

    async def install(self, made: Sequence[Object]) -> None:
        """A service account with its rights, as a chart renders them; its token is mounted afterwards."""
        for obj in made:
            await self.admin.apply(obj)
        await self.wait_granted(made)
        await self.mount(next(obj["metadata"]["name"] for obj in made if obj["kind"] == "ServiceAccount"))

    async def mount(self, account: str) -> None:
        """A service account's files, in `account`."""
        self.account.mkdir(exist_ok=True)
        write(self.account / "ca.crt", self.admin.server.authority.read_text())
        write(self.account / "namespace", self.namespace)
        write(self.account / "token", await self.admin.account_token(self.namespace, account))

    async def connect(self, timings: Timings | None = None) -> ApiCluster:
        """As a process in a pod finds its cluster."""
        server = self.admin.server
        environment = {"KUBERNETES_SERVICE_HOST": server.address, "KUBERNETES_SERVICE_PORT": str(server.port)}
        return await load_cluster(timings=timings, environ=environment, service_account=self.account)

    async def source(self, timings: Timings | None = None, **how: Any) -> KubernetesSource:
        """What `kubernetes://` opens in a pod; `how` as KubernetesSource takes it."""
        transport = ClusterTransport(await self.connect(timings), timings)
        return KubernetesSource(transport, self.namespace, ServiceSelection(), timings=timings, **how)

    @asynccontextmanager
    async def discovering(
        self, timings: Timings | None = None, *, client: MetadataClient | None = None, **how: Any
    ) -> AsyncIterator[SourceDiscovery]:
        async with SourceDiscovery(await self.source(timings, **how), client=client) as discovery:
            yield discovery

    @asynccontextmanager
    async def recorder(
        self, timings: Timings | None = None, *, metadata: bool = False, **how: Any
    ) -> AsyncIterator[EventRecorder]:
        """A reader of dynamo/decode that remembers everything, synced."""
        async with (
            self.discovering(timings, **how) as discovery,
            recording_events(discovery, metadata=metadata) as recorder,
        ):
            yield recorder

    async def wait_granted(self, made: Sequence[Object]) -> None:
        """Wait until what the Roles among `made` say is so: it takes some milliseconds."""
        account = next(obj["metadata"]["name"] for obj in made if obj["kind"] == "ServiceAccount")
        rules = [rule for obj in made if obj["kind"] == "Role" for rule in obj["rules"]]
        wanted = [
            (rule["apiGroups"][0], rule["resources"][0], verb) for rule in rules for verb in rule["verbs"]
        ]
        async with asyncio.timeout(90):
            for group, resource, verb in wanted:
                while not await self._allowed(account, verb, resource, group):
                    await asyncio.sleep(0.01)

    async def _allowed(self, account: str, verb: str, resource: str, group: str) -> bool:
        asked = {"namespace": self.namespace, "verb": verb, "resource": resource, "group": group}
        user = f"system:serviceaccount:{self.namespace}:{account}"
        review = {"spec": {"user": user, "resourceAttributes": asked}}
        answer = await self.admin.ask("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return bool(answer["status"]["allowed"])


@asynccontextmanager
async def a_cluster(admin: Administrator, folder: Path, prefix: str = "test") -> AsyncIterator[Cluster]:
    """A namespace with a node and a frontend's account that may do what the chart says."""
    await admin.node(NODE)
    cluster = Cluster(admin, await admin.namespace(prefix), folder)
    await cluster.install(rights(render("frontend", {"explain": True}, "frontend", cluster.namespace)))
    yield cluster


def write(path: Path, text: str) -> None:
    """Whole, as kubelet swaps it."""
    fresh = path.with_name(f"{path.name}.fresh")
    fresh.write_text(text)
    fresh.replace(path)
