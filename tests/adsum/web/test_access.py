import base64
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from adsum.serving.pages import PageServer
from adsum.web.access import Access, token_file

TOKEN = "0123456789abcdef-secret"
BROWSER = {"Accept": "text/html,application/xhtml+xml"}


@asynccontextmanager
async def served(access: Access, host: str = "127.0.0.1") -> AsyncIterator[str]:
    async def secret(_: web.Request) -> web.Response:
        return web.Response(text="secret")

    app = web.Application()
    access.guard(app)
    app.router.add_get("/", secret)
    app.router.add_route("*", "/debug/decisions", secret)
    app.router.add_get("/metrics", secret)
    server = PageServer(app, [socket.create_server((host, 0))], "the test's port")
    await server.start()
    try:
        yield f"http://{host}:{server.port}"
    finally:
        await server.aclose()


async def status(url: str, method: str = "GET", **headers: str) -> int:
    async with aiohttp.ClientSession() as session, session.request(method, url, headers=headers) as answer:
        return answer.status


def own_address() -> str:
    """An address of this machine that is not loopback; a connection from it to itself comes from it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anyone:{password}".encode()).decode()


async def test_this_machine_sees_what_is_guarded_and_others_do_not() -> None:
    async with served(Access({"/debug/decisions"}), own_address()) as url:
        assert await status(f"{url}/debug/decisions") == 403
        assert await status(f"{url}/", **BROWSER) == 403
        assert await status(f"{url}/", Accept="*/*") == 200  # the list of paths is no secret
        assert await status(f"{url}/metrics") == 200
    async with served(Access({"/debug/decisions"})) as url:
        assert await status(f"{url}/debug/decisions") == 200
        assert await status(f"{url}/", **BROWSER) == 200


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", 200),
        ("LOCALHOST:9090", 200),
        ("127.0.0.1:1", 200),
        ("127.9.9.9", 200),
        ("[::1]:9090", 200),
        ("attacker.example", 403),
        ("localhost.attacker.example", 403),
        ("127.0.0.1.attacker.example", 403),
        ("[::1].attacker.example", 403),
        ("0.0.0.0", 403),
        ("2130706433", 403),
        ("", 403),
    ],
)
async def test_a_name_that_was_made_to_resolve_to_loopback_is_refused(host: str, expected: int) -> None:
    async with served(Access({"/debug/decisions"})) as url:
        assert await status(f"{url}/debug/decisions", Host=host) == expected


@pytest.mark.parametrize(
    "name",
    ["X-Forwarded-For", "Forwarded", "Via", "X-Forwarded-Proto", "X-Real-IP", "X-Envoy-External-Address"],
)
async def test_a_client_behind_a_proxy_of_this_machine_is_not_this_machine(name: str) -> None:
    async with served(Access({"/debug/decisions"})) as url:
        assert await status(f"{url}/debug/decisions", **{name: "10.0.0.1"}) == 403


async def test_who_comes_through_a_mesh_sidecar_is_not_this_machine() -> None:
    """Istio's passes strangers on from 127.0.0.6, and as TCP adds no header (InboundPassthroughBindIpv4)."""
    connector = aiohttp.TCPConnector(local_addr=("127.0.0.6", 0))
    async with (
        served(Access({"/debug/decisions"})) as url,
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"{url}/debug/decisions") as answer,
    ):
        assert answer.status == 403


@pytest.mark.parametrize(
    ("authorization", "expected"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer  {TOKEN}", 200),
        (basic(TOKEN), 200),
        (f"Bearer {TOKEN}x", 401),
        ("Bearer ", 401),
        (basic(""), 401),
        ("Basic not base64", 401),
        (f"Basic {TOKEN}", 401),
        (TOKEN, 401),
        ("", 401),
    ],
)
async def test_others_need_the_token(authorization: str, expected: int) -> None:
    async with served(Access({"/debug/decisions"}, lambda: TOKEN)) as url:
        foreign = {"Host": "picker.example"}
        headers = foreign | ({"Authorization": authorization} if authorization else {})
        assert await status(f"{url}/debug/decisions", **headers) == expected


async def test_a_browser_is_asked_for_the_token() -> None:
    async with (
        served(Access((), lambda: TOKEN)) as url,
        aiohttp.ClientSession() as session,
        session.get(url, headers=BROWSER | {"Host": "picker.example"}) as answer,
    ):
        assert answer.status == 401
        assert [one.split()[0] for one in answer.headers.getall("WWW-Authenticate")] == ["Basic", "Bearer"]


async def test_an_opened_port_asks_for_no_token_unless_there_is_one() -> None:
    async with served(Access({"/debug/decisions"}, everyone=True)) as url:
        assert await status(f"{url}/debug/decisions", Host="picker.example") == 200
    async with served(Access({"/debug/decisions"}, lambda: TOKEN, everyone=True)) as url:
        assert await status(f"{url}/debug/decisions", Host="picker.example") == 401


async def test_another_sites_page_gets_nothing() -> None:
    async with served(Access({"/debug/decisions"})) as url:
        path = f"{url}/debug/decisions"
        assert await status(path, Origin="https://attacker.example") == 403
        assert await status(path, Origin="null") == 403
        assert await status(path, Origin=url) == 200
        assert await status(path, **{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "empty"}) == 403
        assert await status(path, **{"Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "iframe"}) == 403
        assert await status(path, **{"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "empty"}) == 200
        link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}
        assert await status(path, **link) == 200
        assert await status(path, "POST", **link) == 403


async def test_what_is_guarded_is_kept_by_nobody_and_framed_by_nobody() -> None:
    async with (
        served(Access({"/debug/decisions"})) as url,
        aiohttp.ClientSession() as session,
        session.get(f"{url}/debug/decisions") as answer,
    ):
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy


async def test_a_token_is_read_again_when_its_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    async with served(Access({"/debug/decisions"}, token_file(path))) as url:
        asked = {"Host": "picker.example", "Authorization": f"Bearer {TOKEN}"}
        assert await status(f"{url}/debug/decisions", **asked) == 200
        path.write_text("another-token-of-some-length")
        assert await status(f"{url}/debug/decisions", **asked) == 401
        path.unlink()
        assert await status(f"{url}/debug/decisions", **asked) == 401
        assert await status(f"{url}/debug/decisions") == 200


@pytest.mark.parametrize("text", ["", "short", "two words of some length", "a" * 5000, "ü" * 20])
def test_a_file_without_a_usable_token_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    with pytest.raises(
        ValueError, match="it holds no usable token; expected one line of 16 to 4096"
    ) as raised:
        token_file(path)
    assert str(path) in str(raised.value)


def test_a_token_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read: No such file or directory"):
        token_file(tmp_path / "none")
