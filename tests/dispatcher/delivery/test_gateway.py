import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from adsum.tasks import cancel_and_wait
from dispatcher.delivery.gateway import Gateway, GatewayAnswer, NoAnswer
from tests.dispatcher.listening import Listening, listening, request
from tests.dispatcher.target import Asked, Target, never
from tests.eventually import eventually
from tests.free_port import free_port
from tests.in_time import TooLateError, with_more_time
from tests.open_connections import connected
from tests.raw_server import raw_server, reset

PATH = "/v1/chat/completions"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest.fixture
async def gateway(target: Target) -> AsyncIterator[Gateway]:
    async with Gateway(target.url) as gateway:
        yield gateway


@asynccontextmanager
async def answering(answer: bytes, *, ends_by_reset: bool = False) -> AsyncIterator[str]:
    """Answers every connection's first bytes with exactly these, then closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        if ends_by_reset:
            reset(writer)
        else:
            await writer.drain()

    async with raw_server(serve) as port:
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def scripted_server(*scripts: list[bytes]) -> AsyncIterator[tuple[str, list[int]]]:
    """One script a connection: its answers; it ends at one that is not whole. Yields also what each was asked, in numbers."""
    asked: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(asked)
        asked.append(0)
        for answer in scripts[number]:
            await reader.readuntil(b"\r\n\r\n{}")
            asked[number] += 1
            writer.write(answer)
            if not answer.startswith(OK):
                return
        await reader.read(1)

    async with raw_server(serve) as port:
        yield f"http://127.0.0.1:{port}", asked


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


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na", GatewayAnswer(200, b"a")),
        (b"HTTP/1.1 204 No Content\r\n\r\n", GatewayAnswer(204, b"")),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nall of it", GatewayAnswer(200, b"all of it")),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
            GatewayAnswer(200, b"abcde"),
        ),
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
    async with answering(answer) as url, Gateway(url) as gateway:
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
    async with answering(answer) as url, Gateway(url) as gateway:
        said = await gateway.post(PATH, {}, b"{}", 90)
        assert isinstance(said, NoAnswer)
        assert not said.final
        assert said.reason.isprintable()


async def test_15_a_reset_connection() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\n", ends_by_reset=True) as url, Gateway(url) as gateway:
        assert isinstance(await gateway.post(PATH, {}, b"{}", 90), NoAnswer)


@pytest.mark.parametrize("host", ["127.0.0.1", "nobody.invalid"])
async def test_15_nobody_listens_or_the_name_does_not_resolve(host: str) -> None:
    async with Gateway(f"http://{host}:{free_port()}") as gateway:
        said = await gateway.post(PATH, {}, b"{}", 90)
        assert isinstance(said, NoAnswer)
        assert not said.final


@pytest.mark.parametrize(
    "rest",
    [b"transfer-encoding: chunked\r\n\r\n1000\r\n" + b"x" * 4096 + b"\r\n", b"content-length: 4001\r\n\r\n"],
    ids=["chunks without end", "as announced"],
)
async def test_an_answer_that_is_too_large_is_not_read(rest: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 200 OK\r\n" + rest)
        await asyncio.Event().wait()

    async with raw_server(serve) as port, Gateway(f"http://127.0.0.1:{port}", max_answer=4000) as gateway:
        said = await gateway.post(PATH, {}, b"{}", 90)
        assert said == NoAnswer("the answer is larger than 4000 bytes", final=True)
        await eventually(lambda: not connected(port))


async def test_all_kept_connections_were_given_up() -> None:
    async with (
        scripted_server([OK, b""], [OK, b""], [OK]) as (url, asked),
        Gateway(url, resend_within=90) as gateway,
    ):
        for posts in (2, 1):
            said = await asyncio.gather(*(gateway.post(PATH, {}, b"{}", 90) for _ in range(posts)))
            assert said == [GatewayAnswer(200, b"ok")] * posts
        assert sorted(asked) == [1, 1, 2]


@pytest.mark.parametrize(
    ("scripts", "resend_within", "asked", "answered"),
    [
        ([[OK, b""], [OK]], 90, [2, 1], True),  # the target gave up the kept connection: another one is asked
        ([[OK, b"HTTP/1.1 2"], [OK]], 90, [2], False),  # the answer had begun
        ([[OK, b"HTTP/1.1 103 Early Hints\r\n\r\n"], [OK]], 90, [2], False),  # the target knows of it
        ([[OK, b""], [b""], [OK]], 90, [2, 1], False),  # twice at most
        ([[OK, b""], [OK]], -1, [2], False),  # the target worked on it for longer
        ([[b""], [OK]], 90, [1], False),  # the connection was new
    ],
)
async def test_15_when_a_request_is_sent_again(
    scripts: list[list[bytes]], resend_within: float, asked: list[int], answered: bool
) -> None:
    async with (
        scripted_server(*scripts) as (url, counted),
        Gateway(url, resend_within=resend_within) as gateway,
    ):
        said = [await gateway.post(PATH, {}, b"{}", 90) for _ in range(asked[0])]
        assert [isinstance(one, GatewayAnswer) for one in said] == [True] * (asked[0] - 1) + [answered]
        assert counted == asked


async def test_15_what_ran_for_more_than_a_second_is_not_sent_again() -> None:
    """Unless told otherwise: the target was at work, and did not close an idle connection."""

    async def serve(seen: Listening, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(seen, reader)
        writer.write(OK)
        await request(seen, reader)
        await asyncio.sleep(1.1)

    async with listening(serve) as seen, Gateway(f"http://127.0.0.1:{seen.port}") as gateway:
        assert isinstance(await gateway.post(PATH, {}, b"{}", 90), GatewayAnswer)
        answer = await gateway.post(PATH, {}, b"{}", 90)
        assert answer == NoAnswer("the connection ended", disconnected=True)
        assert len(seen.heads) == 2


@with_more_time(200)
async def test_15_no_answer_in_time(target: Target, gateway: Gateway, ms: int) -> None:
    target.answer = never
    said = await gateway.post(PATH, {}, b"{}", ms / 1000)
    assert said == NoAnswer(f"no answer within {ms / 1000:g} s")
    if not target.asked:
        raise TooLateError
    await eventually(lambda: target.asked[0].closed)


async def test_21_cancelling_closes_the_connection(target: Target, gateway: Gateway) -> None:
    target.answer = never
    posting = asyncio.create_task(gateway.post(PATH, {}, b"{}", 60))
    await eventually(lambda: target.asked)
    posting.cancel()
    await eventually(lambda: target.asked[0].closed, within=90)
    with pytest.raises(asyncio.CancelledError):
        await posting


@pytest.mark.parametrize("cancelled", [False, True])
@with_more_time(500)
async def test_21_an_upload_that_is_not_taken_ends_at_once(cancelled: bool, ms: int) -> None:
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
