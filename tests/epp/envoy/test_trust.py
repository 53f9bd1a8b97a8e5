"""Whom Envoy trusts to pick, and what its status port shows; a real Envoy, our own server."""

import ipaddress
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509

from discovery.eds.assignment import Assignment
from epp.config.settings import TransportKind
from epp.envoy import flags as envoy_flags
from epp.envoy.config import render
from epp.ext_proc.exchange import Exchange
from epp.ext_proc.exchange_settings import ExchangeSettings
from epp.health import Health
from epp.request.body import MemoryBudget
from epp.request.rejection import Rejection
from epp.wire.certificate import Certificate, KeyPair
from epp.wire.opening import open_transport
from epp.wire.transport import ListenAddress
from tests.epp.authority import Authority
from tests.eventually import eventually
from tests.free_port import free_port

PICKED = 429
"""The picker refuses every request: then it was asked."""


@asynccontextmanager
async def picker(director: Any, pair: KeyPair) -> AsyncIterator[int]:
    """The port of one that serves with this certificate."""
    health, memory = Health(), MemoryBudget(2**30)
    health.set_serving(True)

    def exchange() -> Exchange:
        return Exchange(director, ExchangeSettings(), budget=memory)

    transport = open_transport(TransportKind.HTTP2, exchange, health, memory, time.monotonic)
    # Envoy prefers the IPv6 address of a name
    address = ListenAddress("::" if socket.has_dualstack_ipv6() else "127.0.0.1", 0, Certificate(pair))
    transport.assignments.publish(Assignment())  # an Envoy that starts waits for it
    listener = transport.listener(address, processing=True)
    async with listener:
        yield listener.port


LOOPBACK = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))


@pytest.mark.parametrize(
    ("host", "names", "stranger", "status"),
    [
        ("127.0.0.1", [LOOPBACK], False, PICKED),
        ("localhost", [x509.DNSName("localhost")], False, PICKED),
        ("127.0.0.1", [x509.DNSName("other.example")], False, 503),
        ("localhost", [x509.DNSName("other.example")], False, 503),
        ("127.0.0.1", [LOOPBACK], True, 503),
    ],
    ids=["address", "name", "another name for an address", "another name", "another authority"],
)
async def test_envoy_asks_a_picker_whose_certificate_is_signed_and_names_it(
    running_envoy: Any,
    director: Any,
    tmp_path: Path,
    host: str,
    names: list[x509.GeneralName],
    stranger: bool,
    status: int,
) -> None:
    director.outcome = Rejection(PICKED, "saturated", "later")
    authority, other = Authority.new(), Authority.new()
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    async with picker(director, (other if stranger else authority).sign(*names)) as port:
        arguments = ["--epp", f"{host}:{port}", "--ca-file", str(tmp_path / "ca.crt")]
        config = render(envoy_flags.parse([*arguments, "--listen-port", "0", "--admin-port", "0"]))
        async with (
            running_envoy(config) as envoy,
            aiohttp.ClientSession() as client,
            client.post(envoy.url(), data=b"x") as answer,
        ):
            assert answer.status == status


async def test_the_status_port_says_ready_and_shows_metrics_and_nothing_else(running_envoy: Any) -> None:
    admin = free_port()
    arguments = ["--listen-port", "0", "--admin-port", str(admin), "--status-port", "0"]
    config = render(envoy_flags.parse(arguments))
    async with running_envoy(config) as envoy, aiohttp.ClientSession() as client:
        base = f"http://127.0.0.1:{envoy.ports['status']}"
        async with client.get(f"{base}/ready") as ready:
            assert ready.status == 200
        async with client.get(f"{base}/stats/prometheus") as page:
            assert page.status == 200
            assert "envoy_cluster_membership_healthy" in await page.text()
        for path in ("/", "/config_dump", "/stats/prometheus/x", "/listeners"):
            async with client.get(f"{base}{path}") as other:
                assert other.status == 404, path
        async with client.post(f"{base}/quitquitquit") as quitting:
            assert quitting.status == 404
        async with client.post(f"http://127.0.0.1:{admin}/healthcheck/fail") as failed:
            assert failed.status == 200

        async def leaving() -> bool:
            async with client.get(f"{base}/ready") as ready:
                return ready.status == 503

        await eventually(leaving)
