"""A model server that is not ours, for the sidecar to follow."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

VLLM = {
    "object": "list",
    "data": [
        {"id": "Qwen3", "object": "model", "owned_by": "vllm", "parent": None, "max_model_len": 4096},
        {"id": "qwen-alias", "object": "model", "parent": None, "max_model_len": 4096},
        {"id": "sql-lora", "object": "model", "parent": "Qwen3"},
    ],
}


class ModelServer:
    """A server that is not ours: `/health` and `/v1/models` as told.

    `misses`: so many of the next probes are not answered; `asked`: how many there were.
    """

    def __init__(self) -> None:
        self.health = 200
        self.hangs = False
        self.misses = 0
        self.asked = 0
        self.models: Any = VLLM
        self.raw_models: bytes | None = None
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        self.asked += 1
        if self.hangs or self.misses:
            self.misses = max(0, self.misses - 1)
            await asyncio.sleep(600)
        return web.Response(status=self.health)

    async def _models(self, request: web.Request) -> web.StreamResponse:
        if self.raw_models is None:
            return web.json_response(self.models)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for start in range(0, len(self.raw_models), 100_000):
            await response.write(self.raw_models[start : start + 100_000])
            await asyncio.sleep(0.02)
        return response


@asynccontextmanager
async def model_server() -> AsyncIterator[ModelServer]:
    server = ModelServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
