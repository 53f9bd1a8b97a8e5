"""Nobody waits without end: a worker that freezes alone in its pool, and a pool without a worker, through a real Envoy."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import aiohttp

from examples.demo.processes import DemoProcess, python
from tests.epp.conftest import envoy_running
from tests.epp.envoy.picker_stage import picker_behind_envoy

PROMPT = {"model": "tiny", "prompt": "x", "max_tokens": 2}


async def ask(client: aiohttp.ClientSession, envoy: Any) -> tuple[int, Any]:
    async with asyncio.timeout(90), client.post(envoy.url("/v1/completions"), json=PROMPT) as answer:
        return answer.status, await answer.json()


async def test_a_worker_that_freezes_alone_gives_an_error_that_says_so(tmp_path: Path) -> None:
    worker = await DemoProcess.start("worker", python("examples.simulator", "--no-register"), tmp_path)
    try:
        port = int((await worker.wait_ready())["http"].rpartition(":")[2])
        silence = "--stream-idle-timeout=8s"
        async with (
            picker_behind_envoy(envoy_running, [port], silence, "--access-log=") as (envoy, _),
            aiohttp.ClientSession() as client,
        ):
            assert (await ask(client, envoy))[0] == 200
            worker.send(signal.SIGSTOP)
            status, said = await ask(client, envoy)
            assert (status, said["error"]["code"]) == (504, "worker_timeout")
            assert said["error"]["message"] == "no byte of the answer came from the worker in time"
            worker.send(signal.SIGCONT)
            assert (await ask(client, envoy))[0] == 200
    finally:
        worker.send(signal.SIGKILL)
        await worker.terminate()


async def test_a_request_that_waits_for_a_worker_is_not_told_of_one() -> None:
    """Nothing listens at port 9."""
    waiting = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
featureGates: [flowControl]
flowControl: {noEndpointRequestTTL: 300s}
"""
    silence = "--stream-idle-timeout=3s"
    async with (
        picker_behind_envoy(envoy_running, [9], silence, "--access-log=", config_text=waiting) as (envoy, _),
        aiohttp.ClientSession() as client,
    ):
        status, said = await ask(client, envoy)
    assert (status, said["error"]["code"]) == (503, "picker_timeout")
