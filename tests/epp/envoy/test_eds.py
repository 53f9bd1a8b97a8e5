"""Workers that Envoy learns of by EDS, from the pickers as it does by default, or from a file or a server: what it does with
their health, and while what feeds it is away."""

import asyncio
import ipaddress
import json
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509

from discovery.eds.assignment import Assignment, HealthStatus, LbEndpoint
from discovery.eds.assignment_file import AssignmentFile
from discovery.eds.server import EdsServer
from epp.config.settings import TransportKind
from tests.epp.authority import Authority
from tests.epp.envoy.test_failures import IN_RANDOM_ORDER, Mesh, Worker, ask
from tests.eventually import eventually
from tests.free_port import free_port


@pytest.fixture
async def mesh(running_envoy: Any) -> AsyncIterator[Mesh]:
    async with AsyncExitStack() as stack:
        yield Mesh(stack, running_envoy)


def assignment(*workers: tuple[Worker, HealthStatus]) -> Assignment:
    places = [(worker.address.partition(":"), health) for worker, health in workers]
    return Assignment(tuple(LbEndpoint("", host, int(port), health) for (host, _, port), health in places))


class ListedWorkers:
    """The file that pickers read their workers from."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "workers.yaml"
        self.write()

    def write(self, *addresses: str) -> None:
        places = [address.partition(":") for address in addresses]
        each = [f"{{name: w{port}, address: {host}, port: {port}}}" for host, _, port in places]
        self._path.write_text(f"endpoints: [{', '.join(each)}]\n")

    @property
    def source(self) -> Sequence[str]:
        return ("--discovery", f"static://{self._path}")


@pytest.mark.parametrize("transport", list(TransportKind))
async def test_envoy_hears_of_the_workers_where_it_asks_for_picks(
    mesh: Mesh, tmp_path: Path, transport: TransportKind
) -> None:
    """Over TLS, with the same certificates; so a request goes from a worker that is gone to one that is not picked."""
    authority, loopback = Authority.new(), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    for name in "tls", "client":
        pair = authority.sign(loopback)
        (tmp_path / f"{name}.crt").write_bytes(pair.certificate)
        (tmp_path / f"{name}.key").write_bytes(pair.key)
    ca, worker, (killed, _) = str(tmp_path / "ca.crt"), await mesh.worker(), await mesh.refusing()
    secure = ("--secure-serving=true", f"--cert-path={tmp_path}", f"--client-ca-file={ca}")
    choices = [killed.address, worker.address]
    address = await mesh.picker(choices, *secure, f"--transport={transport.value}", "--model", "m")
    shown = ("--client-cert", str(tmp_path / "client.crt"), "--client-key", str(tmp_path / "client.key"))
    envoy = await mesh.envoy([address], "--secure=true", "--ca-file", ca, *shown)
    client = await mesh.client()
    assert worker.address in await _hosts(client, envoy), "before it listens"
    assert await served(client, envoy, 12) == [(200, worker.address)] * 12


async def test_envoy_begins_without_a_picker_and_hears_of_the_workers_once_there_is_one(mesh: Mesh) -> None:
    worker, client, port = await mesh.worker(), await mesh.client(), free_port()
    envoy = await mesh.envoy([f"127.0.0.1:{port}"], waits=False)
    assert (await ask(client, envoy))[0] == 503
    await mesh.picker([worker.address], f"--grpc-port={port}")

    async def knows() -> bool:
        return await _hosts(client, envoy) == [worker.address] and (await ask(client, envoy))[0] == 200

    await eventually(knows)


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM])
@pytest.mark.timeout(240)
async def test_envoy_keeps_its_workers_and_hears_of_new_ones_from_another_picker(
    mesh: Mesh, tmp_path: Path, how: signal.Signals
) -> None:
    """The second picker comes later, so that Envoy listens to the first one."""
    known, new, port, workers = await mesh.worker(), await mesh.worker(), free_port(), ListedWorkers(tmp_path)
    workers.write(known.address)
    client = await mesh.client()
    first, address = await mesh.mortal([], *workers.source)
    envoy = await mesh.envoy([address, f"127.0.0.1:{port}"], waits=False)
    assert await _hosts(client, envoy) == [known.address]
    first.send_signal(how)
    assert await _hosts(client, envoy) == [known.address]
    await mesh.picker([], *workers.source, f"--grpc-port={port}")
    workers.write(known.address, new.address)
    both = sorted([known.address, new.address])
    await eventually(lambda: _knows(client, envoy, both), within=90)


async def served(client: aiohttp.ClientSession, envoy: Any, times: int) -> list[tuple[int, str | None]]:
    answers = [await ask(client, envoy) for _ in range(times)]
    return [(status, said.get("served")) for status, said, _ in answers]


async def test_a_second_choice_is_followed_whatever_its_health(mesh: Mesh, tmp_path: Path) -> None:
    second, other = await mesh.worker(), await mesh.worker()
    killed, _ = await mesh.refusing()
    file = AssignmentFile(tmp_path / "endpoints.json", "workers")
    file.publish(Assignment())
    config = f"{IN_RANDOM_ORDER}outlierDetection: {{maxEjectionPercent: 0}}\n"
    address = await mesh.picker([killed.address, second.address], "--config-text", config)
    envoy, client = await mesh.envoy([address], "--eds-file", str(file.path)), await mesh.client()
    for number, health in enumerate(HealthStatus, 1):
        heard = await _counter(client, envoy, "cluster.listed.update_success")
        file.publish(assignment((second, health), (other, HealthStatus.HEALTHY)))

        async def is_heard(heard: int = heard) -> bool:
            return await _counter(client, envoy, "cluster.listed.update_success") > heard

        await eventually(is_heard)
        assert await served(client, envoy, 12) == [(200, second.address)] * 12
        assert await _counter(client, envoy, "cluster.workers.upstream_rq_retry") >= number


async def test_a_pick_that_envoy_does_not_know_yet_is_followed(mesh: Mesh, tmp_path: Path) -> None:
    """The picker and Envoy hear of a new worker in any order."""
    new = await mesh.worker()
    file = AssignmentFile(tmp_path / "endpoints.json", "workers")
    file.publish(Assignment())
    address = await mesh.picker([new.address])
    envoy, client = await mesh.envoy([address], "--eds-file", str(file.path)), await mesh.client()
    assert await served(client, envoy, 5) == [(200, new.address)] * 5


async def test_without_another_choice_only_healthy_workers_serve(mesh: Mesh, tmp_path: Path) -> None:
    unready, ready, later = await mesh.worker(), await mesh.worker(), await mesh.worker()
    killed, _ = await mesh.refusing()
    file = AssignmentFile(tmp_path / "endpoints.json", "workers")
    file.publish(assignment((unready, HealthStatus.UNHEALTHY), (ready, HealthStatus.HEALTHY)))
    address = await mesh.picker([killed.address])
    envoy, client = await mesh.envoy([address], "--eds-file", str(file.path)), await mesh.client()
    assert await served(client, envoy, 8) == [(200, ready.address)] * 8
    file.publish(assignment((unready, HealthStatus.UNHEALTHY), (later, HealthStatus.HEALTHY)))

    async def is_told() -> bool:
        return await served(client, envoy, 1) == [(200, later.address)]

    await eventually(is_told)
    file.publish(assignment((unready, HealthStatus.UNHEALTHY)))

    async def nobody_serves() -> bool:
        return (await ask(client, envoy))[0] == 503

    await eventually(nobody_serves)
    assert unready.bodies == []


async def test_without_a_picker_any_healthy_worker_serves_where_that_is_allowed(
    mesh: Mesh, tmp_path: Path
) -> None:
    unready, ready = await mesh.worker(), await mesh.worker()
    file = AssignmentFile(tmp_path / "endpoints.json", "workers")
    file.publish(assignment((unready, HealthStatus.UNHEALTHY), (ready, HealthStatus.HEALTHY)))
    options = ("--eds-file", str(file.path), "--failure-mode-allow")
    envoy, client = await mesh.envoy([f"127.0.0.1:{free_port()}"], *options), await mesh.client()

    async def is_served() -> bool:
        return await served(client, envoy, 1) == [(200, ready.address)]

    await eventually(is_served)  # a request with a body fails until the health checks have noticed


async def test_a_file_that_makes_no_sense_changes_nothing(mesh: Mesh, tmp_path: Path) -> None:
    worker = await mesh.worker()
    file = AssignmentFile(tmp_path / "endpoints.json", "workers")
    file.publish(assignment((worker, HealthStatus.HEALTHY)))
    address = await mesh.picker([worker.address])
    envoy, client = await mesh.envoy([address], "--eds-file", str(file.path)), await mesh.client()
    (tmp_path / "broken").write_text("{")
    (tmp_path / "broken").rename(file.path)

    async def is_rejected() -> bool:
        return await _counter(client, envoy, "cluster.listed.update_rejected") > 0 or (
            await _counter(client, envoy, "cluster.listed.update_failure") > 0
        )

    await eventually(is_rejected)
    assert await served(client, envoy, 3) == [(200, worker.address)] * 3


async def test_two_envoys_keep_their_workers_while_the_server_is_away_and_hear_of_new_ones_after(
    mesh: Mesh,
) -> None:
    first, second = await mesh.worker(), await mesh.worker()
    port = free_port()
    killed, _ = await mesh.refusing()
    address = await mesh.picker([killed.address])
    client = await mesh.client()
    async with EdsServer("127.0.0.1", port, "workers") as server:
        server.publish(assignment((first, HealthStatus.HEALTHY)))
        envoys = [await mesh.envoy([address], "--eds-server", f"127.0.0.1:{port}") for _ in range(2)]
        for envoy in envoys:
            assert await _hosts(client, envoy) == [first.address]
    for envoy in envoys:
        assert await served(client, envoy, 3) == [(200, first.address)] * 3
    async with EdsServer("127.0.0.1", port, "workers") as server:
        await asyncio.sleep(0.2)
        assert [await _hosts(client, envoy) for envoy in envoys] == [[first.address]] * 2
        server.publish(assignment((second, HealthStatus.HEALTHY)))

        async def are_told() -> bool:
            return all([await _hosts(client, envoy) == [second.address] for envoy in envoys])

        await eventually(are_told)
        for envoy in envoys:
            assert await served(client, envoy, 3) == [(200, second.address)] * 3


async def _hosts(client: aiohttp.ClientSession, envoy: Any) -> Sequence[str]:
    async with client.get(f"{envoy.admin}/clusters?format=json") as answer:
        clusters = json.loads(await answer.text())["cluster_statuses"]
    [workers] = [cluster for cluster in clusters if cluster["name"] == "listed"]
    addresses = [host["address"]["socket_address"] for host in workers.get("host_statuses", [])]
    return sorted(f"{address['address']}:{address['port_value']}" for address in addresses)


async def _knows(client: aiohttp.ClientSession, envoy: Any, workers: Sequence[str]) -> bool:
    return await _hosts(client, envoy) == workers


async def _counter(client: aiohttp.ClientSession, envoy: Any, name: str) -> int:
    async with client.get(f"{envoy.admin}/stats?filter=^{name}$") as page:
        return int((await page.text()).split()[-1])
