"""Through a real Envoy: a request under another model's name, and its answer back, however the data plane sends bodies."""

import asyncio
import gzip
import io
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from discovery import Instance, InstanceAddedEvent
from epp.config.settings import TransportKind
from epp.endpoints.datastore import Datastore
from epp.endpoints.load import Load
from epp.envoy.config import render
from epp.envoy.json_values import Address
from epp.request.model_rewrite import ModelRewrites, RewriteRule, RewriteTarget
from tests.epp.envoy.test_envoy import LOCAL, Mesh
from tests.epp.envoy.test_failures import picker_process
from tests.epp.scheduling.test_director import director

ALIAS, SERVED = "gpt-4", "llama-3-8b-instruct"
RULE = RewriteRule("alias", "2026-01-05T00:00:00Z", (ALIAS,), (RewriteTarget(SERVED),))
HEADER = {"x-llm-d-model-name-rewrite": SERVED}
WORDS = ["a", "ä", '"model":"llama-3-8b-instruct"', "😀"] * 5

GO_GATEWAY = {"response_body": "FULL_DUPLEX_STREAMED", "response_trailer": "SEND"}
"""What the Go picker's own Envoy configurations say."""
OURS = {"response_body": "STREAMED"}
BUFFERED = {"request_body": "BUFFERED", "response_body": "BUFFERED"}
MODES = pytest.mark.parametrize("modes", [GO_GATEWAY, OURS, BUFFERED], ids=["go gateway", "ours", "buffered"])


@dataclass
class ModelServer:
    """Answers as vLLM does, with the model that it was asked for, in ragged pieces."""

    asked: list[dict[str, Any]] = field(default_factory=list)
    lengths: list[int | None] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.raw.append(await request.read())
        self.lengths.append(request.content_length)
        body = json.loads(self.raw[-1])
        self.asked.append(body)
        if body.get("stream"):
            return await self._stream(request, body["model"], hold="hold" in body)
        content = {"id": "1", "model": body["model"], "choices": [{"text": word} for word in WORDS]}
        text = json.dumps(content).encode()
        if "compress" in body:
            packed = {"content-encoding": "gzip"}
            return web.Response(body=gzip.compress(text), content_type="application/json", headers=packed)
        return web.Response(body=text, content_type="application/json")

    async def _stream(self, request: web.Request, model: str, *, hold: bool) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        chunks = [{"id": "1", "model": model, "choices": [{"text": word}]} for word in WORDS]
        pieces = [*(json.dumps(chunk).encode() for chunk in chunks), b"[DONE]"]
        text = b"".join(b"data: %s\n\n" % piece for piece in pieces)
        for at in range(0, len(text), 37):
            await response.write(text[at : at + 37])
            await asyncio.sleep(0)
            if hold and at > len(text) // 2:
                await self.go_on.wait()
        return response


class Gateway:
    """One model server that declares what it serves, a picker with one rule, and Envoys."""

    def __init__(self, mesh: Mesh, stack: AsyncExitStack) -> None:
        self._mesh = mesh
        self._stack = stack
        self.worker = ModelServer()
        self.rewrites = ModelRewrites([RULE])

    async def open(self) -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/{path:.*}", self.worker.answer)
        server = await self._stack.enter_async_context(TestServer(app))
        self.worker.port = server.port or 0
        store = Datastore()
        instance = Instance("w0", "ns", "c", "127.0.0.1", self.worker.port, "a")
        store.apply(InstanceAddedEvent(instance), {"model": {"name": SERVED}})
        store.observe(store.endpoints[0], Load(waiting=0, running=0, kv_usage=0), 1e12)
        self._mesh.director = director(store, rewrites=self.rewrites)
        self.picker = await self._mesh.picker()
        self.client = await self._stack.enter_async_context(aiohttp.ClientSession(auto_decompress=False))

    async def url(self, picker: Address | None = None, **modes: str) -> str:
        asked = picker or Address("127.0.0.1", self.picker.port)
        settings = replace(LOCAL, pickers=(asked,), **modes)  # type: ignore[arg-type]
        envoy = await self._mesh.envoy(render(settings))
        address: str = envoy.url("/v1/completions")
        return address

    async def ask(self, url: str, data: Any, **headers: str) -> tuple[aiohttp.ClientResponse, bytes]:
        sent = {"content-type": "application/json"} | {n.replace("_", "-"): v for n, v in headers.items()}
        async with self.client.post(url, data=data, headers=sent) as answer:
            return answer, await answer.read()


TRANSPORTS = pytest.mark.parametrize("gateway", list(TransportKind), indirect=True)
"""For tests in which the transport takes part; the others run over our own."""


@pytest.fixture
async def gateway(request: pytest.FixtureRequest, running_envoy: Any) -> AsyncIterator[Gateway]:
    async with AsyncExitStack() as stack:
        mesh = Mesh(getattr(request, "param", TransportKind.HTTP2), stack, running_envoy, None)
        opened = Gateway(mesh, stack)
        await opened.open()
        yield opened


def events(body: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix(b"data: ") for line in body.split(b"\n\n") if line]
    assert lines.pop() == b"[DONE]"
    return [json.loads(line) for line in lines]


