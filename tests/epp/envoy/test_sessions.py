"""Through a real Envoy, what plugins say to clients and to workers: tokens, ranks, who served; bursts, and `GET /v1/models`."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from epp.config.settings import TransportKind
from epp.scheduling.affinity.sessions import TOKEN_HEADER
from epp.scheduling.conformance import SERVED_HEADER
from epp.scheduling.profile_handlers import RANK_HEADER
from tests.epp.envoy.picker_stage import picker_behind_envoy, started_worker
from tests.eventually import eventually
from tests.http_server import http_server
from tests.model_server_process import model_server

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


CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: burst-prefix-cache-producer, parameters: {windowDurationMs: 4000}}
- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: burst-prefix-cache-producer}}
"""


def naming(name: str) -> Handler:
    """A worker that answers with its name."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.json_response({"by": name})

    return answer


async def test_equal_prompts_wait_for_each_other_and_go_together(running_envoy: Any) -> None:
    async with AsyncExitStack() as stack:
        names = ("w0", "w1", "w2", "w3")
        ports = [await started_worker(stack, "/v1/completions", naming(name)) for name in names]
        envoy, _ = await stack.enter_async_context(
            picker_behind_envoy(running_envoy, ports, config_text=CONFIG)
        )
        client = await stack.enter_async_context(aiohttp.ClientSession())

        async def ask(letter: str) -> str:
            body = {"model": "m", "prompt": letter * 3000}
            async with client.post(envoy.url("/v1/completions"), json=body) as answer:
                assert answer.status == 200
                by: str = (await answer.json())["by"]
                return by

        for letters in ("ab", "cd", "ef"):  # a machine that stands still may make two windows of one burst
            served = await asyncio.gather(*(ask(letter) for letter in letters * 6))
            workers = [set(served[at::2]) for at in range(2)]
            if [len(each) for each in workers] == [1, 1]:
                break
    assert [len(each) for each in workers] == [1, 1]
    assert workers[0] != workers[1]


@asynccontextmanager
async def models_of(
    running_envoy: Any, *ports: int, **changes: Any
) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    """A client, and the URL of `/v1/models` at the Envoy before a picker of the workers at these ports."""
    stage = picker_behind_envoy(running_envoy, ports, "--access-log=", **changes)
    async with stage as (envoy, _), aiohttp.ClientSession() as client:
        yield client, envoy.url("/v1/models")


@pytest.mark.parametrize("transport", list(TransportKind))
async def test_the_picker_answers_with_the_models_of_all_workers(
    running_envoy: Any, transport: TransportKind, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with (
        model_server("m", "x") as (_, one),
        model_server("m", "y") as (_, other),
        models_of(running_envoy, one, other, transport=transport) as (client, url),
    ):
        await eventually(lambda: caplog.text.count("as its /v1/models says") == 2)
        async with client.get(url) as answer:
            assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
            assert "x-gateway-destination-endpoint-served" not in answer.headers
            page = await answer.json()
        assert page["object"] == "list"
        assert [model["id"] for model in page["data"]] == ["m", "x", "y"]


async def test_turned_off_a_worker_answers(running_envoy: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with (
        model_server("m") as (_, port),
        models_of(running_envoy, port, models_endpoint=False) as (client, url),
    ):
        await eventually(lambda: "as its /v1/models says" in caplog.text)
        async with client.get(url) as answer:
            assert answer.headers["x-gateway-destination-endpoint-served"] == f"127.0.0.1:{port}"
            assert [model["id"] for model in (await answer.json())["data"]] == ["m"]
