"""`adsum registry pd-sidecar` as a process: its arguments, its ports, TLS, its drain."""

import asyncio
import datetime
import signal
import ssl
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from epp.wire.certificate import self_signed
from registry.__main__ import main
from tests.eventually import eventually
from tests.free_port import free_port
from tests.registry.disaggregation.conftest import BODY, CHAT
from tests.registry.disaggregation.workers import Blocks, Worker, serving
from tests.started import next_line, started
from tests.warm_python import WARM_PYTHON


def made_certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A folder as `--cert-path` names it, and a context of a client that trusts it for any host."""
    pair = self_signed(datetime.datetime.now(datetime.UTC))
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    trusted = ssl.create_default_context(cafile=str(folder / "tls.crt"))
    trusted.check_hostname = False
    return folder, trusted


@asynccontextmanager
async def program(*arguments: str) -> AsyncIterator[tuple[Process, str]]:
    """The process, and its port's URL once it is ready."""
    own = ("--address", "127.0.0.1", "--port", "0", "--model-server-host", "127.0.0.1")
    async with started(WARM_PYTHON, "-m", "registry", "pd-sidecar", *own, *arguments, stderr=PIPE) as process:
        line = await next_line(process)
        assert line.startswith("ready http="), line
        yield process, line.split()[1].partition("=")[2]


async def test_it_serves_says_what_it_counted_and_drains() -> None:
    blocks = Blocks()
    metrics = free_port()
    async with (
        serving(Worker(blocks)) as prefill,
        serving(Worker(blocks)) as decode,
        program(
            *("--model-server-port", str(decode.port), "--metrics-port", str(metrics)),
            *("--allow-prefill", "127.0.0.1,[::1]:80", "--kv-connector", "nixlv2", "--secure-proxy=false"),
            *("-v=5", "--zap-log-level=debug", "--enable-prefiller-sampling"),
        ) as (process, at),
        aiohttp.ClientSession() as session,
    ):
        headers = {"x-prefiller-host-port": prefill.address}
        async with session.post(f"http://{at}{CHAT}", json=BODY, headers=headers) as answer:
            assert "x-adsum-prefill-fallback" not in answer.headers
        refused = {"x-prefiller-host-port": "10.0.0.1:80"}
        async with session.post(f"http://{at}{CHAT}", json=BODY, headers=refused) as answer:
            assert answer.headers["x-adsum-prefill-fallback"] == "refused"
        async with session.get(f"http://127.0.0.1:{metrics}/metrics") as page:
            text = await page.text()
        assert 'adsum_pd_sidecar_requests_total{mode="prefill-decode"} 1' in text
        assert 'adsum_pd_sidecar_prefill_failures_total{reason="refused"} 1' in text
        assert "adsum_pd_sidecar_prefill_seconds_count 1" in text
        decode.go.clear()
        running = asyncio.ensure_future(session.post(f"http://{at}{CHAT}", json=BODY).__aenter__())
        await eventually(lambda: len(decode.seen) == 3)
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.5)
        assert process.returncode is None
        decode.go.set()
        assert (await running).status == 200
        _, log = await asyncio.wait_for(process.communicate(), 90)
        assert process.returncode == 0
        assert b"no prefill at '10.0.0.1:80'" in log
        assert b"without effect here: -v, --zap-log-level, --enable-prefiller-sampling\n" in log
        assert log.splitlines()[-1].endswith(b"drained")


async def test_a_second_signal_ends_the_drain() -> None:
    async with (
        serving(Worker(Blocks())) as decode,
        program("--model-server-port", str(decode.port)) as (process, at),
        aiohttp.ClientSession() as session,
    ):
        decode.go.clear()
        running = asyncio.ensure_future(session.post(f"http://{at}{CHAT}", json=BODY).__aenter__())
        await eventually(lambda: decode.seen)
        assert process.stderr is not None
        line = await process.stderr.readline()
        assert b"any address is asked" in line
        assert b"--enable-ssrf-protection" in line, "a pool alone says nothing"
        process.send_signal(signal.SIGTERM)
        assert b"draining" in await process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.communicate(), 90)
        with pytest.raises(aiohttp.ClientError):
            await running


