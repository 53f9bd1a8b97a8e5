"""Our programs over a real etcd, as a user starts them; TLS and etcdctl's environment."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509

from discovery.etcd.client import EtcdClient, EtcdTimings
from discovery.etcd.connection import RANGE
from discovery.etcd.errors import EtcdUnavailableError
from discovery.etcd.messages.etcd_pb2 import RangeRequest
from discovery.etcd.url import EtcdSettings, EtcdTls
from tests.epp.authority import Authority
from tests.eventually import eventually
from tests.registry.model_server import model_server
from tests.started import next_line, ready, started
from tests.system.etcd_process import EtcdProcess


@pytest.fixture
def tls(tmp_path: Path) -> EtcdTls:
    authority = Authority.new()
    pair = authority.sign(x509.IPAddress(ip_address("127.0.0.1")))
    files = {"ca": authority.pem, "cert": pair.certificate, "key": pair.key}
    for name, pem in files.items():
        (tmp_path / name).write_bytes(pem)
    return EtcdTls(tmp_path / "ca", tmp_path / "cert", tmp_path / "key")


@asynccontextmanager
async def a_program(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Asked to end when the block does."""
    pipe, own = asyncio.subprocess.PIPE, os.environ | (environment or {})
    async with started(sys.executable, "-m", *arguments, stderr=pipe, env=own) as process:
        yield process
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def run(*arguments: str, environment: Mapping[str, str] | None = None) -> tuple[int | None, str, str]:
    """Its exit code, and what it wrote."""
    async with a_program(*arguments, environment=environment) as process:
        out, err = await process.communicate()
        return process.returncode, out.decode(), err.decode()


async def test_a_sidecar_a_listing_and_a_picker() -> None:
    """One URL for all of them, in the environment."""
    place = ("--namespace", "dynamo", "--component", "decode")
    async with EtcdProcess() as etcd, model_server() as served:
        told = {"ADSUM_DISCOVERY": f"{etcd.url}/test?ttl=15s"}
        picker = ("epp", *place, "--host", "127.0.0.1", "--grpc-port", "0", "--grpc-health-port", "0")
        sidecar = (
            "registry",
            *place,
            "--server",
            served.url,
            "--instance-id",
            "w-0",
            "--drain-timeout",
            "1s",
        )
        async with (
            a_program(*sidecar, environment=told),
            a_program(*picker, "--metrics-port", "0", environment=told) as picking,
        ):
            pages = f"http://{(await ready(picking))['metrics']}"

            async def the_picker_has_it() -> bool:
                async with aiohttp.ClientSession() as client, client.get(f"{pages}/debug/endpoints") as page:
                    return '"w-0"' in await page.text()

            await eventually(the_picker_has_it)
            code, out, _ = await run("discovery", "list", "dynamo", "decode", "--json", environment=told)
            assert (code, json.loads(out)["id"]) == (0, "w-0")
            code, out, _ = await run("discovery", "explain", "dynamo", "decode", environment=told)
            assert (code, out) == (0, "w-0 is an instance\n")
        code, _, err = await run("discovery", "list", "dynamo", "decode", environment=told)
        assert code == 0
        assert err.startswith("no ready instance of dynamo/decode at etcd://")


async def test_an_outage_is_told_by_who_watches() -> None:
    place = ("--namespace", "dynamo", "--component", "decode")
    ports = ("--host", "127.0.0.1", "--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0")
    async with EtcdProcess() as etcd, model_server() as served:
        told = {"ADSUM_DISCOVERY": f"{etcd.url}/test"}
        sidecar = ("registry", *place, "--server", served.url, "--drain-timeout", "1s")
        async with (
            a_program(*sidecar, environment=told),
            a_program("discovery", "watch", *place[1::2], environment=told) as watching,
            a_program("epp", *place, *ports, environment=told) as picking,
        ):
            await ready(picking)
            assert (await next_line(watching)).startswith("added ")
            etcd.kill()
            for program in (watching, picking):
                await says(program, "the source is out of reach: etcd at ")
            await etcd.start()
            for program in (watching, picking):
                await says(program, "the source answers again")


async def says(program: asyncio.subprocess.Process, words: str) -> None:
    """Once a line of its stderr has these words."""
    assert program.stderr is not None
    while words.encode() not in (line := await program.stderr.readline()):
        assert line, f"it ended without {words!r}"


async def test_over_tls_with_a_client_certificate_as_etcdctl_takes_them(tls: EtcdTls) -> None:
    flags = ("--cert-file", "--key-file", "--trusted-ca-file")
    served = [f"{flag}={path}" for flag, path in zip(flags, (tls.cert, tls.key, tls.cacert), strict=True)]
    async with EtcdProcess(*served, "--client-cert-auth", tls=tls) as etcd:
        told = {
            "ETCDCTL_ENDPOINTS": f"https://{etcd.member}",
            "ETCDCTL_CACERT": str(tls.cacert),
            "ETCDCTL_CERT": str(tls.cert),
            "ETCDCTL_KEY": str(tls.key),
        }
        code, _, err = await run(
            "discovery", "list", "dynamo", "decode", "--discovery", "etcd:///test", environment=told
        )
        assert (code, "no ready instance" in err) == (0, True), err
        code, _, err = await run(
            *("discovery", "list", "dynamo", "decode", "--timeout", "1", "--discovery", "etcd:///test"),
            environment=told | {"ETCDCTL_CACERT": str(tls.key)},
        )
        assert (code, err.count("\n")) == (1, 1), err  # grpc's own log is silent


@pytest.mark.parametrize(
    ("files", "advice"),
    [
        (None, "it may speak TLS only: then cacert= has to name its authority"),
        (("ca", None, None), "it may want a client certificate that it trusts: cert= and key="),
        ((None, None, None), "cacert= has to name the authority that signed its certificate"),
        (("key", "cert", "key"), "cacert=, cert= and key= have to name PEM files, and key= the key of cert="),
    ],
)
async def test_what_to_do_where_tls_fails(
    tls: EtcdTls, tmp_path: Path, files: tuple[str | None, ...] | None, advice: str
) -> None:
    flags = ("--cert-file", "--key-file", "--trusted-ca-file")
    served = [f"{flag}={path}" for flag, path in zip(flags, (tls.cert, tls.key, tls.cacert), strict=True)]
    ours = None if files is None else EtcdTls(*(None if name is None else tmp_path / name for name in files))
    async with EtcdProcess(*served, "--client-cert-auth", tls=tls) as etcd:
        client = EtcdClient(EtcdSettings((etcd.member,), tls=ours), EtcdTimings(call=60.0))
        try:
            with pytest.raises(EtcdUnavailableError, match=re.escape(f"; {advice}") + "$") as caught:
                await client.call(RANGE, RangeRequest(key=b"\0"))
        finally:
            await client.aclose()
    assert str(caught.value).startswith(f"etcd at {etcd.member}: ")
    assert "last error" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("etcd://127.0.0.1:1/test?cacert=/nowhere/ca.pem", "/nowhere/ca.pem cannot be read: No such file"),
        ("etcd://127.0.0.1:1/test?user=me&password_file=/nowhere/pw", "/nowhere/pw cannot be read"),
        ("etcd://127.0.0.1:1/test", "did not sync within 1 s: etcd at 127.0.0.1:1: Connection refused"),
    ],
)
async def test_a_fault_is_one_line(url: str, words: str) -> None:
    code, _, err = await run("discovery", "list", "dynamo", "decode", "--timeout", "1", "--discovery", url)
    assert words in err
    assert err.count("\n") == 1, err
    assert code in (1, 2)
