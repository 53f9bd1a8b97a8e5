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
from tests.raw_server import raw_server
from tests.started import ready, started

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
async def tracing(
    arguments: list[str], given: dict[str, str]
) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, str]]]:
    """The process and what its ready line says."""
    pipe, own = asyncio.subprocess.PIPE, os.environ | given
    async with started(sys.executable, "-m", *arguments, "--tracing", stderr=pipe, env=own) as process:
        yield process, await ready(process)


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
    given: dict[str, str], words: bytes
) -> None:
    async with tracing(PICKER, given) as (process, _):
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
            command = ["dispatcher", "--config", dispatcher_file(tmp_path, target.url)]
            async with tracing(command, given) as (process, said):
                await wait_for_an_answer(said["http"])
                assert collector.spans == []
                process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(90):
                    assert await process.wait() == 0
        assert {"enqueue-request", "process-request", "http-request"} <= set(collector.names())


async def wait_for_an_answer(address: str) -> None:
    url, headers = f"http://{address}/v1/completions", {"X-Dispatch": "wait"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json={"model": "m", "prompt": "hello"}, headers=headers) as answer,
    ):
        assert answer.status == 200


async def test_a_collector_that_never_answers_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """Its port accepts connections and says nothing."""
    ended: list[bool] = []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.append(False)
        while await reader.read(65536):
            pass
        ended[ended.index(False)] = True

    async with raw_server(silent) as port:
        given = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "3600",
            "OTEL_TRACES_SAMPLER": "always_on",
            "OTEL_BSP_SCHEDULE_DELAY": "1",
        }
        async with Target() as target:
            command = ["dispatcher", "--config", dispatcher_file(tmp_path, target.url)]
            async with tracing(command, given) as (process, said):
                for _ in range(3):
                    await wait_for_an_answer(said["http"])
                process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(90):  # not an hour
                    assert await process.wait() == 0
        await eventually(lambda: all(ended))
    assert ended


async def test_the_console_exporter_leaves_the_ready_line_alone() -> None:
    given = {"OTEL_TRACES_EXPORTER": "console", "OTEL_TRACES_SAMPLER": "nonsense"}
    async with tracing(PICKER, given) as (process, _):
        process.send_signal(signal.SIGTERM)
        _, logged = await process.communicate()
    assert b"OTEL_TRACES_SAMPLER is 'nonsense'; expected one of" in logged
