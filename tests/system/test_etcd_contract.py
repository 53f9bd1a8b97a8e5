"""The one contract suite over a real etcd."""

from collections.abc import AsyncIterator

import pytest

import discovery
import registry
from discovery import SourceDiscovery
from discovery.record import InstanceRecord
from registry import ServiceRegistry
from registry.handle import RegisteredInstance
from tests.contract.pods import SettlingSource
from tests.contract.test_sources import *  # this is the suite
from tests.contract.test_sources import OpenRegistry
from tests.eventually import eventually
from tests.fake_worker import FakeWorker
from tests.system.etcd_process import EtcdProcess
from tests.system.patient_client import patient_client


class SettlingRegistries:
    """The registries of one test; `settle` waits until etcd has what their workers said, as it has a moment later."""

    def __init__(self, etcd: EtcdProcess) -> None:
        self.handles: list[RegisteredInstance] = []
        self._etcd = etcd

    async def settle(self) -> None:
        await eventually(self._is_settled)

    async def _is_settled(self) -> bool:
        stored = (await self._etcd.keys()).values()
        records = [InstanceRecord.model_validate_json(found.value) for found in stored]
        told = {(record.incarnation, record.status) for record in records}
        said = [handle.instance for handle in self.handles if not handle.closed]
        return all((instance.incarnation, instance.status) in told for instance in said)


class RememberingRegistry:
    """A registry whose handles are remembered."""

    def __init__(self, inner: ServiceRegistry, settling: SettlingRegistries) -> None:
        self._inner = inner
        self._settling = settling

    async def register_instance(self, namespace: str, component: str) -> RegisteredInstance:
        handle = await self._inner.register_instance(namespace, component)
        assert isinstance(handle, RegisteredInstance)
        self._settling.handles.append(handle)
        return handle

    async def aclose(self) -> None:
        await self._inner.aclose()


class SettlingEtcdSource(SettlingSource):
    needs_documents = True


@pytest.fixture
async def etcd() -> AsyncIterator[EtcdProcess]:
    async with EtcdProcess() as running:
        yield running


@pytest.fixture
def url(etcd: EtcdProcess) -> str:
    return f"{etcd.url}/test?ttl=15s"


@pytest.fixture
def worker_host() -> str:
    return "127.0.0.1"


@pytest.fixture
def worker(worker_host: str) -> FakeWorker:
    return FakeWorker(worker_host)


@pytest.fixture
def settling(etcd: EtcdProcess) -> SettlingRegistries:
    return SettlingRegistries(etcd)


@pytest.fixture
async def service(url: str, settling: SettlingRegistries) -> AsyncIterator[SourceDiscovery]:
    source = SettlingEtcdSource(discovery.opening.open_source(url), settling)
    async with SourceDiscovery(source, client=patient_client()) as opened:
        yield opened


@pytest.fixture
async def open_registry(url: str, settling: SettlingRegistries) -> AsyncIterator[OpenRegistry]:
    opened: list[RememberingRegistry] = []

    def open_one(**options: object) -> ServiceRegistry:
        opened.append(RememberingRegistry(registry.open(url, **options), settling))  # type: ignore[arg-type]
        return opened[-1]  # type: ignore[return-value]  # awaited by all, entered by nobody here

    yield open_one
    for one in opened:
        await one.aclose()
