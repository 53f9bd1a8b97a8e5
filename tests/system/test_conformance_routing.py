"""The picker's side of assertions of the Gateway API inference extension's conformance suite, named as there.

The suite's CRDs, pools, Role and arguments of its picker, in a real API server; a real Envoy with our configuration is the
gateway. The suite's other tests are about gateways alone (conformance/tests in that repository).
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import aiohttp
import pytest

from epp.envoy.config import render
from epp.envoy.json_values import Address
from epp.envoy.settings import EnvoySettings
from tests.epp.conftest import envoy_running
from tests.eventually import eventually
from tests.system.cluster import Cluster, Pod
from tests.system.inference_extension import (
    PICKER_AWAY,
    POOL_GROUP,
    ROLE,
    PickerPod,
    arguments_of_the_fixture,
    create,
    install,
    model_servers,
    picker_pod,
    pool,
    rights,
)

SELECTION: Final = "test-epp-endpoint-selection"
SERVED: Final = "x-conformance-test-served-endpoint"
DP_PORTS: Final = (3000, 3002, 3004)
BODY: Final = {"model": "conformance-fake-model", "prompt": "Write as if you were a critic: San Francisco"}
REQUESTS, AT_ONCE = 100, 10

CONFIGURATION: Final = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: header-based-testing-filter
- type: destination-endpoint-served-verifier
- type: random-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: header-based-testing-filter
  - pluginRef: random-picker
"""
"""The suite's own picker is steered by the header without being told; ours is told, since no client may choose its worker."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Which pod and port answered, and what the picker wrote into the response about it."""

    pod: str
    port: int
    served: str | None


@dataclass(frozen=True, slots=True)
class Gateway:
    """The picker and Envoy before the pods of one pool."""

    url: str
    picker: PickerPod

    async def request(self, selection: str | None = None) -> Reached:
        """Raises aiohttp.ClientResponseError for an answer that is not 200; after a 503 it is sent again."""
        headers = {} if selection is None else {SELECTION: selection}
        async with asyncio.timeout(90), aiohttp.ClientSession() as client:
            while True:
                async with client.post(self.url, json=BODY, headers=headers) as answer:
                    if answer.status == PICKER_AWAY:
                        await asyncio.sleep(0.1)
                        continue
                    answer.raise_for_status()
                    said = await answer.json()
                    return Reached(said["pod"], int(said["httpPort"]), answer.headers.get(SERVED))

    async def reaches(self, pod: Pod, port: int) -> bool:
        """Whether a request for that endpoint gets there; the suite repeats its first requests too."""
        try:
            reached = await self.request(f"{pod.address}:{port}")
        except aiohttp.ClientError:
            return False
        return (reached.pod, reached.port) == (pod.name, port)

    async def many(self, selection: str) -> list[Reached]:
        """As many as the suite sends, as many at once as there."""
        limit = asyncio.Semaphore(AT_ONCE)

        async def one() -> Reached:
            async with limit:
                return await self.request(selection)

        return list(await asyncio.gather(*(one() for _ in range(REQUESTS))))


@asynccontextmanager
async def a_gateway(
    cluster: Cluster, name: str, pods: Sequence[Pod], ports: Sequence[int], **envoy: Any
) -> AsyncIterator[Gateway]:
    """The picker with the fixture's arguments and Role, and an Envoy that may reach each port of each pod."""
    await cluster.install(rights(cluster.namespace, ROLE))
    configuration = cluster.folder / "config.yaml"
    configuration.write_text(CONFIGURATION)
    everywhere = [Address(pod.address, port) for pod in pods for port in ports]
    local = Address("127.0.0.1", 0)
    settings = EnvoySettings(
        mode="override-host", listen=local, admin=local, endpoints=everywhere, access_log="", **envoy
    )
    arguments = arguments_of_the_fixture(name, cluster.namespace)
    async with AsyncExitStack() as stack:
        environment = {"ADSUM_EPP_CONFIG_FILE": str(configuration)}
        picker = await stack.enter_async_context(picker_pod(cluster, arguments, environment))
        running = await stack.enter_async_context(envoy_running(render(settings)))
        await eventually(picker.serves)
        gateway = Gateway(running.url("/v1/completions"), picker)
        for pod in pods:
            for port in ports:
                await eventually(partial(gateway.reaches, pod, port))
        yield gateway


