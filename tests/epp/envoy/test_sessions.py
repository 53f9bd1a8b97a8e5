"""What plugins say to clients and to workers, through a real Envoy: session tokens, the rank that was picked, who served."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from epp.scheduling.affinity.sessions import TOKEN_HEADER
from epp.scheduling.conformance import SERVED_HEADER
from epp.scheduling.profile_handlers import RANK_HEADER
from tests.epp.envoy.picker_stage import picker_behind_envoy
from tests.http_server import http_server

PROMPT = {"model": "m", "prompt": "x"}


def config(plugins: list[dict[str, Any]], used: list[str]) -> str:
    profile = {"name": "default", "plugins": [{"pluginRef": name} for name in used]}
    head = {"apiVersion": "llm-d.ai/v1", "kind": "EndpointPickerConfig"}
    return json.dumps(head | {"plugins": plugins, "schedulingProfiles": [profile]})


class Setup:
    """Workers that say what they got, a picker of this process and an Envoy."""

    def __init__(self, stack: AsyncExitStack, running_envoy: Any) -> None:
        self._stack = stack
        self._running_envoy = running_envoy
        self._url = ""
        self._client = aiohttp.ClientSession()

    async def worker(self) -> int:
        return await self._stack.enter_async_context(http_server({"POST /{path:.*}": self._answer}))

    async def _answer(self, request: web.Request) -> web.Response:
        transport = request.transport
        assert transport is not None
        port = transport.get_extra_info("sockname")[1]
        return web.json_response(
            {"port": port, "headers": {k.lower(): v for k, v in request.headers.items()}}
        )

    async def start(self, ports: list[int], text: str, *, override_host: bool = False) -> None:
        flags: list[str] = []
        if override_host:
            flags = ["--mode=override-host", *(f"--endpoint=127.0.0.1:{port}" for port in ports)]
        stage = picker_behind_envoy(self._running_envoy, ports, *flags, config_text=text)
        envoy, _ = await self._stack.enter_async_context(stage)
        await self._stack.enter_async_context(self._client)
        self._url = envoy.url("/v1/completions")

    async def ask(self, headers: Mapping[str, str] | None = None) -> tuple[Any, Mapping[str, str]]:
        """What the worker got, and the headers of its answer."""
        async with self._client.post(self._url, json=PROMPT, headers=headers) as answer:
            assert answer.status == 200
            return await answer.json(), answer.headers


@pytest.fixture
async def setup(running_envoy: Any) -> AsyncIterator[Setup]:
    async with AsyncExitStack() as stack:
        yield Setup(stack, running_envoy)


@pytest.mark.parametrize("kind", ["session-affinity-filter", "session-affinity-scorer"])
async def test_a_client_that_sends_its_token_back_stays_at_its_worker(setup: Setup, kind: str) -> None:
    picker = "max-score-picker" if kind.endswith("scorer") else "random-picker"
    plugins = [{"type": kind}, {"type": picker}]
    await setup.start([await setup.worker() for _ in range(3)], config(plugins, [kind, picker]))
    first, headers = await setup.ask()
    token = headers[TOKEN_HEADER]
    for _ in range(10):
        got, headers = await setup.ask({TOKEN_HEADER: token})
        assert got["port"] == first["port"]
        assert headers[TOKEN_HEADER] == token
    for of_nobody in ("bm9ib2R5", "!", "a" * 5000, "//8="):
        _, headers = await setup.ask({TOKEN_HEADER: of_nobody})
        assert headers[TOKEN_HEADER] not in (of_nobody, "")


async def test_without_such_a_plugin_no_header_is_set(setup: Setup) -> None:
    await setup.start([await setup.worker()], config([{"type": "queue-scorer"}], ["queue-scorer"]))
    _, headers = await setup.ask()
    assert not {TOKEN_HEADER, SERVED_HEADER} & {name.lower() for name in headers}


async def test_who_served_is_said_beside_a_token(setup: Setup) -> None:
    plugins = [{"type": "destination-endpoint-served-verifier"}, {"type": "session-affinity-filter"}]
    port = await setup.worker()
    await setup.start([port], config(plugins, ["session-affinity-filter"]), override_host=True)
    _, headers = await setup.ask()
    assert headers[SERVED_HEADER] == f"127.0.0.1:{port}"
    assert headers[TOKEN_HEADER]


async def test_a_sidecar_is_told_the_rank_that_was_picked(setup: Setup) -> None:
    sidecar, *ranks = [await setup.worker() for _ in range(3)]
    handler = {"type": "data-parallel-profile-handler", "parameters": {"primaryPort": sidecar}}
    await setup.start(ranks, config([handler, {"type": "random-picker"}], ["random-picker"]))
    told = set()
    for _ in range(20):
        got, _ = await setup.ask({RANK_HEADER: "203.0.113.1:1"})
        assert got["port"] == sidecar
        told.add(got["headers"][RANK_HEADER])
    assert told == {f"127.0.0.1:{port}" for port in ranks}
