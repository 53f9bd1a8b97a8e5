"""The bytes between a gateway and its target, and when a connection may be reused."""

import asyncio
import random
import ssl
from pathlib import Path

import pytest

from dispatcher.delivery.gateway import Gateway, GatewayAnswer, NoAnswer
from tests.dispatcher.listening import LARGE, OK, PATH, Listening, listening, ok, request
from tests.eventually import eventually
from tests.kubernetes.fake.authority import Authority
from tests.open_connections import connected

INFORMATIONAL = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"


def trusting(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority.pem.decode())
    return context


async def echo(seen: Listening, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says what was sent."""
    while True:
        body = await request(seen, reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body))
        writer.write(body)


async def test_one_request_after_the_other_takes_one_connection() -> None:
    async with listening(ok) as seen, Gateway(f"http://127.0.0.1:{seen.port}") as gateway:
        for _ in range(20):
            assert await gateway.post(PATH, {}, b"{}", 90) == GatewayAnswer(200, b"ok")
        assert (len(seen.heads), seen.connections) == (20, 1)
        for _ in range(5):
            said = await asyncio.gather(*(gateway.post(PATH, {}, b"{}", 90) for _ in range(4)))
            assert said == [GatewayAnswer(200, b"ok")] * 4
        assert (len(seen.heads), seen.connections) == (40, 4)


async def test_a_head_byte_for_byte() -> None:
    async with listening(ok) as seen, Gateway(f"http://127.0.0.1:{seen.port}/below/") as gateway:
        await gateway.post("/v1/x?y=%2F+1", {"x-a": "1", "x-b": "\xe9, c"}, b"{}", 90)
        await gateway.post("/v1/x", {"x-a": "1", "host": "pool.example"}, b"", 90)
    assert seen.heads == [
        b"POST /below/v1/x?y=%%2F+1 HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nx-a: 1\r\nx-b: \xc3\xa9, c\r\n"
        b"Content-Length: 2\r\n\r\n" % seen.port,
        b"POST /below/v1/x HTTP/1.1\r\nHost: pool.example\r\nx-a: 1\r\nContent-Length: 0\r\n\r\n",
    ]


async def test_the_host_of_an_ipv6_address() -> None:
    async with listening(ok, host="::1") as seen, Gateway(f"http://[::1]:{seen.port}") as gateway:
        assert await gateway.post(PATH, {}, b"{}", 90) == GatewayAnswer(200, b"ok")
    assert b"\r\nHost: [::1]:%d\r\n" % seen.port in seen.heads[0]


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://pool.example:80", "pool.example"),
        ("https://pool.example:443/v1", "pool.example"),
        ("http://pool.example:443", "pool.example:443"),
        ("http://Pool.example.:8000", "pool.example:8000"),
        ("http://[::1]", "[::1]"),
    ],
)
def test_a_host_has_its_port_where_the_scheme_does_not_say_it(url: str, host: str) -> None:
    assert f"\r\nHost: {host}\r\n".encode() in Gateway(url)._head(PATH, {}, b"")


async def test_a_second_try_says_that_it_is_the_only_request_of_its_connection() -> None:
    async def once(seen: Listening, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(seen, reader)
        writer.write(OK)
        await request(seen, reader)

    async with listening(once) as seen, Gateway(f"http://127.0.0.1:{seen.port}", resend_within=90) as gateway:
        for _ in range(2):
            assert await gateway.post(PATH, {}, b"{}", 90) == GatewayAnswer(200, b"ok")
    assert [b"\r\nConnection: close\r\n" in head for head in seen.heads] == [False, False, True]


@pytest.mark.parametrize("tls", [False, True])
async def test_bodies_of_every_size_arrive_whole_both_ways(tmp_path: Path, tls: bool) -> None:
    authority = Authority("target")
    served = authority.server_context(tmp_path) if tls else None
    sizes = (0, 1, 65_535, 65_536, 65_537, 327_679, 327_680, 327_681, 1_048_577, LARGE)
    async with (
        listening(echo, tls=served) as seen,
        Gateway(f"http{'s' if tls else ''}://127.0.0.1:{seen.port}", tls=trusting(authority)) as gateway,
    ):
        for size in sizes:
            body = random.Random(size).randbytes(size)
            answer = await gateway.post(PATH, {}, body, 90)
            assert isinstance(answer, GatewayAnswer)
            # not compared with all else that an answer has: nobody reads 10 MB of text
            assert answer.body == body
        assert seen.connections == 1


async def test_a_target_with_a_certificate_that_nobody_vouches_for_is_not_asked(tmp_path: Path) -> None:
    async with (
        listening(ok, tls=Authority("target").server_context(tmp_path)) as seen,
        Gateway(f"https://127.0.0.1:{seen.port}", tls=trusting(Authority("another"))) as gateway,
    ):
        said = await gateway.post(PATH, {}, b"{}", 90)
        assert isinstance(said, NoAnswer)
        assert said.reason.startswith("no connection: ")
        assert not said.reached
        assert seen.heads == []


async def test_leaving_asks_nobody_again() -> None:
    async def silent(seen: Listening, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(seen, reader)
        writer.write(OK)
        await request(seen, reader)
        await reader.read(1)

    async with listening(silent) as seen:
        async with Gateway(f"http://127.0.0.1:{seen.port}") as gateway:
            assert await gateway.post(PATH, {}, b"{}", 90) == GatewayAnswer(200, b"ok")
            posting = asyncio.create_task(gateway.post(PATH, {}, b"{}", 60))
            await eventually(lambda: len(seen.heads) == 2)
        assert await posting == NoAnswer("the connection ended", disconnected=True)
        assert seen.connections == 1


async def test_informational_answers_before_the_answer() -> None:
    """Each comes when it comes, on a kept connection too."""

    async def slow(seen: Listening, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request(seen, reader)
            for part in (INFORMATIONAL, b"HTTP/1.1 100 Continue\r\n\r\n", INFORMATIONAL + OK):
                writer.write(part)
                for _ in range(5):  # turns of the loop that both sides share
                    await asyncio.sleep(0)

    async with listening(slow) as seen, Gateway(f"http://127.0.0.1:{seen.port}") as gateway:
        for _ in range(3):
            assert await gateway.post(PATH, {}, b"{}", 90) == GatewayAnswer(200, b"ok")
        assert seen.connections == 1


@pytest.mark.parametrize(
    "more", [OK, b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n\r\n", b"nonsense\r\n\r\n", b"\x00"]
)
async def test_what_comes_after_an_answer_ends_its_connection(more: bytes) -> None:
    async def talk(seen: Listening, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(seen, reader)
        writer.write(OK)
        if seen.connections == 1:
            await go_on.wait()
            writer.write(more)
        await reader.read(1)

    go_on = asyncio.Event()
    async with listening(talk) as seen, Gateway(f"http://127.0.0.1:{seen.port}") as gateway:
        assert await gateway.post(PATH, {}, b"{}", 90) == GatewayAnswer(200, b"ok")
        go_on.set()
        await eventually(lambda: not connected(seen.port))
        assert await gateway.post(PATH, {}, b"{}", 90) == GatewayAnswer(200, b"ok")
        assert (len(seen.heads), seen.connections) == (2, 2)