@TRANSPORTS
@MODES
async def test_a_worker_gets_its_model_and_the_client_sees_its_own(
    gateway: Gateway, modes: dict[str, str]
) -> None:
    """Answers that are streamed and that are not; by the rule, and by the header alone, where no rule names the model."""
    url = await gateway.url(**modes)
    for named, headers in ((ALIAS, {}), ("any model", {"x_llm_d_model_name_rewrite": SERVED})):
        for stream in (False, True, False, True):
            body = {"prompt": f"x {named}", "stream": stream, "model": named, "nested": {"model": named}}
            answer, content = await gateway.ask(url, json.dumps(body).encode(), **headers)
            assert answer.status == 200, content
            if stream:
                seen = events(content)
                assert [event["model"] for event in seen] == [named] * len(WORDS)
                assert [event["choices"][0]["text"] for event in seen] == WORDS
            else:
                whole = json.loads(content)
                assert whole["model"] == named
                assert [choice["text"] for choice in whole["choices"]] == WORDS
            assert gateway.worker.asked[-1] == body | {"model": SERVED}


@MODES
async def test_nothing_but_the_model_changes_and_the_length_is_right(
    gateway: Gateway, modes: dict[str, str]
) -> None:
    url = await gateway.url(**modes)
    for size in (1, 70_000, 900_000):
        body = b'\n{ "model" :\t"gpt-4" , "prompt":"%b" , "x":[1.50e3,{"model":"gpt-4"}] }' % (b"y" * size)
        expected = body.replace(b'"gpt-4"', b'"llama-3-8b-instruct"', 1)
        for sent in (io.BytesIO(body), _pieces(body)):  # with a length, and chunked
            answer, content = await gateway.ask(url, sent)
            assert answer.status == 200, content[:200]
            assert json.loads(content)["model"] == ALIAS
            assert gateway.worker.raw.pop() == expected
            assert gateway.worker.lengths.pop() in (None, len(expected))
            assert answer.content_length in (None, len(content))


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(body), 50_000):
        yield body[at : at + 50_000]


@MODES
async def test_requests_for_other_models_and_compressed_answers_pass_as_they_are(
    gateway: Gateway, modes: dict[str, str]
) -> None:
    url = await gateway.url(**modes)
    plain = json.dumps({"model": SERVED, "prompt": "x"}).encode()
    answer, content = await gateway.ask(url, plain)
    assert (answer.status, json.loads(content)["model"]) == (200, SERVED)
    assert gateway.worker.raw == [plain]
    _, content = await gateway.ask(url, b'{"model":"gpt-4","prompt":"x","compress":true}')
    assert json.loads(gzip.decompress(content))["model"] == SERVED


async def test_a_model_that_nobody_serves_is_called_by_the_clients_name(gateway: Gateway) -> None:
    gateway.rewrites.replace([replace(RULE, targets=(RewriteTarget("no such model"),))])
    answer, content = await gateway.ask(await gateway.url(), b'{"model":"gpt-4","prompt":"x"}')
    assert answer.status == 404
    assert "'gpt-4'" in json.loads(content)["error"]["message"]


async def test_no_stream_is_held_open_for_an_answer_that_nobody_reads(gateway: Gateway) -> None:
    """Envoy keeps its copy of a STREAMED body: the picker ends the stream at the headers, and the answer is whole."""
    url = await gateway.url(**OURS)
    for _ in range(20):
        _, content = await gateway.ask(
            url, json.dumps({"model": SERVED, "prompt": "x", "stream": True}).encode()
        )
        assert len(events(content)) == len(WORDS)
    _, content = await gateway.ask(url, json.dumps({"model": ALIAS, "prompt": "x", "stream": True}).encode())
    assert {event["model"] for event in events(content)} == {ALIAS}


@TRANSPORTS
@pytest.mark.parametrize("modes", [GO_GATEWAY, OURS], ids=["go gateway", "ours"])
async def test_a_drain_lets_a_rewritten_answer_end(gateway: Gateway, modes: dict[str, str]) -> None:
    url = await gateway.url(**modes)
    body = json.dumps({"model": ALIAS, "prompt": "x", "stream": True}).encode()
    headers = {"content-type": "application/json"}
    async with gateway.client.post(url, data=body, headers=headers) as answer:
        gateway.picker.transport.drain()
        seen = events(await answer.read())
    assert [event["model"] for event in seen] == [ALIAS] * len(WORDS)


@pytest.mark.parametrize(
    ("modes", "headers", "whole"), [(OURS, {}, True), (OURS, HEADER, False), (GO_GATEWAY, {}, False)]
)
async def test_a_killed_picker_cuts_only_answers_that_pass_through_it(
    gateway: Gateway, modes: dict[str, str], headers: dict[str, str], whole: bool
) -> None:
    """As docs/envoy.md says. The picker is the whole program, killed in the middle of an answer."""
    async with picker_process("--endpoint", f"127.0.0.1:{gateway.worker.port}") as (running, address):
        url = await gateway.url(Address.parse(address), **modes)
        body = json.dumps({"model": ALIAS, "prompt": "x", "stream": True, "hold": True}).encode()
        sent = {"content-type": "application/json"} | headers
        async with gateway.client.post(url, data=body, headers=sent) as answer:
            first = await answer.content.readline()
            running.kill()
            await running.wait()
            gateway.worker.go_on.set()
            if whole:
                assert events(first + await answer.read())[-1]["model"] == ALIAS
            else:
                with pytest.raises(aiohttp.ClientError):
                    await answer.read()
    assert gateway.worker.asked[-1]["model"] == (SERVED if headers else ALIAS)
