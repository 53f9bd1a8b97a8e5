import asyncio
from contextlib import suppress

import pytest
from yarl import URL

from epp.scraping.page_client import NoAnswerError, NoListenerError, PageClient, PageError
from tests.in_time import TooLateError, with_more_time
from tests.raw_server import Serve, answers, raw_server, reset

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
OKAY = OK + b"ok"


def client(port: int, path: str = "/metrics", host: str = "127.0.0.1", timeout: float = 60.0) -> PageClient:
    url = URL(f"http://{host}:{port}{path}")
    return PageClient(url, bytearray(64), tls=None, timeout=timeout, limit=1000)


async def test_one_connection_is_asked_again_and_again() -> None:
    seen: list[bytes] = []
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(OK + b"%02d" % len(seen))

    async with raw_server(serve) as port:
        page = client(port, "/m?a=b#c")
        try:
            assert [bytes(await page.get()) for _ in range(3)] == [b"01", b"02", b"03"]
        finally:
            page.close()
    assert connections == 1
    head = seen[0].decode().split("\r\n")
    assert head[0] == "GET /m?a=b HTTP/1.1"
    assert f"Host: 127.0.0.1:{port}" in head
    assert "Accept-Encoding: identity" in head


async def test_an_ipv6_address() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert f"Host: [::1]:{port}\r\n".encode() in head
        writer.write(OKAY)

    async with raw_server(serve, "::1") as port:
        page = client(port, host="[::1]")
        assert await page.get() == b"ok"
        page.close()


async def test_a_page_larger_than_the_buffer_comes_whole() -> None:
    body = bytes(range(250)) * 4

    async with raw_server(
        answers(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    ) as port:
        page = client(port)
        assert await page.get() == body
        page.close()


async def ends_when_asked_again(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(1)
    writer.transport.abort()


@pytest.mark.parametrize(
    "serve",
    [answers(OKAY, keep=False), answers(OKAY, then=ends_when_asked_again), answers(OKAY + OK + b"no")],
    ids=["closed meanwhile", "closed on being asked again", "more than was asked for"],
)
async def test_a_connection_that_is_of_no_more_use_is_made_again(serve: Serve) -> None:
    async with raw_server(serve) as port:
        page = client(port)
        for _ in range(5):
            assert await page.get() == b"ok"
        page.close()


async def test_who_answers_nothing_at_all_is_asked_once() -> None:
    asked = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await reader.readuntil(b"\r\n\r\n")
        asked += 1

    async with raw_server(serve) as port:
        with pytest.raises(PageError, match="closed before the answer was complete"):
            await client(port).get()
    assert asked == 1


async def test_half_an_answer_is_not_asked_for_again() -> None:
    asked = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await reader.readuntil(b"\r\n\r\n")
        asked += 1
        writer.write(OKAY)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"o")

    async with raw_server(serve) as port:
        page = client(port)
        assert await page.get() == b"ok"
        with pytest.raises(PageError, match="closed before"):
            await page.get()
    assert asked == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", "status 302, expected 200"),
        (b"hello\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n", "more than 1000 bytes"),
    ],
)
async def test_what_is_no_page(answer: bytes, said: str) -> None:
    async with raw_server(answers(answer)) as port:
        page = client(port)
        with pytest.raises(PageError, match=said):
            await page.get()
        page.close()


async def test_what_nobody_asked_for_ends_the_connection() -> None:
    taken, closed = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OKAY)
        await taken.wait()
        writer.write(OK + b"no")
        with suppress(OSError):
            await reader.read()
        closed.set()

    async with raw_server(serve) as port, asyncio.timeout(90):
        page = client(port)
        assert await page.get() == b"ok"
        taken.set()
        await closed.wait()
        assert await page.get() == b"ok"
        page.close()


@pytest.mark.parametrize("first", [b"", OK + b"o"], ids=["silent", "half an answer"])
@with_more_time(300)
async def test_silence_ends_and_the_next_question_has_a_connection_of_its_own(first: bytes, ms: int) -> None:
    answers = [first, OKAY]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers.pop(0))
        await reader.read()

    async with raw_server(serve) as port:
        page = client(port, timeout=ms / 1000)
        silent = f"no complete answer within {ms / 1000:g} s"
        with pytest.raises(PageError, match=silent):
            async with asyncio.timeout(90):
                await page.get()
        try:
            assert await page.get() == b"ok"
        except NoAnswerError as error:
            if silent in str(error):
                raise TooLateError from error
            raise
        finally:
            page.close()


async def test_nobody_is_there() -> None:
    async with raw_server(lambda reader, writer: asyncio.sleep(0)) as port:
        pass
    with pytest.raises(NoListenerError, match="^Connection refused$"):
        await client(port).get()


async def test_a_process_that_ends_within_an_answer_is_told_from_a_connection_that_does() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"o")

    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.close()
        await cut(reader, writer)
        writer.close()

    async with raw_server(cut) as port:
        with pytest.raises(NoAnswerError) as caught:
            await client(port).get()
    assert not isinstance(caught.value, NoListenerError)
    server = await asyncio.start_server(end, "127.0.0.1", 0)
    with pytest.raises(NoListenerError):
        await client(server.sockets[0].getsockname()[1]).get()


@pytest.mark.parametrize("ends", ["close", "reset"])
async def test_a_listener_is_told_how_the_kept_connection_ended(ends: str) -> None:
    taken = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OKAY)
        await taken.wait()
        if ends == "reset":
            reset(writer)

    async with raw_server(serve) as port, asyncio.timeout(90):
        page, told = client(port), asyncio.get_running_loop().create_future()
        page.listen(told.set_result)
        assert await page.get() == b"ok"
        assert not page.lost
        taken.set()
        error = await told
        assert page.lost
        assert isinstance(error, ConnectionResetError) if ends == "reset" else error is None
        page.close()
        assert not page.lost


async def test_what_this_process_ends_is_told_to_nobody() -> None:
    async with raw_server(answers(OKAY)) as port:
        page, told = client(port), []
        page.listen(told.append)
        assert await page.get() == b"ok"
        page.close()
        for _ in range(5):
            await asyncio.sleep(0)
        assert told == []


@pytest.mark.parametrize("status", [404, 503])
async def test_an_error_has_the_status_of_the_answer(status: int) -> None:
    async with raw_server(answers(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % status)) as port:
        page = client(port)
        with pytest.raises(PageError) as caught:
            await page.get()
        assert caught.value.status == status
        page.close()


async def test_a_fault_of_who_is_told_ends_the_wait() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    def told() -> bool:
        raise LookupError("a fault")

    async def told_of(page: PageClient) -> None:
        while True:
            with suppress(NoAnswerError):  # not even connected in time
                await page.get()

    async with raw_server(serve) as port:
        page = client(port, timeout=0.05)
        page.on_overdue = told
        try:
            with pytest.raises(LookupError, match="a fault"):
                await asyncio.wait_for(told_of(page), 90)
        finally:
            page.close()
