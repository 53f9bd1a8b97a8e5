"""Workers of this process, each registered by being a pod of the real API server with an address of its own."""

from contextlib import suppress
from pathlib import Path
from typing import Final

from discovery import RegistrationError
from discovery.instance import COMPONENT_LABEL, NAMESPACE_LABEL
from discovery.kubernetes.slices.source import ServiceSelection
from discovery.source import ComponentKey, component_key
from registry import Contract, InstanceHandle
from registry.kubernetes.membership import open_pod
from registry.registration import Announcement, MembershipRegistry
from registry.server import ContractServer
from tests.system.api_client import ApiError
from tests.system.cluster import Cluster, Pod
from tests.system.kubelet import Kubelet, LeavingContract

PORT: Final = 8080


class PodRegistry:
    """A registry as a worker in a pod opens it; the pod and its Service are made when an instance is registered.

    `address`, `port` and `contract` for a worker that serves the contract elsewhere: then its handle's word is the probe.
    """

    def __init__(
        self,
        cluster: Cluster,
        kubelet: Kubelet,
        *,
        instance_id: str | None = None,
        address: str | None = None,
        port: int = PORT,
        contract: Contract | None = None,
    ) -> None:
        self._cluster = cluster
        self._kubelet = kubelet
        self._instance_id = instance_id
        self._address = address
        self._port = port
        self._contract = contract
        self._serving: list[ContractServer] = []
        self._inner: MembershipRegistry | None = None

    async def register_instance(self, namespace: str, component: str) -> InstanceHandle:
        key = component_key(namespace, component)
        if self._inner is None:
            self._inner = await self._open(key)
        return await self._inner.register_instance(namespace, component)

    async def aclose(self) -> None:
        if self._inner is not None:
            await self._inner.aclose()
        for server in self._serving:
            await server.aclose()

    async def _open(self, key: ComponentKey) -> MembershipRegistry:
        labels = {NAMESPACE_LABEL: key.namespace, COMPONENT_LABEL: key.component}
        await self._service(key, labels)
        pod = await self._pod(key, labels)
        contract = self._contract or LeavingContract()
        told = Announcement(port=self._port, contract=contract)
        if isinstance(contract, LeavingContract):
            server = ContractServer(contract, pod.address, self._port)
            await server.start()
            self._serving.append(server)
        self._kubelet.add_pod(pod, lambda: self._probe(pod, contract))
        # the API server is a pod's; its account may not be reached by a URL, so a kubeconfig stands for it
        url = f"kubernetes://{self._cluster.namespace}?kubeconfig={self._cluster.admin.server.kubeconfig}"
        return open_pod(url, told, environment_of(pod, self._cluster))

    async def _probe(self, pod: Pod, contract: Contract) -> bool | None:
        if not isinstance(contract, LeavingContract):
            return (await contract.health(lambda name: None)).status == 200
        is_healthy = await self._kubelet.is_healthy(pod, self._port)
        # who left while it was asked answered for nobody
        return None if contract.left.is_set() else is_healthy

    async def _service(self, key: ComponentKey, labels: dict[str, str]) -> None:
        name = ServiceSelection().service(key)
        with suppress(ApiError):  # it is there
            await self._cluster.service(name, selector=labels, labels=labels, ports={"http": "http"})

    async def _pod(self, key: ComponentKey, labels: dict[str, str]) -> Pod:
        name = self._instance_id or f"{key.component}-{id(self):x}"
        ports = {"http": self._port}
        for last in (False, True):
            try:
                return await self._cluster.pod(
                    name, ready=False, address=self._address, labels=labels, ports=ports
                )
            except ApiError as error:
                if error.status != 409 or last:
                    raise RegistrationError(f"the pod {name} cannot be made: {error}") from error
                await self._kubelet.settle()  # one of that name may just have left
        raise AssertionError("unreachable")


def environment_of(pod: Pod, cluster: Cluster) -> dict[str, str]:
    """What the downward API gives a container of the pod, with the files that it mounts."""
    folder: Path = cluster.folder / f"podinfo-{pod.uid}"
    folder.mkdir()
    known = {"name": pod.name, "uid": pod.uid, "namespace": cluster.namespace}
    known["labels"] = "".join(f'{name}="{value}"\n' for name, value in pod.labels.items())
    for name, text in known.items():
        (folder / name).write_text(text)
    return {"ADSUM_PODINFO": str(folder), "POD_IP": pod.address}
