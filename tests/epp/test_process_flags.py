"""Flags whose effect only a process of its own shows: the log, and the ciphers of grpc."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from epp.__main__ import main
from tests.epp.config.test_security_flags import handshake
from tests.epp.epp_program import LOCAL, epp_program
from tests.epp.local_picker import addresses_in
from tests.in_process import run_here


@asynccontextmanager
async def picker(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, str]]]:
    """The process, once it is ready, and the addresses of its ports."""
    async with epp_program(*LOCAL, "--endpoint=127.0.0.1:9", *arguments) as running, asyncio.timeout(90):
        assert running.stdout is not None
        yield running, addresses((await running.stdout.readline()).decode())


def addresses(ready: str) -> dict[str, str]:
    """What the ready line names; it has the form of the log."""
    return json.loads(ready) if ready.startswith("{") else addresses_in(ready)


async def logged(*arguments: str) -> list[str]:
    async with picker(*arguments) as (running, _):
        running.terminate()
        _, said = await running.communicate()
        return said.decode().splitlines()


async def test_the_log_as_json() -> None:
    given = (
        "--zap-encoder=json",
        "--zap-time-encoding=epoch",
        "--health-checking=false",
        "--tls-min-version=VersionTLS10",
    )
    lines = [json.loads(line) for line in await logged(*given)]
    assert all(isinstance(line["ts"], float) for line in lines)
    told = [line["msg"] for line in lines if line["level"] == "warn" and line["logger"] == "epp"]
    assert told[:2] == [
        "flags without effect: --health-checking (health is always served)",
        (
            "--tls-min-version VersionTLS10: TLS 1.2 is the least that HTTP/2 allows (RFC 9113, 9.2), so it is the least "
            "here"
        ),
    ]


async def test_errors_only() -> None:
    assert await logged("--zap-log-level=error", "--health-checking=false") == []


async def test_grpc_offers_only_the_suites_named() -> None:
    async def cipher(address: str, asked: str) -> str | None:
        return await handshake(address, version=ssl.TLSVersion.TLSv1_2, ciphers=asked)

    short, long = "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"
    suites = "--tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
    async with picker("--transport=grpc", suites) as (_, where):
        assert [await cipher(where["grpc"], asked) for asked in (short, long)] == [None, long]
    async with picker("--transport=grpc") as (_, where):
        assert await cipher(where["grpc"], short) == short


def test_a_pool_without_a_cluster_is_the_pool_s_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metrics port asks the same API server, first, and by a default: its flag is nothing that the user gave."""
    for name in ("KUBERNETES_SERVICE_HOST", "NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    said = run_here(main, *LOCAL[:-1], "--pool-name=llama", KUBECONFIG="/nowhere")
    assert said.returncode == 1
    last = said.stderr.splitlines()[-1]
    assert last.startswith("error: kubernetes://default?pool=llama")
    assert "--metrics-endpoint-auth" not in last
