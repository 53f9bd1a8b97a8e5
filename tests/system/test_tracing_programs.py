"""The picker and the dispatcher as processes that record traces: what they need, and what is sent when they end."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.dispatcher.dispatching import document
from tests.dispatcher.target import Target
from tests.eventually import eventually
from tests.otlp_collector import grpc_collector

PICKER = ["epp", "--endpoint", "127.0.0.1:9", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0"]
_WITHOUT = """
import runpy, sys
sys.modules["opentelemetry"] = None
sys.argv = {arguments!r}
runpy.run_module(sys.argv[0], run_name="__main__")
"""


def dispatcher_file(folder: Path, target: str) -> str:
    path = folder / "dispatcher.yaml"
    path.write_text(document(target) + "front_door: {queue: batch}\n")
    return str(path)


@pytest.mark.parametrize("program", ["epp", "dispatcher"])
def test_without_the_extra_the_error_names_it(program: str, tmp_path: Path) -> None:
    dispatcher = ["dispatcher", "--config", dispatcher_file(tmp_path, "http://127.0.0.1:9")]
    arguments = [*(PICKER if program == "epp" else dispatcher), "--tracing"]
    code = _WITHOUT.format(arguments=arguments)
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150)
    assert said.returncode == 1
    (line,) = [line for line in said.stderr.splitlines() if line.startswith("error: ")]
    assert "traces cannot be recorded: the module 'opentelemetry" in line
    assert "pip install '.[otel]'" in line
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "expected otlp, console or none"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "expected grpc or http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, "OTEL_EXPORTER_OTLP_*: "),
        ({"OTEL_EXPORTER_OTLP_COMPRESSION": "brotli"}, 'OTEL_EXPORTER_OTLP_*: \'Invalid value "brotli"'),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://me:pass@[::1"}, "OTEL_EXPORTER_OTLP_*: 'Invalid IPv6 URL'"),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "-1"}, "OTEL_BSP_*: "),
    ],
)
def test_a_variable_that_makes_no_sense_ends_the_start(given: Mapping[str, str], words: str) -> None:
    command = [sys.executable, "-m", *PICKER, "--tracing"]
    said = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **given}, timeout=150)
    assert said.returncode == 1
    assert "Traceback" not in said.stderr
    assert words in said.stderr.splitlines()[-1]


@asynccontextmanager
async def started(
    arguments: list[str], given: Mapping[str, str]
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The process and its ready line; killed in the end if it still runs."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *arguments, stdout=pipe, stderr=pipe, env={**os.environ, **given}
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(90):
            line = (await process.stdout.readline()).decode()
        assert line.startswith("ready "), (await process.communicate())[1].decode()
        yield process, line
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "https://127.0.0.1:9",
                "OTEL_EXPORTER_OTLP_CERTIFICATE": "/nowhere.pem",
            },
            b"Failed to read file: /nowhere.pem",
        ),
        ({"OTEL_BSP_SCHEDULE_DELAY": "soon"}, b"OTEL_BSP_SCHEDULE_DELAY"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "api key TOKEN-123"}, b"Header format invalid"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "team"}, b"Invalid key value resource attribute pair team"),
    ],
)
async def test_a_variable_that_opentelemetry_ignores_is_a_warning(
    given: Mapping[str, str], words: bytes
) -> None:
    async with started([*PICKER, "--tracing"], given) as (process, _):
        process.send_signal(signal.SIGTERM)
        _, logged = await process.communicate()
    [line] = [line for line in logged.splitlines() if b"a variable OTEL_* is ignored" in line]
    assert words in line
    assert b"TOKEN-123" not in logged


async def test_what_is_recorded_is_sent_when_the_program_ends(tmp_path: Path) -> None:
    with grpc_collector() as collector:
        given = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_TRACES_SAMPLER": "always_on",
            "OTEL_BSP_SCHEDULE_DELAY": "3600000",
        }
        async with Target() as target:
            command = ["dispatcher", "--tracing", "--config", dispatcher_file(tmp_path, target.url)]
            async with started(command, given) as (process, ready), aiohttp.ClientSession() as session:
                url = ready.split()[1].removeprefix("http=")
                headers = {"X-Dispatch": "wait"}
                body = {"model": "m", "prompt": "hello"}
                async with session.post(f"http://{url}/v1/completions", json=body, headers=headers) as said:
                    assert said.status == 200
                assert collector.spans == []
                process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(90):
                    assert await process.wait() == 0
        assert {"enqueue-request", "process-request", "http-request"} <= set(collector.names())


async def test_a_collector_that_never_answers_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """Its port accepts connections and says nothing."""
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while await reader.read(65536):  # until the program has ended
            pass
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        given = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "3600",
            "OTEL_TRACES_SAMPLER": "always_on",
            "OTEL_BSP_SCHEDULE_DELAY": "1",
        }
        async with Target() as target:
            command = ["dispatcher", "--tracing", "--config", dispatcher_file(tmp_path, target.url)]
            async with started(command, given) as (process, ready), aiohttp.ClientSession() as session:
                url = ready.split()[1].removeprefix("http=")
                for _ in range(3):
                    asked = session.post(
                        f"http://{url}/v1/completions",
                        json={"prompt": "hello"},
                        headers={"X-Dispatch": "wait"},
                    )
                    async with asked as said:
                        assert said.status == 200
                process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(90):  # not an hour
                    assert await process.wait() == 0
        await eventually(lambda: all(writer.is_closing() for writer in writers))
        for writer in writers:
            await writer.wait_closed()
    assert writers


async def test_the_console_exporter_leaves_the_ready_line_alone() -> None:
    given = {"OTEL_TRACES_EXPORTER": "console", "OTEL_TRACES_SAMPLER": "nonsense"}
    async with started([*PICKER, "--tracing"], given) as (process, _):
        process.send_signal(signal.SIGTERM)
        _, logged = await process.communicate()
    assert b"OTEL_TRACES_SAMPLER is 'nonsense'; expected one of" in logged