@pytest.fixture
async def primary(cluster: Cluster) -> AsyncIterator[tuple[Gateway, list[Pod]]]:
    """primary-inference-pool and its three pods."""
    await install(cluster.admin, POOL_GROUP)
    app = "primary-inference-model-server"
    await create(cluster, pool("primary-inference-pool", app, 3000))
    async with (
        model_servers(cluster, app, 3000) as pods,
        a_gateway(cluster, "primary-inference-pool", pods, (3000,)) as gateway,
    ):
        yield gateway, pods


@pytest.fixture
async def data_parallel(cluster: Cluster) -> AsyncIterator[tuple[Gateway, list[Pod]]]:
    """dp-inference-pool: three pods, each with three target ports."""
    await install(cluster.admin, POOL_GROUP)
    app = "dp-inference-model-server"
    await create(cluster, pool("dp-inference-pool", app, *DP_PORTS))
    async with (
        model_servers(cluster, app, *DP_PORTS) as pods,
        a_gateway(cluster, "dp-inference-pool", pods, DP_PORTS) as gateway,
    ):
        yield gateway, pods


async def test_GatewayFollowingEPPRouting(  # noqa: N802  # the suite's name
    primary: tuple[Gateway, list[Pod]],
) -> None:
    gateway, pods = primary
    for pod in pods:
        assert (await gateway.request(pod.address)).pod == pod.name
    for chosen in (pods[2:], pods[:2], pods):  # one designated pod, two, all
        reached = await gateway.many(",".join(pod.address for pod in chosen))
        assert {each.pod for each in reached} <= {pod.name for pod in chosen}


async def test_GatewayFollowingEPPRoutingWithDataParallelism(  # noqa: N802  # the suite's name
    data_parallel: tuple[Gateway, list[Pod]],
) -> None:
    gateway, pods = data_parallel
    for pod in pods:
        assert (await gateway.request(pod.address)).pod == pod.name
    first, second, third = pods
    selections: tuple[tuple[tuple[Pod, tuple[int, ...]], ...], ...] = (
        ((second, ()),),  # one designated pod, any rank
        ((first, ()), (third, (3002,))),  # two, one of them at a fixed rank
        ((first, ()), (second, (3000, 3004)), (third, ())),  # all, one of them restricted to two ranks
    )
    for selection in selections:
        words = [
            f"{pod.address}:{port}" if port else pod.address
            for pod, ports in selection
            for port in ports or (0,)
        ]
        allowed = {(pod.name, port) for pod, ports in selection for port in ports or DP_PORTS}
        reached = await gateway.many(",".join(words))
        assert {(each.pod, each.port) for each in reached} <= allowed


async def test_GatewayDestinationEndpointServed(  # noqa: N802  # the suite's name
    primary: tuple[Gateway, list[Pod]],
) -> None:
    gateway, pods = primary
    for pod in pods:
        reached = await gateway.request(pod.address)
        assert (reached.pod, reached.served) == (pod.name, f"{pod.address}:3000")


async def test_EppUnAvailableFailOpen(cluster: Cluster) -> None:  # noqa: N802  # the suite's name
    await install(cluster.admin, POOL_GROUP)
    app, name = "secondary-inference-model-server", "secondary-inference-pool"
    await create(cluster, pool(name, app, 3000, failure_mode="FailOpen"))
    async with (
        model_servers(cluster, app, 3000) as pods,
        a_gateway(cluster, name, pods, (3000,), failure_mode_allow=True) as gateway,
    ):
        assert (await gateway.request(pods[0].address)).pod == pods[0].name
        gateway.picker.process.kill()
        await gateway.picker.process.wait()

        async def answered() -> bool:
            try:
                return (await gateway.request(pods[0].address)).pod in {pod.name for pod in pods}
            except aiohttp.ClientError:
                return False

        await eventually(answered)


async def test_the_fixtures_role_is_enough_and_what_it_lacks_is_said_once(
    primary: tuple[Gateway, list[Pod]],
) -> None:
    gateway, _ = primary
    assert await gateway.picker.serves()

    def said(resource: str) -> list[str]:
        lines = gateway.picker.log.read_text().splitlines()
        return [
            line
            for line in lines
            if (resource in line and "is installed" in line) or f"cannot follow {resource}" in line
        ]

    for resource in ("inferenceobjectives", "inferencemodelrewrites"):
        await eventually(partial(said, resource))
        assert len(said(resource)) == 1
