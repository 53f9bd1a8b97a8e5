import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web

from adsum.tasks import cancel_and_wait
from dispatcher.delivery.gateway import Gateway, GatewayAnswer, NoAnswer
from tests.dispatcher.listening import delivered
from tests.dispatcher.target import Asked, Target
from tests.free_port import free_port
from tests.in_time import TooLateError, with_more_time
from tests.open_connections import connected

PATH = "/v1/chat/completions"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest.fixture
async def target() -> AsyncIterator[Target]:
    async with Target() as target:
        yield target


@pytest.fixture
async def gateway(target: Target) -> AsyncIterator[Gateway]:
    async with Gateway(target.url) as gateway:
        yield gateway


@asynccontextmanager
async def fickle_server(
    answer: bytes = OK,
) -> AsyncIterator[list[int]]:
    """Answers the first request of each connection and closes it, unanswered, at the second; yields [port, connections]."""
    seen = [0, 0]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen[1] += 1
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(answer)
        if answer:
            await reader.read(1)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    seen[0] = server.sockets[0].getsockname()[1]
    try:
        yield seen
    finally:
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def raw_server(answer: bytes, *, reset: bool = False) -> AsyncIterator[str]:
    """Answers every connection's first bytes with exactly these, then closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        if reset:
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        else:
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def scripted_server(*scripts: list[bytes]) -> AsyncIterator[tuple[str, list[int]]]:
    """One script a connection: its answers; it ends at one that is not whole. Yields also what each was asked, in numbers."""
    asked: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(asked)
        asked.append(0)
        with suppress(asyncio.IncompleteReadError):  # nobody asks any more
            for answer in scripts[number]:
                await reader.readuntil(b"\r\n\r\n{}")
                asked[number] += 1
                writer.write(answer)
                if not answer.startswith(OK):
                    break
            else:
                await reader.read(1)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        server.close()
        await server.wait_closed()


async def test_26_the_payload_arrives_as_it_is(target: Target, gateway: Gateway) -> None:
    for body in (b'{ "a" :1.0e1,\n"\xc3\xa9":"\\u00e9" }', bytes(range(256)) * 40_000, b""):
        answer = await gateway.post(PATH, {"content-type": "application/json"}, body, 90)
        assert isinstance(answer, GatewayAnswer)
        assert target.asked[-1].body == body
        assert target.asked[-1].headers["content-length"] == str(len(body))


async def test_only_what_we_say_is_sent(target: Target, gateway: Gateway) -> None:
    await gateway.post(PATH, {"x-a": "1", "content-type": "application/json"}, b"{}", 90)
    own = {"host": f"127.0.0.1:{target.port}", "content-length": "2"}
    assert target.asked[0].headers == {"x-a": "1", "content-type": "application/json", **own}
    assert target.asked[0].path == PATH


async def test_path_and_query_stay_as_they_are(target: Target, gateway: Gateway) -> None:
    await gateway.post("/v1/files/a%20b?x=%2F+1", {}, b"{}", 90)
    assert target.asked[0].path == "/v1/files/a%20b?x=%2F+1"


async def test_connections_are_kept(target: Target, gateway: Gateway) -> None:
    peers = set()

    async def answer(asked: Asked) -> web.StreamResponse:
        return web.Response(text="x")

    target.answer = answer
    for _ in range(5):
        answer_ = await gateway.post(PATH, {}, b"{}", 90)
        assert answer_ == GatewayAnswer(200, b"x")
        peers.add(len(target._runner.server.connections))  # type: ignore[union-attr]
    assert peers == {1}


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (200, {}, GatewayAnswer(200, b"said")),
        (302, {"Location": "http://127.0.0.1:1/"}, GatewayAnswer(302, b"said")),
        (400, {}, GatewayAnswer(400, b"said")),
        (429, {"Retry-After": "7"}, GatewayAnswer(429, b"said", 7.0)),
        (429, {"Retry-After": "soon"}, GatewayAnswer(429, b"said", None)),
        (
            503,
            {"x-llm-d-request-dropped-reason": "rejected-saturated", "Retry-After": "0"},
            GatewayAnswer(503, b"said", 0.0, "rejected-saturated"),
        ),
    ],
)
async def test_what_an_answer_says(
    target: Target, gateway: Gateway, status: int, headers: dict[str, str], expected: GatewayAnswer
) -> None:
    async def answer(asked: Asked) -> web.StreamResponse:
        return web.Response(status=status, headers=headers, body=b"said")

    target.answer = answer
    assert await gateway.post(PATH, {}, b"{}", 90) == expected


async def test_a_compressed_answer_is_kept_as_it_came(target: Target, gateway: Gateway) -> None:
    async def answer(asked: Asked) -> web.StreamResponse:
        return web.Response(body=b"\x1f\x8b not really", headers={"Content-Encoding": "gzip"})

    target.answer = answer
    assert await gateway.post(PATH, {}, b"{}", 90) == GatewayAnswer(200, b"\x1f\x8b not really")


async def test_a_chunked_answer(target: Target) -> None:
    async with (
        raw_server(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
        ) as url,
        Gateway(url) as gateway,
    ):
        assert await gateway.post(PATH, {}, b"{}", 90) == GatewayAnswer(200, b"abcde")


async def test_an_answer_that_ends_with_its_connection() -> None:
    async with (
        raw_server(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nall of it") as url,
        Gateway(url) as gateway,
    ):
        assert await gateway.post(PATH, {}, b"{}", 90) == GatewayAnswer(200, b"all of it")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na", GatewayAnswer(200, b"a")),
        (b"HTTP/1.1 204 No Content\r\n\r\n", GatewayAnswer(204, b"")),
        (b"HTTP/1.1 304\r\ncontent-length: 7\r\n\r\n", GatewayAnswer(304, b"")),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\na", GatewayAnswer(200, b"a")),
        (b"HTTP/1.0 200 OK\r\n\r\nall of it", GatewayAnswer(200, b"all of it")),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx: " + b"x" * 20_000 + b"\r\n\r\n", GatewayAnswer(200, b"")),
        (
            b"HTTP/1.1 503 No\r\ncontent-length: 0\r\nx-llm-d-request-dropped-reason: a\xff\r\n\r\n",
            GatewayAnswer(503, b"", None, "a?"),
        ),
    ],
)  # fmt: skip
async def test_other_forms_of_an_answer(answer: bytes, expected: GatewayAnswer) -> None:
    async with raw_server(answer) as url, Gateway(url) as gateway:
        assert await gateway.post(PATH, {}, b"{}", 90) == expected


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nab",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\nab",
        b"HTTP/1.1 200 OK\r\ncontent-length: ten\r\n\r\nabc",
        b"HTTP/1.1 999999 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 099 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 600 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1, 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"x" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"f" * 17 + b"\r\n",
        b"H",
        b"\x15\x03\x01\x00\x02\x02P",
        b"SSH-2.0-OpenSSH_9.6\r\n",
    ],
)
async def test_15_what_is_no_whole_answer(answer: bytes) -> None:
    async with raw_server(answer) as url, Gateway(url) as gateway:
        said = await gateway.post(PATH, {}, b"{}", 90)
        assert isinstance(said, NoAnswer)
        assert not said.final
        assert said.reason.isprintable()


async def test_15_a_reset_connection() -> None:
    async with raw_server(b"HTTP/1.1 200 OK\r\n", reset=True) as url, Gateway(url) as gateway:
        assert isinstance(await gateway.post(PATH, {}, b"{}", 90), NoAnswer)


async def test_15_nobody_listens() -> None:
    async with Gateway(f"http://127.0.0.1:{free_port()}") as gateway:
        said = await gateway.post(PATH, {}, b"{}", 90)
        assert isinstance(said, NoAnswer)
        assert not said.final


async def test_15_a_name_that_does_not_resolve() -> None:
    async with Gateway("http://nobody.invalid") as gateway:
        assert isinstance(await gateway.post(PATH, {}, b"{}", 30), NoAnswer)


async def never(asked: Asked) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


@with_more_time(200)
async def test_15_no_answer_in_time(
    target: Target, gateway: Gateway, eventually: Callable[..., Awaitable[float]], ms: int
) -> None:
    target.answer = never
    said = await gateway.post(PATH, {}, b"{}", ms / 1000)
    assert said == NoAnswer(f"no answer within {ms / 1000:g} s")
    if not target.asked:
        raise TooLateError
    await eventually(lambda: target.asked[0].closed)


async def test_21_cancelling_closes_the_connection(
    target: Target, gateway: Gateway, eventually: Callable[..., Awaitable[float]]
) -> None:
    target.answer = never
    posting = asyncio.create_task(gateway.post(PATH, {}, b"{}", 60))
    await eventually(lambda: target.asked)
    posting.cancel()
    await eventually(lambda: target.asked[0].closed, within=90)
    with pytest.raises(asyncio.CancelledError):
        await posting


@pytest.mark.parametrize("chunked", [False, True])
async def test_an_endless_answer(target: Target, chunked: bool) -> None:
    async def answer(asked: Asked) -> web.StreamResponse:
        if not chunked:
            return web.Response(body=b"x" * 10_001)
        raise AssertionError

    target.answer = answer
    url = target.url
    async with (
        raw_server(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1000\r\n" + b"x" * 4096 + b"\r\n" * 1
        ) as endless,
        Gateway(endless if chunked else url, max_answer=4000 if chunked else 10_000) as gateway,
    ):
        said = await gateway.post(PATH, {}, b"{}", 90)
        assert isinstance(said, NoAnswer)
        assert said.final
        assert "larger than" in said.reason


async def test_a_kept_connection_that_the_target_gave_up_is_no_answer() -> None:
    async with fickle_server() as seen, Gateway(f"http://127.0.0.1:{seen[0]}", resend_within=90) as gateway:
        for number in range(1, 4):
            assert await gateway.post(PATH, {}, b"{}", 90) == GatewayAnswer(200, b"ok")
            assert seen[1] == number


async def test_all_kept_connections_were_given_up() -> None:
    async with (
        scripted_server([OK, b""], [OK, b""], [OK]) as (url, asked),
        Gateway(url, resend_within=90) as gateway,
    ):
        for posts in (2, 1):
            said = await asyncio.gather(*(gateway.post(PATH, {}, b"{}", 90) for _ in range(posts)))
            assert said == [GatewayAnswer(200, b"ok")] * posts
        assert sorted(asked) == [1, 1, 2]


async def test_15_a_new_connection_that_ends_unanswered_is_not_asked_twice() -> None:
    async with (
        fickle_server(b"") as seen,
        Gateway(f"http://127.0.0.1:{seen[0]}", resend_within=90) as gateway,
    ):
        assert isinstance(await gateway.post(PATH, {}, b"{}", 90), NoAnswer)
        assert seen[1] == 1


async def test_what_was_begun_on_a_kept_connection_is_not_asked_twice() -> None:
    """The second answer on the connection ends after its first bytes."""
    async with (
        scripted_server([OK, b"HTTP/1.1 2"], [OK]) as (url, asked),
        Gateway(url, resend_within=90) as gateway,
    ):
        assert await gateway.post(PATH, {}, b"{}", 90) == GatewayAnswer(200, b"ok")
        assert isinstance(await gateway.post(PATH, {}, b"{}", 90), NoAnswer)
        assert asked == [2]


async def test_a_request_is_asked_twice_at_most() -> None:
    async with (
        scripted_server([OK, b""], [b""], [OK]) as (url, asked),
        Gateway(url, resend_within=90) as gateway,
    ):
        assert await gateway.post(PATH, {}, b"{}", 90) == GatewayAnswer(200, b"ok")
        assert isinstance(await gateway.post(PATH, {}, b"{}", 90), NoAnswer)
        assert asked == [2, 1]


async def test_a_target_that_ends_the_connection_while_it_works_is_asked_once() -> None:
    async with fickle_server() as seen, Gateway(f"http://127.0.0.1:{seen[0]}", resend_within=-1) as gateway:
        assert await gateway.post(PATH, {}, b"{}", 90) == GatewayAnswer(200, b"ok")
        assert await gateway.post(PATH, {}, b"{}", 90) == NoAnswer("the connection ended", disconnected=True)
        assert seen[1] == 1


async def test_bytes_after_the_answer_make_a_connection_useless() -> None:
    async with (
        scripted_server([OK + OK.replace(b"ok", b"no")], [OK]) as (url, asked),
        Gateway(url) as gateway,
    ):
        for _ in range(2):
            assert await gateway.post(PATH, {}, b"{}", 90) == GatewayAnswer(200, b"ok")
        assert asked == [1, 1]


async def test_what_nobody_asked_for_is_nobodys_answer() -> None:
    """It comes while the connection is idle."""
    writers = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(OK)
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, Gateway(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as gateway:
        assert await gateway.post(PATH, {}, b"{}", 90) == GatewayAnswer(200, b"ok")
        writers[0].write(OK.replace(b"ok", b"no"))
        await delivered(writers[0])
        assert await gateway.post(PATH, {}, b"{}", 90) == GatewayAnswer(200, b"ok")
        assert len(writers) == 2


@pytest.mark.parametrize("cancelled", [False, True])
@with_more_time(500)
async def test_21_an_upload_that_is_not_taken_ends_at_once(
    cancelled: bool, eventually: Callable[..., Awaitable[float]], ms: int
) -> None:
    """What is left of it is not written: the target may never take it."""
    loop = asyncio.get_running_loop()
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.setblocking(False)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        async with Gateway(f"http://127.0.0.1:{port}") as gateway:
            for size in (1_000_000, 16_000_000):
                seconds = 60 if cancelled else ms / 1000
                posting = asyncio.create_task(gateway.post(PATH, {}, b"x" * size, seconds))
                accepting = asyncio.create_task(loop.sock_accept(listener))
                await asyncio.wait([accepting, posting], return_when=asyncio.FIRST_COMPLETED)
                if not accepting.done():
                    await cancel_and_wait(accepting)
                    raise TooLateError
                taking, _ = accepting.result()
                with taking:
                    try:
                        begun = await loop.sock_recv(taking, 1)
                    except ConnectionError:
                        begun = b""
                    if not begun:
                        raise TooLateError
                    if cancelled:
                        posting.cancel()
                    await asyncio.wait([posting])
                    await eventually(lambda: not connected(port))


async def test_leaving_ends_what_is_on_its_way(
    target: Target, eventually: Callable[..., Awaitable[float]]
) -> None:
    async with Gateway(target.url) as gateway:
        await gateway.post(PATH, {}, b"{}", 90)
        target.answer = never
        posting = asyncio.create_task(gateway.post(PATH, {}, b"{}", 60))
        await eventually(lambda: len(target.asked) == 2)
    assert isinstance(await posting, NoAnswer)
    assert len(target.asked) == 2
