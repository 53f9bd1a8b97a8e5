"""`adsum registry pd-sidecar` as a process: its arguments, its ports, TLS, its drain."""

import asyncio
import datetime
import signal
import ssl
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from epp.wire.certificate import self_signed
from registry.__main__ import main
from tests.free_port import free_port
from tests.registry.disaggregation.conftest import BODY, CHAT
from tests.registry.disaggregation.workers import Blocks, Worker, serving

Eventually = Callable[..., Awaitable[float]]


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
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "registry", "pd-sidecar", "--address", "127.0.0.1", "--port", "0"),
        *("--model-server-host", "127.0.0.1", *arguments),
        stdout=PIPE,
        stderr=PIPE,
    )
    assert process.stdout is not None
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), 90)).decode()
        assert line.startswith("ready http="), line
        yield process, line.split()[1].partition("=")[2]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_it_serves_says_what_it_counted_and_drains(eventually: Eventually) -> None:
    blocks = Blocks()
    metrics = free_port()
    async with (
        serving(Worker(blocks)) as prefill,
        serving(Worker(blocks)) as decode,
        program(
            *("--model-server-port", str(decode.port), "--metrics-port", str(metrics)),
            *("--allow-prefill", "127.0.0.1,[::1]:80", "--kv-connector", "nixlv2", "--secure-proxy=false"),
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
        assert log.splitlines()[-1].endswith(b"drained")


async def test_a_second_signal_ends_the_drain(eventually: Eventually) -> None:
    async with (
        serving(Worker(Blocks())) as decode,
        program("--model-server-port", str(decode.port)) as (process, at),
        aiohttp.ClientSession() as session,
    ):
        decode.go.clear()
        running = asyncio.ensure_future(session.post(f"http://{at}{CHAT}", json=BODY).__aenter__())
        await eventually(lambda: decode.seen)
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        _, log = await asyncio.wait_for(process.communicate(), 90)
        assert b"any address is asked" in log
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


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--kv-connector", "mooncake"], "expected one of nixlv2"),
        (["--secure-proxy"], "--secure-proxy needs --cert-path"),
        (["--secure-proxy", "--cert-path", "/nowhere"], "no certificate and key in /nowhere: No such file"),
        (["--enable-tls", "encoder"], "'encoder' is no stage"),
        (["--prefill-component", "prefill"], "expected NAMESPACE/COMPONENT"),
        (["--allow-prefill", "a b"], "is not a host name"),
        (["--port", "70000"], "is not a port"),
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
