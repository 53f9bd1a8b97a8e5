"""Workers that register themselves in Pods of the fake API server, each on a loopback address of its own."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from discovery import RegistrationError
from discovery.instance import COMPONENT_LABEL, NAMESPACE_LABEL
from discovery.source import Candidate, ComponentKey, Report, Source
from registry import Contract, InstanceHandle
from registry.kubernetes.membership import open_pod
from registry.registration import Announcement, MembershipRegistry
from registry.server import ContractServer
from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.objects import pod

APP: Final = {"app": "worker"}
_numbers: Final = itertools.count(2)


class LeavingContract(Contract):
    """Remembers that the instance left, at which the process of a Pod would exit."""

    has_left = False

    def unbind(self) -> None:
        super().unbind()
        self.has_left = True


class FakeKubelet:
    """Asks each contract for its health, and tells the fake API server; deletes the Pod of one that left."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self._pods: dict[str, tuple[str, dict[str, Any], Contract]] = {}

    def create(self, name: str, address: str, labels: dict[str, str], contract: Contract) -> str:
        """Returns the UID."""
        if self.api.log.get("pods", "default", name) is not None:
            raise RegistrationError(f"the pod {name} cannot be made: it exists")
        how: dict[str, Any] = {"labels": APP | labels}
        stored = self.api.put("pods", pod(name, address, ready=False, restarts=1, **how))
        self._pods[name] = address, how, contract
        return str(stored["metadata"]["uid"])

    def terminate(self, name: str) -> None:
        """Somebody deletes it: its worker is asked to end."""
        self._pods[name][1]["terminating"] = True

    async def settle(self) -> None:
        for name, (address, how, contract) in list(self._pods.items()):
            if getattr(contract, "has_left", False):
                del self._pods[name]
                self.api.log.delete("pods", "default", name)
                continue
            healthy = (await contract.health(lambda _: None)).status == 200
            self.api.put("pods", pod(name, address, ready=healthy, restarts=1, **how))

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FakeKubelet"]:
        probing = asyncio.create_task(self._run(), name="kubelet")
        try:
            yield self
        finally:
            probing.cancel()
            await asyncio.wait([probing])

    async def _run(self) -> None:
        while True:
            await self.settle()
            await asyncio.sleep(0.02)


class RankHandle:
    """A worker's handle, with the id that the discovery of Pods gives to its only port."""

    def __init__(self, handle: InstanceHandle) -> None:
        self._handle = handle

    def instance_id(self) -> str:
        return f"{self._handle.instance_id()}-rank-0"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


class FakePodRegistry:
    """A registry as a worker in a Pod opens it; the Pod is made when an instance is registered. `port`: of all Pods."""

    def __init__(self, kubelet: FakeKubelet, folder: Path, port: int, url: str, **given: Any) -> None:
        self._kubelet = kubelet
        self._folder = folder
        self._target_port = port
        self._url = url
        self._given = given
        self._server: ContractServer | None = None
        self._inner: MembershipRegistry | None = None

    async def register_instance(self, namespace: str, component: str) -> RankHandle:
        if self._inner is None:
            self._inner = await self._open(namespace, component)
        return RankHandle(await self._inner.register_instance(namespace, component))

    async def aclose(self) -> None:
        if self._inner is not None:
            await self._inner.aclose()
        if self._server is not None:
            await self._server.aclose()

    async def _open(self, namespace: str, component: str) -> MembershipRegistry:
        number = next(_numbers)
        address = self._given.get("address") or f"127.0.{number // 250}.{number % 250 + 2}"
        contract = self._given.get("contract") or LeavingContract()
        labels = {NAMESPACE_LABEL: namespace, COMPONENT_LABEL: component}
        name = self._given.get("instance_id") or f"{component}-{number}"
        await self._kubelet.settle()  # one of that name may just have left
        uid = self._kubelet.create(name, address, labels, contract)
        if isinstance(contract, LeavingContract):
            self._server = ContractServer(contract, address, self._target_port)
            await self._server.start()
        podinfo = self._folder / uid
        podinfo.mkdir()
        (podinfo / "labels").write_text("".join(f'{key}="{value}"\n' for key, value in labels.items()))
        environment = {"ADSUM_PODINFO": str(podinfo), "POD_IP": address}
        environment |= {"POD_NAME": name, "POD_UID": uid, "POD_NAMESPACE": "default"}
        return open_pod(self._url, Announcement(port=self._target_port, contract=contract), environment)


class Settling(Protocol):
    async def settle(self) -> None: ...


class SettlingSource:
    """Looks once the kubelet has caught up with what the workers said; elsewhere that takes no time."""

    def __init__(self, source: Source, kubelet: Settling) -> None:
        self.needs_documents = source.needs_documents
        self._source = source
        self._kubelet = kubelet

    async def run(self, key: ComponentKey, report: Report) -> None:
        await self._kubelet.settle()
        await self._source.run(key, report)

    def suspect(self, key: ComponentKey, instance_id: str) -> None:
        self._source.suspect(key, instance_id)

    async def components(self) -> list[ComponentKey]:
        return await self._source.components()

    async def explain(self, key: ComponentKey) -> list[Candidate]:
        return await self._source.explain(key)

    async def aclose(self) -> None:
        await self._source.aclose()