async def test_it_serves_over_tls(tmp_path: Path) -> None:
    certificate, trusted = made_certificate(tmp_path)
    async with (
        serving(Worker(Blocks())) as decode,
        program(
            *("--model-server-port", str(decode.port), "--secure-proxy", "--cert-path", str(certificate))
        ) as (_, at),
        aiohttp.ClientSession() as session,
        session.get(f"https://{at}/hello", ssl=trusted) as answer,
    ):
        assert await answer.read() == b"hello\x00\xff"


async def test_a_rank_has_a_port_of_its_own() -> None:
    first = consecutive_ports(2)
    own, ranks = consecutive_ports(2), ("--data-parallel-size", "2")
    async with (
        serving(Worker(Blocks()), first) as zero,
        serving(Worker(Blocks()), first + 1) as one,
        program("--model-server-port", str(first), "--port", str(own), *ranks) as (_, at),
        aiohttp.ClientSession() as session,
    ):
        assert at == f"127.0.0.1:{own}"
        for port in (own, own + 1):
            async with session.get(f"http://127.0.0.1:{port}/hello") as answer:
                assert answer.status == 200
        assert (len(zero.seen), len(one.seen)) == (1, 1)


def consecutive_ports(count: int) -> int:
    """The first of so many free ones; others of this run get none of them."""
    while True:
        ports = [free_port() for _ in range(count)]
        if ports == list(range(ports[0], ports[0] + count)):
            return ports[0]


async def test_it_speaks_tls_to_workers_and_reads_a_new_certificate(tmp_path: Path) -> None:
    """Two sidecars: the outer one's prefill worker and model server are the inner one's TLS port."""
    folder, _ = made_certificate(tmp_path)
    port = free_port()
    served = ("--model-server-port", str(port))
    async with (
        serving(Worker(Blocks()), port),
        program(*served, "--secure-proxy", "--cert-path", str(folder)) as (inner, secure),
        program(
            *("--model-server-port", secure.rpartition(":")[2], "--enable-tls", "prefiller,decoder"),
            *("--tls-insecure-skip-verify=prefiller", "--tls-insecure-skip-verify=decoder"),
        ) as (_, at),
        program(*served, "--enable-tls", "prefiller") as (_, strict),
        aiohttp.ClientSession() as session,
    ):
        headers = {"x-prefiller-host-port": secure}
        async with session.post(f"http://{at}{CHAT}", json=BODY, headers=headers) as answer:
            assert answer.status == 200
            assert "x-adsum-prefill-fallback" not in answer.headers
        async with session.post(f"http://{strict}{CHAT}", json=BODY, headers=headers) as answer:
            assert answer.headers["x-adsum-prefill-fallback"] == "unreachable"
        _, renewed = made_certificate(folder)

        async def has_the_new_one() -> bool:
            try:
                async with session.get(f"https://{secure}/hello", ssl=renewed) as answer:
                    return answer.status == 200
            except aiohttp.ClientError:
                return False

        await eventually(has_the_new_one)
        assert inner.returncode is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--kv-connector", "mooncake"], "expected one of nixlv2"),
        (["--secure-proxy"], "--secure-proxy needs --cert-path"),
        (
            ["--secure-proxy", "--cert-path", "/nowhere"],
            "no certificate and key in /nowhere/tls.crt and /nowhere/tls.key: No such file",
        ),
        (["--enable-tls", "encoder"], "'encoder' is no stage"),
        (["--prefill-component", "prefill"], "expected NAMESPACE/COMPONENT"),
        (["--allow-prefill", "a b"], "is not a host name"),
        (["--port", "70000"], "is not a port"),
        (["--enable-ssrf-protection"], "needs --inference-pool"),
        (
            ["--enable-ssrf-protection", "--prefill-component", "a/b", "--inference-pool", "a/b"],
            "both say who may be asked",
        ),
        (["--moriio-write-mode"], "unrecognized arguments: --moriio-write-mode"),
    ],
)
def test_a_wrong_argument_is_one_line(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(["pd-sidecar", *arguments])
    except SystemExit as end:
        code = end.code
    assert code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert expected in error
