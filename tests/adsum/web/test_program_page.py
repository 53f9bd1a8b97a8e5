import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from adsum.serving.pages import PageServer
from adsum.web.access import Access
from adsum.web.live_feed import LiveFeed
from adsum.web.program_page import ProgramPage

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
