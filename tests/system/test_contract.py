"""The one contract suite over a real Kubernetes. What cannot be alike there says here what it is instead."""

from collections.abc import AsyncIterator

import pytest

from discovery import InstanceAddedEvent, InstanceRemovedEvent, ServiceDiscovery, SourceDiscovery
from registry import ServiceRegistry
from tests.contract import test_pods
from tests.contract.pods import SettlingSource
from tests.contract.test_sources import *  # this is the suite
from tests.contract.test_sources import OpenRegistry, a_worker, next_event
from tests.eventually import asked_until
from tests.fake_worker import FakeWorker
from tests.system.cluster import Cluster, pod_address
from tests.system.kubelet import Kubelet, running_kubelet
from tests.system.patient_client import patient_client
from tests.system.pod_registry import PodRegistry

# in place of that of the suite
test_readiness_is_membership_and_its_loss_has_a_reason = (
    test_pods.test_readiness_is_membership_and_its_loss_has_a_reason
)


@pytest.fixture
async def kubelet(cluster: Cluster) -> AsyncIterator[Kubelet]:
    async with running_kubelet(cluster) as running:
        yield running


@pytest.fixture
def worker_host() -> str:
    return pod_address()


@pytest.fixture
def worker(worker_host: str) -> FakeWorker:
    return FakeWorker(worker_host)


@pytest.fixture
async def service(cluster: Cluster, kubelet: Kubelet) -> AsyncIterator[SourceDiscovery]:
    source = SettlingSource(await cluster.source(), kubelet)
    async with SourceDiscovery(source, client=patient_client(), sync_timeout=60.0) as opened:
        yield opened


@pytest.fixture
async def open_registry(cluster: Cluster, kubelet: Kubelet) -> AsyncIterator[OpenRegistry]:
    opened: list[PodRegistry] = []

    def open_one(**options: object) -> ServiceRegistry:
        opened.append(PodRegistry(cluster, kubelet, **options))  # type: ignore[arg-type]
        return opened[-1]  # type: ignore[return-value]  # awaited by all, entered by nobody here

    yield open_one
    for one in opened:
        await one.aclose()


async def test_31_a_registered_worker_is_no_instance_until_it_is_ready(
    service: ServiceDiscovery, open_registry: OpenRegistry
) -> None:
    handle = await open_registry().register_instance("prod", "decode")
    assert await service.list_instances("prod", "decode") == []
    [candidate] = (await service.explain("prod", "decode")).candidates
    assert (candidate.id, candidate.is_instance) == (handle.instance_id(), False)
    assert candidate.reason == "its pod is not ready: its readiness probe (GET /health) fails"


async def test_34_draining_is_reported_before_leaving(
    service: ServiceDiscovery, open_registry: OpenRegistry, cluster: Cluster
) -> None:
    """The pod is deleted, which is told; then its worker gets its SIGTERM, drains, and the pod is gone."""
    handle = await a_worker(open_registry)
    async with service.watch("prod", "decode") as stream:
        assert isinstance(await next_event(stream), InstanceAddedEvent)
        await cluster.admin.delete("pods", cluster.namespace, handle.instance_id(), grace=30)
        removed = await next_event(stream)
        assert isinstance(removed, InstanceRemovedEvent)
        assert removed.reason == "terminating"
        await handle.drain(timeout=5.0)
        await asked_until(
            lambda: service.explain("prod", "decode"),
            lambda found: not any(c.instance for c in found.candidates),
        )


async def test_40_explain_reports_that_nothing_is_registered(
    service: ServiceDiscovery, cluster: Cluster
) -> None:
    assert f"there is no Service called dynamo-decode-service in the namespace {cluster.namespace}" in str(
        await service.explain("prod", "decode")
    )


async def test_40_explain_names_other_components(
    service: ServiceDiscovery, open_registry: OpenRegistry
) -> None:
    """Here it says more: which Service is missing."""
    await a_worker(open_registry)
    explanation = str(await service.explain("prod", "decoed"))
    assert "there is no Service called dynamo-decoed-service" in explanation
