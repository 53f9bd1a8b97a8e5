"""Serves a simulated worker's HTTP API with aiohttp: OpenAI's API, /metrics, /health."""

import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from discovery.instance import InstanceStatus
from examples.simulator import encoding, handover, metrics_page, openai_api
from examples.simulator.encoding import Encoder
from examples.simulator.faults import PATH as FAULT_PATH
from examples.simulator.faults import Faults
from examples.simulator.handover import KvHandovers, TransferFailedError
from examples.simulator.metrics_page import MetricsPage
from examples.simulator.openai_api import ApiError, Generation, Profile, Reply
from examples.simulator.pacing import Pacer, TokenStream
from examples.simulator.scheduler_model import Work
from examples.simulator.state import WorkerState
from examples.simulator.tokens import block_digests

if TYPE_CHECKING:
    from examples.simulator.kv_events import CacheEvents

SERVED_BY_HEADER = "x-served-by"
REQUEST_ID_HEADER = "x-request-id"

_BODY_LIMIT = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ModelServer:
    """The HTTP handlers. `block_size`: tokens in one KV block. `faults`: None: it has none. `kv_events` None: it publishes none.

    `handovers`, `encoder` None: it does all stages of a request by itself.
    """

    profile: Profile
    pacer: Pacer
    page: MetricsPage
    state: WorkerState
    block_size: int
    faults: Faults | None = None
    kv_events: "CacheEvents | None" = None
    handovers: KvHandovers | None = None
    encoder: Encoder | None = None

    def app(self) -> web.Application:
        """Serve it with `handler_cancellation=True`, or the request of a client that disconnects runs to its end."""
        app = web.Application(client_max_size=_BODY_LIMIT, middlewares=[_openai_errors])
        if self.faults is not None:
            app.middlewares.append(self.faults.middleware)
            app.router.add_post(FAULT_PATH, self.faults.choose)
        app.on_response_prepare.append(self._sign)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat_completions)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/health", self._health)
        self._add_kv_events(app)
        if self.handovers is not None:
            app.router.add_post(handover.PATH, self.handovers.serve)
        if self.encoder is not None:
            app.router.add_get(encoding.PATH, self.encoder.serve)
        return app

    def _add_kv_events(self, app: web.Application) -> None:
        """What the worker that it stands for has, vLLM if it publishes nothing. TensorRT-LLM says all that only over gRPC."""
        kind = "vllm" if self.kv_events is None else self.kv_events.format
        if kind == "vllm":
            app.router.add_get("/kv_event_sources", self._kv_event_sources)
            app.router.add_post("/v1/completions/render", self._render)
            app.router.add_post("/v1/chat/completions/render", self._render)
        if kind == "sglang":
            app.router.add_get("/server_info", self._server_info)
        if kind != "trtllm":
            app.router.add_post("/tokenize", self._tokenize)

    async def _sign(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers[SERVED_BY_HEADER] = self.profile.instance_id
        if (request_id := request.headers.get(REQUEST_ID_HEADER)) is not None:
            response.headers[REQUEST_ID_HEADER] = request_id
        if self.state.status is InstanceStatus.DRAINING:
            response.headers["Connection"] = "close"  # force_close alone comes too late for the header
            response.force_close()

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def _chat_completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def _models(self, request: web.Request) -> web.Response:
        return _json(openai_api.models(self.profile, created=int(time.time())))

    async def _metrics(self, request: web.Request) -> web.Response:
        text = self.page.render(self.pacer.load(), self.pacer.totals, time.time())
        return web.Response(body=text.encode(), headers={"Content-Type": metrics_page.CONTENT_TYPE})

    async def _health(self, request: web.Request) -> web.Response:
        ready = self.state.status is InstanceStatus.READY
        return _json({"status": self.state.status.value}, status=200 if ready else 503)

    async def _kv_event_sources(self, request: web.Request) -> web.Response:
        return _json({} if self.kv_events is None else self.kv_events.sources())

    async def _server_info(self, request: web.Request) -> web.Response:
        return _json({"kv_events": None if self.kv_events is None else self.kv_events.server_info()})

    async def _render(self, request: web.Request) -> web.Response:
        chat = request.path.startswith("/v1/chat/")
        tokens = openai_api.tokens_of(await request.read(), chat=chat, profile=self.profile)
        rendered = {"request_id": uuid.uuid4().hex, "token_ids": tokens, "sampling_params": {}}
        return _json(rendered if chat else [rendered])

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.read()
        tokens = openai_api.tokens_of(body, chat=b'"messages"' in body, profile=self.profile)
        answer: dict[str, Any] = {"count": len(tokens), "max_model_len": self.profile.max_model_len}
        return _json(answer | {"tokens": tokens})

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        started = time.monotonic()
        role = "both" if self.handovers is None else self.handovers.role
        with self.state.request():
            generation = openai_api.parse(await request.read(), chat=chat, profile=self.profile, role=role)
            reply = Reply(
                generation,
                request_id=request.headers.get(REQUEST_ID_HEADER) or uuid.uuid4().hex,
                instance_id=self.profile.instance_id,
                created=int(time.time()),
            )
            if role == "encode" and self.encoder is not None:
                encoded = await self.encoder.encode(generation.media)
                return _json(reply.response_body(0) | {"ec_transfer_params": encoded})
            answer = self._stream if generation.stream else self._collect
            response = await answer(request, reply, started)
            self.page.request_latency.observe(time.monotonic() - started)
            return response

    @asynccontextmanager
    async def _generating(self, generation: Generation) -> AsyncIterator[TokenStream]:
        """Once all that other workers have of it is here. Raises TransferFailedError."""
        if self.encoder is not None and generation.media:
            await self.encoder.need(generation.media, generation.encoded)
        given, received = generation.handover, 0
        if self.handovers is not None and given is not None and not given.hold:
            received = await self.handovers.fetch(given, len(generation.prompt))
        with self.pacer.generate(self._work(generation, received)) as tokens:
            yield tokens

    async def _collect(self, request: web.Request, reply: Reply, started: float) -> web.StreamResponse:
        generation, handovers, held = reply.generation, self.handovers, None
        given = generation.handover
        try:
            async with self._generating(generation) as tokens:
                batch = await tokens.receive()
                self.page.time_to_first_token.observe(time.monotonic() - started)
                while not batch[-1].finished:
                    batch = await tokens.receive()
                if handovers is not None and given is not None and generation.hands_over:
                    held = handovers.hold(given, tokens.key, len(generation.prompt))
                    tokens.kept = True
        except TransferFailedError as error:
            raise ApiError(500, str(error)) from error
        if handovers is not None and given is not None and given.together:
            await handovers.wait_fetched(given)
            held = None
        return _json(reply.response_body(batch[-1].cached_tokens, held))

    async def _stream(self, request: web.Request, reply: Reply, started: float) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        )
        await response.prepare(request)
        try:
            async with self._generating(reply.generation) as tokens:
                await self._stream_tokens(response, reply, tokens, started)
        except TransferFailedError as error:  # the status has gone out: the error is an event, as vLLM's
            await response.write(openai_api.event(ApiError(500, str(error)).body()) + openai_api.DONE)
        await response.write_eof()
        return response

    async def _stream_tokens(
        self, response: web.StreamResponse, reply: Reply, tokens: TokenStream, started: float
    ) -> None:
        sent, finished = 0, False
        while not finished:
            batch = await tokens.receive()
            if not sent:
                self.page.time_to_first_token.observe(time.monotonic() - started)
            finished = batch[-1].finished
            events = [openai_api.event(reply.chunk(index)) for index in range(sent, sent + len(batch))]
            if finished and reply.generation.include_usage:
                events.append(openai_api.event(reply.usage_chunk(batch[-1].cached_tokens)))
            if finished:
                events.append(openai_api.DONE)
            await response.write(b"".join(events))
            sent += len(batch)

    def _work(self, generation: Generation, received: int) -> Work:
        tokens = [*generation.prompt, *generation.answer]
        return Work(
            prompt_tokens=len(generation.prompt),
            output_tokens=len(generation.answer),
            digests=block_digests(f"{generation.model}\0{generation.salt}", tokens, self.block_size),
            adapter=generation.adapter,
            tokens=tokens,
            salt=generation.salt,
            received=received,
            held=generation.hands_over,
        )


@web.middleware
async def _openai_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return _json(error.body(), status=error.status)
    except web.HTTPException as error:
        text = f"{request.method} {request.path}: {error.reason}"
        response = _json(ApiError(error.status, text).body(), status=error.status)
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")
