"""Endpoints that are listed get requests whatever they answer to `GET /metadata`."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from epp.server import PickerServer
from tests.epp.local_picker import addresses, get, local
from tests.eventually import eventually
from tests.fake_worker import hang
from tests.http_server import http_server

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
PAGE = "vllm:num_requests_waiting 0\nvllm:num_requests_running 1\nvllm:kv_cache_usage_perc 0.1\n"


def says(status: int, body: bytes = b"<html>") -> Answer:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, body=body, content_type="text/html")

    return answer


ANSWERS: dict[str, Answer] = {str(code): says(code) for code in (200, 204, 302, 400, 401, 403, 429, 500, 503)}
ANSWERS |= {"large": says(200, b"x" * (2 * 1024 * 1024)), "hang": hang}


class Server:
    """A model server with a metrics page, behind whatever answers for the metadata."""

    def __init__(self, metadata: Answer) -> None:
        self.metadata = metadata
        self.scrapes = 0
        self.port = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Server"]:
        pages = {"/metadata": self.metadata, "/metrics": self._metrics, "/v1/models": self._models}
        async with http_server(pages) as self.port:
            yield self

    async def _metrics(self, _: web.Request) -> web.Response:
        self.scrapes += 1
        return web.Response(text=PAGE)

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})


async def endpoints(server: PickerServer) -> list[dict[str, Any]]:
    _, page = await get(f"http://{addresses(server)['metrics']}/debug/endpoints")
    return list(json.loads(page)["endpoints"])


@pytest.mark.parametrize("source", ["static", "file"])
async def test_whatever_they_answer_they_are_scraped_and_routed_also_after_a_restart(
    source: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    servers = [Server(answer) for answer in ANSWERS.values()]
    async with AsyncExitStack() as stack:
        for one in servers:
            await stack.enter_async_context(one.serving())
        where = "static://" + ",".join(f"127.0.0.1:{one.port}" for one in servers)
        if source == "file":
            listed = [
                {"name": f"w-{name}", "address": "127.0.0.1", "port": one.port}
                for name, one in zip(ANSWERS, servers, strict=True)
            ]
            path = tmp_path / "endpoints.json"
            path.write_text(json.dumps({"endpoints": listed}))
            where = f"static://{path}"
        for _ in range(2):
            for one in servers:
                one.scrapes = 0
            async with PickerServer(local(discovery=where)) as picker:

                async def all_reachable() -> bool:  # at once, unless the machine is busy
                    reachable = {e["destination"] for e in await endpoints(picker) if e["reachable"]}
                    return reachable == {f"127.0.0.1:{one.port}" for one in servers}

                async def all_listed() -> bool:
                    return [e["models"] for e in await endpoints(picker)] == [["m"]] * len(servers)

                await eventually(all_reachable)
                await eventually(lambda: all(one.scrapes for one in servers))
                await eventually(all_listed)


async def test_one_line_says_that_a_worker_has_no_document(caplog: pytest.LogCaptureFixture) -> None:
    async with Server(says(401)).serving() as denying, Server(says(404)).serving() as plain:
        where = f"static://127.0.0.1:{denying.port},127.0.0.1:{plain.port}"
        async with PickerServer(local(discovery=where)):
            await eventually(lambda: "has no metadata document" in caplog.text)
            await eventually(lambda: denying.scrapes > 10)
    lines = [m for m in (r.getMessage() for r in caplog.records) if "metadata document" in m]
    reason = (
        f"GET http://127.0.0.1:{denying.port}/metadata: HTTP 401: the worker wants a bearer token, "
        "or another one than was sent; "
        f"python -m discovery check http://127.0.0.1:{denying.port} says what it should answer"
    )
    who = f"127-0-0-1-{denying.port}"
    assert lines == [f"{who} has no metadata document, and stays an endpoint because it is listed: {reason}"]
