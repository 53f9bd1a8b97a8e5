import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from adsum.serving.pages import PageServer
from adsum.web.access import Access
from adsum.web.live_feed import MAX_READERS, LiveFeed
from adsum.web.program_page import ProgramPage
from tests.eventually import eventually

BROWSER = {"Accept": "text/html"}
SVG = 'xmlns="http://www.w3.org/2000/svg"'
STATIC = Path(__file__).parents[3] / "adsum" / "web" / "static"


async def metrics(_: web.Request) -> web.Response:
    return web.Response()


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    (tmp_path / "main.html").write_text("<p id=own></p>")
    (tmp_path / "own.js").write_text("// own")
    (tmp_path / "secret.txt").write_text("not to be served")
    page = ProgramPage("picker", tmp_path, "own.js", LiveFeed({}))
    app = web.Application()
    Access(ProgramPage.PATHS).guard(app)
    page.add_routes(app)
    app.router.add_get("/metrics", metrics)
    server = PageServer(app, [socket.create_server(("127.0.0.1", 0))], "the test's port")
    await server.start()
    yield f"http://127.0.0.1:{server.port}"
    await server.aclose()


async def get(url: str, **headers: str) -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status, answer.headers.get("Content-Type", ""), await answer.text()


async def test_browsers_get_the_page_and_all_that_it_names(url: str) -> None:
    status, kind, html = await get(url, **BROWSER)
    assert (status, kind) == (200, "text/html; charset=utf-8")
    assert "<title>adsum picker</title>" in html
    assert "<p id=own></p>" in html
    assert "$" not in html
    named = re.findall(r'(?:href|src)="(?!#)([^"]+)"', html)
    assert set(named) == {"web/mark.svg", "web/style.css", "web/own.js"}
    for path in named:
        assert (await get(f"{url}/{path}"))[0] == 200


async def test_others_get_the_list_of_paths(url: str) -> None:
    assert await get(url) == (200, "text/plain; charset=utf-8", "/metrics\n")


@pytest.mark.parametrize(
    "name", ["secret.txt", "main.html", "frame.html", "..%2faccess.py", "%2e%2e/access.py", "x"]
)
async def test_nothing_else_is_served(url: str, name: str) -> None:
    assert (await get(f"{url}/web/{name}"))[0] == 404


async def test_a_file_that_did_not_change_is_not_sent_again(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{url}/web/style.css") as answer:
            tag = answer.headers["ETag"]
        async with session.get(f"{url}/web/style.css", headers={"If-None-Match": tag}) as answer:
            assert answer.status == 304


@pytest.mark.parametrize("path", sorted(STATIC.iterdir()), ids=lambda path: path.name)
def test_no_file_asks_for_anything_from_outside_or_writes_markup(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"(https?:)?//[a-z]", text.replace(SVG, "")), "an outside asset"
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|\son\w+=|style=", text
    )


async def test_the_live_data_have_no_head(url: str) -> None:
    """The answer to HEAD has no body (RFC 9110, section 9.3.2), and this one would be sent for an hour."""
    async with aiohttp.ClientSession() as session, session.head(f"{url}/updates") as answer:
        assert answer.status == 405


Topics = Mapping[str, Callable[[], bytes | None]]


@asynccontextmanager
async def served(topics: Topics) -> AsyncIterator[tuple[LiveFeed, str]]:
    feed = LiveFeed(topics, interval=0.01)
    app = web.Application()
    app.router.add_get("/updates", feed.serve)
    app.on_shutdown.append(feed.aclose)
    server = PageServer(app, [socket.create_server(("127.0.0.1", 0))], "the test's port")
    await server.start()
    try:
        yield feed, f"http://127.0.0.1:{server.port}/updates"
    finally:
        await server.aclose()


@asynccontextmanager
async def browser(url: str) -> AsyncIterator[aiohttp.ClientResponse]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        yield answer


async def event(answer: aiohttp.ClientResponse) -> tuple[str, Any]:
    async with asyncio.timeout(90):
        block = (await answer.content.readuntil(b"\n\n")).decode()
    fields = dict(line.split(": ", 1) for line in block.strip().splitlines())
    return fields["event"], json.loads(fields["data"])


def counting() -> tuple[list[int], Callable[[], bytes]]:
    calls: list[int] = []

    def state() -> bytes:
        calls.append(len(calls))
        return json.dumps({"count": len(calls)}).encode()

    return calls, state


async def test_a_browser_gets_each_topic_and_then_what_changes() -> None:
    pool = {"ready": 1}
    topics: Topics = {"pool": lambda: json.dumps(pool).encode(), "still": lambda: b"[]"}
    async with served(topics) as (_, url), browser(url) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert await event(answer) == ("pool", {"ready": 1})
        assert await event(answer) == ("still", [])
        pool["ready"] = 2
        assert await event(answer) == ("pool", {"ready": 2})


async def test_nothing_is_computed_while_nobody_looks() -> None:
    calls, state = counting()
    async with served({"pool": state}) as (_, url):
        await asyncio.sleep(0.1)
        assert not calls
        async with browser(url) as answer:
            await event(answer)
            await event(answer)
        seen = looks = 0

        def quiet() -> bool:
            """For many times as long as the interval: the server has noticed that nobody is left."""
            nonlocal seen, looks
            looks = looks + 1 if seen == len(calls) else 0
            seen = len(calls)
            return looks > 20

        await eventually(quiet)
        before = len(calls)
        await asyncio.sleep(0.1)
        assert len(calls) == before


async def test_one_rendering_serves_all_browsers() -> None:
    calls, state = counting()
    async with served({"pool": state}) as (feed, url), AsyncExitStack() as stack:
        answers = [await stack.enter_async_context(browser(url)) for _ in range(5)]
        for answer in answers:
            for _ in range(10):
                await event(answer)
        assert len(calls) == feed.renderings


async def test_a_browser_that_does_not_read_holds_up_nobody() -> None:
    text = "x" * 100_000
    count = 0

    def state() -> bytes:
        nonlocal count
        count += 1
        return json.dumps({"count": count, "text": text}).encode()

    async with served({"pool": state}) as (_, url):
        port = int(url.rsplit(":", 1)[1].partition("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET /updates HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with browser(url) as answer:
            answer.content._high_water = 2**24
            for _ in range(100):
                await asyncio.wait_for(answer.content.readuntil(b"\n\n"), 90)
        assert count >= 100
        writer.close()
        del reader


async def test_a_topic_that_fails_leaves_the_others() -> None:
    def broken() -> bytes:
        raise KeyError("gone")

    async with served({"broken": broken, "pool": lambda: b"1"}) as (_, url), browser(url) as answer:
        assert await event(answer) == ("pool", 1)


async def test_more_browsers_than_the_page_serves_are_told() -> None:
    async with served({"pool": lambda: b"1"}) as (_, url), AsyncExitStack() as stack:
        for _ in range(MAX_READERS):
            assert (await stack.enter_async_context(browser(url))).status == 200
        refused = await stack.enter_async_context(browser(url))
        assert refused.status == 503
        assert refused.headers["Retry-After"]


async def test_streams_end_when_the_server_does() -> None:
    async with AsyncExitStack() as stack:
        async with served({"pool": lambda: b"1"}) as (_, url):
            answer = await stack.enter_async_context(browser(url))
            await event(answer)
        assert await asyncio.wait_for(answer.content.read(), 90) == b""
