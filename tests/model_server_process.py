"""A model server that knows nothing of adsum, as a process that tests kill: a metrics page and `/v1/models`, no metadata."""

import asyncio
import json
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.started import next_line, started
from tests.warm_python import WARM_PYTHON

ROOT = Path(__file__).parents[1]
PAGE = b"vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0.1\n"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, models: list[str]) -> None:
    listed = {"object": "list", "data": [{"id": name, "object": "model"} for name in models]}
    pages = {
        b"/metrics": ("text/plain", PAGE),
        b"/v1/models": ("application/json", json.dumps(listed).encode()),
    }
    try:
        while True:
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
            kind, body = pages.get(path, ("text/plain", b""))
            status = "200 OK" if path in pages else "404 Not Found"
            head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
    except (asyncio.IncompleteReadError, OSError):
        writer.close()


async def _serve(port: int, models: list[str]) -> None:
    server = await asyncio.start_server(lambda r, w: _answer(r, w, models), "127.0.0.1", port)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@asynccontextmanager
async def model_server(*models: str, port: int = 0) -> AsyncIterator[tuple[Process, int]]:
    """The process, once it listens, and its port; killed at the end."""
    command = [WARM_PYTHON, "-m", "tests.model_server_process", str(port), *models]
    async with started(*command, cwd=ROOT) as process:
        yield process, int(await next_line(process))


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), sys.argv[2:]))
