"""The one contract suite over Pods that a pool selects. What cannot be alike there says here what it is instead."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import discovery
from discovery import (
    InstanceAddedEvent,
    InstanceRemovedEvent,
    MetadataClient,
    ServiceDiscovery,
    SourceDiscovery,
)
from discovery.metadata.silence import SilenceTimings
from registry import Contract, ServiceRegistry
from tests.contract.pods import APP, FakeKubelet, FakePodRegistry, SettlingSource
from tests.contract.test_sources import *  # this is the suite
from tests.contract.test_sources import OpenRegistry, a_worker, next_event
from tests.eventually import eventually
from tests.fake_worker import FakeWorker, serving
from tests.free_port import free_port
from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.api_server import FakeApiServer
from tests.kubernetes.fake.objects import inference_pool


@pytest.fixture
def port() -> int:
    """On which every worker of one test serves."""
    return free_port()


@pytest.fixture
async def kubelet() -> AsyncIterator[FakeKubelet]:
    async with FakeKubelet(FakeApi(allow_loopback=True)).running() as running:
        yield running


@pytest.fixture
async def pool_url(kubelet: FakeKubelet, port: int) -> AsyncIterator[str]:
    kubelet.api.put("inferencepools", inference_pool("pool", port, labels=APP))
    async with FakeApiServer(kubelet.api) as server:
        yield f"kubernetes://default?pool=pool&server={server.url}"


@pytest.fixture
def worker(port: int) -> FakeWorker:
    """On the pool's port."""
    worker = FakeWorker("127.0.1.1")
    worker.port = port
    return worker


@pytest.fixture
async def service(pool_url: str, kubelet: FakeKubelet) -> AsyncIterator[SourceDiscovery]:
    client = MetadataClient(timeout=60.0, silence=SilenceTimings(wait=1.0, margin=60.0))
    source = SettlingSource(discovery.opening.open_source(pool_url), kubelet)
    async with SourceDiscovery(source, client=client) as opened:
        yield opened


@pytest.fixture
async def open_registry(
    pool_url: str, kubelet: FakeKubelet, port: int, tmp_path: Path
) -> AsyncIterator[OpenRegistry]:
    opened: list[FakePodRegistry] = []

    def open_one(port: int = port, **options: object) -> ServiceRegistry:
        opened.append(FakePodRegistry(kubelet, tmp_path, port, pool_url, **options))
        return opened[-1]  # type: ignore[return-value]  # awaited by all, entered by nobody here

    yield open_one
    for one in opened:
        await one.aclose()


@pytest.mark.parametrize("status", ["not_ready", "draining"])
async def test_readiness_is_membership_and_its_loss_has_a_reason(
    service: ServiceDiscovery, open_registry: OpenRegistry, status: str
) -> None:
    """A probe knows only yes and no: what terminates, the control plane says by itself."""
    handle = await open_registry().register_instance("prod", "decode")
    async with service.watch("prod", "decode") as stream:
        handle.set_ready("ready")
        assert isinstance(await next_event(stream), InstanceAddedEvent)
        handle.set_ready(status)
        removed = await next_event(stream)
        assert isinstance(removed, InstanceRemovedEvent)
        assert removed.reason == "not_ready"
        handle.set_ready("ready")
        assert isinstance(await next_event(stream), InstanceAddedEvent)


async def test_22_a_namespace_is_matched_whole(
    service: ServiceDiscovery, open_registry: OpenRegistry
) -> None:
    """The pool says who is in it: every namespace and component has the same set."""
    await a_worker(open_registry, component="decode")
    await a_worker(open_registry, component="decode-b")
    for key in (("prod", "decode"), ("another", "name")):
        found = await service.list_instances(*key)
        assert len(found) == 2
        assert {(i.namespace, i.component) for i in found} == {key}


async def test_31_a_registered_worker_is_no_instance_until_it_is_ready(
    service: ServiceDiscovery, open_registry: OpenRegistry
) -> None:
    handle = await open_registry().register_instance("prod", "decode")
    assert await service.list_instances("prod", "decode") == []
    [candidate] = (await service.explain("prod", "decode")).candidates
    assert (candidate.id, candidate.is_instance) == (handle.instance_id(), False)
    assert candidate.reason == "its pod's condition Ready is False"


async def test_34_draining_is_reported_before_leaving(
    service: ServiceDiscovery, open_registry: OpenRegistry, kubelet: FakeKubelet
) -> None:
    """The Pod is deleted, which is told; then its worker gets its SIGTERM, drains, and the Pod is gone."""
    handle = await a_worker(open_registry)
    async with service.watch("prod", "decode") as stream:
        assert isinstance(await next_event(stream), InstanceAddedEvent)
        kubelet.terminate(handle.instance_id().removesuffix("-rank-0"))
        removed = await next_event(stream)
        assert isinstance(removed, InstanceRemovedEvent)
        assert removed.reason == "terminating"
        await handle.drain(timeout=5.0)

        async def has_left() -> bool:
            return not any(c.instance for c in (await service.explain("prod", "decode")).candidates)

        await eventually(has_left)


async def test_40_explain_reports_that_nothing_is_registered(service: ServiceDiscovery) -> None:
    text = str(await service.explain("prod", "decode"))
    assert "no Pod in the Kubernetes namespace default has the labels app=worker" in text


async def test_40_a_survey_counts_what_is_there(
    service: SourceDiscovery, open_registry: OpenRegistry
) -> None:
    """Every name has the same Pods."""
    await a_worker(open_registry)
    assert await service.survey(9, timeout=60) == ([(("*", "*"), 1, 0)], 0)


async def test_40_explain_names_other_components(
    service: ServiceDiscovery, open_registry: OpenRegistry
) -> None:
    """No name is misspelt here: each has the same set."""
    handle = await a_worker(open_registry)
    explanation = str(await service.explain("prod", "decoed"))
    assert explanation == f"{handle.instance_id()} is an instance"


async def test_a_worker_that_knows_nothing_of_metadata_is_told(
    service: ServiceDiscovery, open_registry: OpenRegistry, worker: FakeWorker
) -> None:
    """A 404 or a page is no document, and nothing to wait for."""
    worker.body = b"<html>"
    async with serving(worker):
        announced = open_registry(address=worker.host, contract=Contract())
        handle = await announced.register_instance("prod", "decode")
        handle.set_ready("ready")
        async with service.watch("prod", "decode", metadata=True) as stream:
            added = await next_event(stream)
            assert isinstance(added, InstanceAddedEvent)
            assert await added.instance.metadata() == {}
            assert added.instance.port == worker.port


async def test_a_document_names_no_other_port_of_a_pod(
    service: ServiceDiscovery, open_registry: OpenRegistry, port: int
) -> None:
    """One document may describe all ranks of a Pod, and the pool says which port each of them serves."""
    handle = await a_worker(open_registry)
    handle.set_metadata({"transport": {"http": {"port": 9999}}})
    async with service.watch("prod", "decode", metadata=True) as stream:
        await eventually(lambda: [i for i in stream.instances.values() if i.revision is not None])
        assert stream.instances[handle.instance_id()].url.endswith(f":{port}")
