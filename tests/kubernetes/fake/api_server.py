"""The fake API server over HTTP: one port that stays the same over restarts."""

import asyncio
import socket
import ssl
import struct
from contextlib import aclosing
from types import TracebackType
from typing import Self

from aiohttp import web

from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.calls import Answer, Call, CutError


class FakeApiServer:
    """Serves a `FakeApi` on 127.0.0.1; an async context manager. `stop` breaks open watches, as a SIGKILL does."""

    def __init__(self, api: FakeApi, ssl_context: ssl.SSLContext | None = None) -> None:
        self.api = api
        self.ssl_context = ssl_context
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.ssl_context else 'http'}://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port, ssl_context=self.ssl_context, reuse_address=True)
        await site.start()
        self.port = runner.addresses[0][1]
        self._runner = runner

    async def stop(self) -> None:
        """Connections are refused until `start`."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        now = asyncio.get_running_loop().time()
        body = await request.read()
        call = Call(request.method, request.path, dict(request.query), request.headers.copy(), body, now)
        response = web.StreamResponse()
        try:
            answer = await self.api.answer(call)
            response = web.StreamResponse(status=answer.status, headers=answer.headers)
            await _send(request, response, answer)
        except CutError as cut:
            _break(request, reset=cut.reset)
        return response


async def _send(request: web.Request, response: web.StreamResponse, answer: Answer) -> None:
    response.enable_chunked_encoding()
    await response.prepare(request)
    async with aclosing(answer.body) as chunks:
        async for chunk in chunks:
            await response.write(chunk)
    await response.write_eof()


def _break(request: web.Request, *, reset: bool) -> None:
    transport = request.transport
    if transport is None:
        return
    if reset:  # a linger of zero turns the close into a RST
        transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        transport.abort()
    else:
        transport.close()
