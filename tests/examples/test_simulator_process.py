"""The simulator as its users start it: a process of its own."""

import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import anyio
import pytest
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

import discovery
from discovery.instance import InstanceStatus
from epp.config.settings import Settings as PickerSettings
from examples.simulator.__main__ import _parser, _settings, main
from tests.eventually import eventually
from tests.in_process import run_here
from tests.warm_python import WARM_PYTHON

LONG = {"model": "tiny", "prompt": "again and again", "max_tokens": 40, "stream": True}  # half a second
LONGER = LONG | {"max_tokens": 500}  # six seconds


@dataclass(frozen=True, slots=True)
class Worker:
    process: Process
    url: str
    instance_id: str


def command(*arguments: str) -> list[str]:
    return [WARM_PYTHON, "-m", "examples.simulator", *arguments]


@asynccontextmanager
async def simulator(*arguments: str) -> AsyncIterator[Worker]:
    """Started and ready; killed if the test left it running."""
    process = await anyio.open_process(command(*arguments), stderr=None)
    try:
        assert process.stdout is not None
        line = await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 1000)
        word, http, instance = line.decode().split()
        assert word == "ready"
        yield Worker(process, "http://" + http.removeprefix("http="), instance.removeprefix("instance="))
    finally:
        if process.returncode is None:
            process.kill()
        await process.aclose()


async def health(http: aiohttp.ClientSession) -> int:
    async with http.get("/health") as response:
        return response.status


async def test_it_serves_flips_and_finishes_what_runs_before_it_leaves() -> None:
    async with (
        simulator("--no-register", "--instance-id", "sim-1") as worker,
        aiohttp.ClientSession(worker.url) as http,
    ):
        assert worker.instance_id == "sim-1"
        assert await health(http) == 200
        for expected in (503, 200):
            worker.process.send_signal(signal.SIGUSR1)
            with anyio.fail_after(90):
                while await health(http) != expected:
                    await anyio.sleep(0.01)
        async with http.post("/v1/completions", json=LONG) as response:
            worker.process.terminate()
            assert (await response.content.read()).endswith(b"data: [DONE]\n\n")
        with anyio.fail_after(90):
            assert await worker.process.wait() == 0


@pytest.mark.parametrize("how", ["timeout", "second signal"])
async def test_a_drain_is_bounded(how: str) -> None:
    timeout = "0.2" if how == "timeout" else "60"
    async with (
        simulator("--no-register", "--drain-timeout", timeout) as worker,
        aiohttp.ClientSession(worker.url) as http,
        http.post("/v1/completions", json=LONG | {"max_tokens": 10_000}) as response,
    ):
        worker.process.terminate()
        if how == "second signal":
            with anyio.fail_after(90):
                while await health(http) != 503:
                    await anyio.sleep(0.01)
            worker.process.terminate()
        with pytest.raises(aiohttp.ClientError):
            await response.read()
        with anyio.fail_after(90):
            assert await worker.process.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["--namespace", "no/slash"], 2, "namespace 'no/slash' is not a DNS-1123 label"),
        (["--component", "a/b", "--instance-id", "a"], 2, "component 'a/b' is not a DNS-1123 label"),
        (["--component", ""], 2, "component '' is not a DNS-1123 label"),
        (["--instance-id", "Up"], 2, "instance id 'Up'"),
        (["--speed", "0"], 2, "--speed must be more than 0"),
        (["--speed", "nan"], 2, "--speed must be more than 0"),
        (["--port", "70000"], 2, "'70000' is not a port"),
        (["--port", "x"], 2, "'x' is not a port: 0 to 65535"),
        (["--drain-timeout", "soon"], 2, "'soon' is not a number of seconds"),
        (["--label", "nothing"], 2, "--label 'nothing' is not KEY=VALUE"),
        (["--adapter", "a", "--max-lora", "0"], 2, "--adapter needs --max-lora"),
        (["--discovery", "gopher://x"], 2, "'gopher://x' is not a registry URL"),
        (["--max-num-seqs", "0"], 2, "max_num_seqs must be at least 1"),
        (["--max-model-len", "10000000"], 2, "--max-model-len must be"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(arguments: list[str], code: int, why: str) -> None:
    result = run_here(main, *arguments)
    assert result.returncode == code
    [line] = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert why in line


def test_a_taken_port_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run_here(main, "--no-register", "--port", str(port))
    assert result.returncode == 1
    assert result.stderr.startswith(f"error: cannot listen on 127.0.0.1:{port}: ")
    assert len(result.stderr.splitlines()) == 1


async def test_an_id_in_use_is_one_clear_line(tmp_path: Path) -> None:
    arguments = ("--discovery", f"file://{tmp_path}", "--instance-id", "only-one")
    async with simulator(*arguments) as worker:
        result = await anyio.run_process(command(*arguments), check=False)
        assert result.returncode == 1
        error = result.stderr.decode()
        assert error.startswith("error: ")
        assert "only-one" in error
        assert len(error.splitlines()) == 1
        assert worker.process.returncode is None


async def test_it_registers_as_any_worker_and_says_when_it_leaves(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    arguments = ("--discovery", url, "--adapter", "poet", "coder", "--label", "tier=gold")
    async with (
        discovery.open(url) as found,
        found.watch("default", "default") as watch,
        simulator(*arguments) as worker,
    ):
        await eventually(lambda: worker.instance_id in watch.instances)
        instance = watch.instances[worker.instance_id]
        assert instance.status is InstanceStatus.READY
        assert instance.labels["tier"] == "gold"
        document = await instance.metadata()
        port = int(worker.url.rpartition(":")[2])
        assert document["model"]["name"] == "tiny"
        assert document["model"]["adapters"] == ["poet", "coder"]
        assert document["transport"]["http"] == {
            "port": port,
            "metrics_port": port,
            "metrics_path": "/metrics",
            "engine": "vllm",
        }
        worker.process.send_signal(signal.SIGUSR1)
        await eventually(lambda: worker.instance_id not in watch.instances)
        worker.process.send_signal(signal.SIGUSR1)
        await eventually(lambda: worker.instance_id in watch.instances)
        async with (
            aiohttp.ClientSession(worker.url) as http,
            http.post("/v1/completions", json=LONGER) as response,
        ):
            worker.process.terminate()
            await eventually(lambda: worker.instance_id not in watch.instances)
            assert worker.process.returncode is None  # it still answers
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        with anyio.fail_after(90):
            assert await worker.process.wait() == 0
        assert not [
            name for name in os.listdir(tmp_path / "default" / "default") if worker.instance_id in name
        ]


def test_with_no_flags_it_is_where_a_picker_with_no_flags_looks() -> None:
    settings = _settings(_parser().parse_args([]))
    assert settings.announcement is not None
    picker = PickerSettings()
    assert (settings.announcement.namespace, settings.announcement.component) == (
        picker.namespace,
        picker.component,
    )
