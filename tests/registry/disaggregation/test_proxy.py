"""Everything that has no prefill worker in it passes as it is: bytes, pace, and how an answer breaks."""

import asyncio
import hashlib
import io
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from yarl import URL

from registry.disaggregation.proxy import BodyLimits
from tests.eventually import eventually
from tests.raw_server import Serve, answers, raw_server, reset
from tests.registry.disaggregation.conftest import BODY, CHAT, Bench, bench, raw


@asynccontextmanager
async def in_front_of(serve: Serve) -> AsyncIterator[Bench]:
    """The sidecar in front of a server that writes bytes of the test's choice."""
    async with raw_server(serve) as port, bench(decode_at=("127.0.0.1", port)) as made:
        yield made


async def test_other_paths_and_methods_pass(nixl: Bench) -> None:
    async with nixl.session.put(
        URL(nixl.url("/hello?a=%2F&b=%C3%BC"), encoded=True), data=b"\x00\x01", headers={"x-a": "b"}
    ) as got:
        assert got.status == 200
        assert (got.headers["x-of-worker"], got.headers["content-type"]) == ("yes", "text/x")
        assert await got.read() == b"hello\x00\xff"
    (seen,) = nixl.decode.seen
    assert (seen.path, seen.headers["x-a"]) == ("/hello?a=%2F&b=%C3%BC", "b")
    async with nixl.session.head(nixl.url("/hello")) as got:
        assert got.status == 200
    async with nixl.session.get(nixl.url("/hello")) as got:
        assert await got.read() == b"hello\x00\xff"


async def test_without_the_header_a_prompt_passes(nixl: Bench) -> None:
    async with nixl.session.post(nixl.url(), json=BODY) as got:
        assert got.status == 200
        assert (await got.json())["usage"]["prompt_tokens_details"] is None
    assert not nixl.prefill.seen
    assert nixl.decode.seen[0].body == BODY
    assert nixl.metrics.alone == 1


async def test_the_header_on_another_path_goes_nowhere(nixl: Bench) -> None:
    async with nixl.post("/hello") as got:
        assert got.status == 200
    assert not nixl.prefill.seen
    assert "x-prefiller-host-port" not in nixl.decode.seen[0].headers


async def test_the_bytes_of_an_answer_are_the_servers() -> None:
    head = b"HTTP/1.1 200 OK\r\nX-Odd:  a b \r\nServer: s\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"4;x=y\r\nabcd\r\n1\r\n\r\r\n0\r\nTrailer: 1\r\n\r\n"
    async with in_front_of(answers(head + body)) as made:
        got = await raw(
            made.port.port, b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n", lambda data: data.endswith(body)
        )
    assert got == head + body


async def test_an_answer_in_single_bytes() -> None:
    whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3\r\nabc\r\n0\r\n\r\n"

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for at in range(len(whole)):
            writer.write(whole[at : at + 1])
            await asyncio.sleep(0)
        await reader.read()

    async with in_front_of(drip) as made, made.session.get(made.url("/a")) as got:
        assert await got.read() == b"helloabc"


async def test_hop_by_hop_fields_end_at_the_hop(nixl: Bench) -> None:
    head = b"HTTP/1.1 200 OK\r\nConnection: close, X-Private\r\nKeep-Alive: 5\r\nX-Private: 1\r\nX-Kept: 1\r\nContent-Length: 2\r\n\r\nok"
    async with in_front_of(answers(head, keep=False)) as made:
        request = b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: X-Mine\r\nX-Mine: 1\r\nTE: x\r\n\r\n"
        got = await raw(made.port.port, request, lambda data: data.endswith(b"ok"))
    assert got == b"HTTP/1.1 200 OK\r\nX-Kept: 1\r\nContent-Length: 2\r\n\r\nok"
    request = b"GET /other HTTP/1.1\r\nHost: x\r\nConnection: X-Mine, close\r\nX-Mine: 1\r\nX-Kept: 1\r\n\r\n"
    await raw(nixl.port.port, request)
    headers = nixl.decode.seen[0].headers
    assert "x-mine" not in headers
    assert headers["x-kept"] == "1"


async def test_what_the_servers_connection_fields_name_ends_at_the_hop_but_for_the_length() -> None:
    given = (
        b"HTTP/1.1 200 OK\r\nConnection: x-a\r\nConnection: keep-alive, x-b, Content-Length\r\n"
        b"X-A: 1\r\nX-B: 2\r\nX-C: 3\r\nContent-Length: 2\r\n\r\nok"
    )
    async with in_front_of(answers(given, keep=False)) as made:
        got = await raw(
            made.port.port, b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n", lambda got: got.endswith(b"\r\n\r\nok")
        )
    assert got == b"HTTP/1.1 200 OK\r\nX-C: 3\r\nContent-Length: 2\r\n\r\nok"


@pytest.mark.parametrize(
    "request_head",
    [
        b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked, x\r\n\r\n0\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost : x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
)
async def test_what_could_be_read_in_two_ways_is_refused(nixl: Bench, request_head: bytes) -> None:
    got = await raw(nixl.port.port, request_head + b"\r\n\r\n")
    assert got.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400")), got[:80]
    assert not nixl.decode.seen


async def test_a_chunked_request_has_a_length_behind_the_sidecar(nixl: Bench) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"a":'
        await asyncio.sleep(0.05)
        yield b"1}"

    async with nixl.session.post(nixl.url(), data=pieces()) as got:
        assert got.status == 200
    (seen,) = nixl.decode.seen
    assert seen.body == {"a": 1}
    assert seen.headers["content-length"] == "7"


async def test_a_client_may_ask_before_it_sends_a_body(nixl: Bench) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", nixl.port.port)
    writer.write(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"{}")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    assert "expect" not in nixl.decode.seen[0].headers
    writer.close()


async def test_a_body_that_is_too_large() -> None:
    async with bench(bodies=BodyLimits(1000, 10_000)) as made:
        async with made.session.post(made.url(), data=b"x" * 1001) as got:
            assert got.status == 413
        async with made.session.post(made.url(), data=b"x" * 1000) as got:
            assert got.status == 200
        assert len(made.decode.seen) == 1
        await eventually(lambda: made.port._held == 0)


async def test_bodies_that_are_too_large_together() -> None:
    async with bench(bodies=BodyLimits(1000, 1500)) as made:
        made.decode.go.clear()
        first = asyncio.ensure_future(made.session.post(made.url(), data=b"x" * 1000))
        await eventually(lambda: made.decode.seen)
        async with made.session.post(made.url(), data=_pieces(900)) as got:
            assert got.status == 503
        made.decode.go.set()
        async with await first as got:
            assert got.status == 200
        await eventually(lambda: made.port._held == 0)


async def _pieces(size: int) -> AsyncIterator[bytes]:
    yield b"x"
    await asyncio.sleep(0.1)
    yield b"x" * (size - 1)


async def test_a_large_body_and_a_large_answer_pass_whole() -> None:
    blob = os.urandom(20 * 1024 * 1024)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(len(blob))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        await reader.read()

    async with in_front_of(echo) as made, made.session.post(made.url("/echo"), data=io.BytesIO(blob)) as got:
        assert hashlib.sha256(await got.read()).digest() == hashlib.sha256(blob).digest()


async def test_a_client_that_does_not_read_holds_the_server_up() -> None:
    sent = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            sent += 1
            await writer.drain()

    async with in_front_of(endless) as made:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port.port)
        writer.write(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
        before = -1
        while not sent or sent != before:  # until nothing moves any more
            before = sent
            await asyncio.sleep(0.5)
        assert 0 < sent < 500
        for _ in range(200):  # and it goes on once the client reads
            await reader.read(65536)
        await eventually(lambda: sent > before)
        writer.transport.abort()


async def test_a_client_that_leaves_ends_the_request(nixl: Bench) -> None:
    nixl.decode.go.clear()
    asking = asyncio.ensure_future(nixl.session.post(nixl.url(), json=BODY).__aenter__())
    await eventually(lambda: nixl.decode.seen)
    asking.cancel()
    await eventually(lambda: nixl.decode.cancelled)
    await nixl.idle()


async def test_a_server_that_is_not_there() -> None:
    async with bench(decode_at=("127.0.0.1", 1)) as made, made.session.get(made.url("/v1/models")) as got:
        assert got.status == 503
        assert "accepts no connection" in (await got.json())["error"]["message"]


@pytest.mark.parametrize(
    "given", [b"", b"HTTP/1.1 2", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nbad line\r\n\r\n"]
)
async def test_a_server_that_gives_no_answer(given: bytes) -> None:
    async with (
        in_front_of(answers(given, keep=False)) as made,
        made.session.post(made.url(), json=BODY) as got,
    ):
        assert got.status == 502


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 10\r\n\r\nhalf", b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"]
)
async def test_an_answer_that_breaks_off_is_not_taken_for_a_whole_one(framing: bytes) -> None:
    async with (
        in_front_of(answers(b"HTTP/1.1 200 OK\r\n" + framing, keep=False)) as made,
        made.session.get(made.url("/a")) as got,
    ):
        with pytest.raises(aiohttp.ClientPayloadError):
            await got.read()


@pytest.mark.parametrize("own", [b"x-none: 1", b"x-prefiller-host-port: 127.0.0.1:1"])
async def test_the_end_of_the_sidecar_puts_no_answer_into_another_one(own: bytes) -> None:
    given = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf"
    async with in_front_of(answers(given)) as made:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port.port)
        writer.write(
            b"POST %s HTTP/1.1\r\nHost: x\r\n%s\r\nContent-Length: 2\r\n\r\n{}" % (CHAT.encode(), own)
        )
        await reader.readuntil(b"half")
        await made.port.aclose()
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("ask", [b"GET /a HTTP/1.1\r\n", b"POST /v1/completions HTTP/1.0\r\n"])
async def test_a_reset_is_not_the_end_of_an_answer_without_a_length(ask: bytes) -> None:
    broken = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        await broken.wait()
        reset(writer)

    async with in_front_of(serve) as made:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port.port)
        writer.write(ask + b"Host: x\r\n\r\n")
        await reader.readuntil(b"half")
        broken.set()
        with pytest.raises(ConnectionResetError):  # an end in order would be the end of the answer
            await reader.read()
        writer.close()


async def test_a_stream_that_lost_its_length_on_the_way_to_an_old_client_breaks_with_a_reset() -> None:
    given = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 1000\r\n\r\ndata: a\n\n"
    async with in_front_of(answers(given, keep=False)) as made:
        body = json.dumps(BODY).encode()
        own = b"Host: x\r\nx-prefiller-host-port: %s\r\n" % made.prefill.address.encode()
        head = b"POST %s HTTP/1.0\r\n%sContent-Length: %d\r\n\r\n" % (CHAT.encode(), own, len(body))
        with pytest.raises(ConnectionResetError):
            await raw(made.port.port, head + body)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (b"Content-Type: text/a\r\nContent-Encoding: gzip", ("text/a", "gzip")),
        (b"Content-Type: text/\x01a", ("application/octet-stream", None)),
        (b"Content-Type: text/\xff", ("application/octet-stream", None)),
    ],
)
async def test_how_to_read_a_prefill_workers_refusal(
    given: bytes, expected: tuple[str, str | None], nixl: Bench
) -> None:
    data = b"HTTP/1.1 400 Bad\r\n%s\r\nContent-Length: 2\r\n\r\nno" % given
    async with in_front_of(answers(data, keep=False)) as made:  # its server is the prefill worker here
        host, port = made.port._parts.decode._host_port
        own = {"x-prefiller-host-port": f"{host}:{port}"}
        async with nixl.session.post(nixl.url(), json=BODY, headers=own) as got:
            assert (got.status, await got.read()) == (400, b"no")
            assert (got.headers["content-type"], got.headers.get("content-encoding")) == expected


async def test_an_old_client_gets_no_chunks(nixl: Bench) -> None:
    body = json.dumps(BODY | {"stream": True}).encode()
    own = b"x-prefiller-host-port: " + nixl.prefill.address.encode()
    for header in (b"host: x\r\nx-none: 1", b"host: x\r\n" + own, own):
        got = await raw(
            nixl.port.port,
            b"POST %s HTTP/1.0\r\n%s\r\ncontent-length: %d\r\n\r\n%s"
            % (CHAT.encode(), header, len(body), body),
        )
        head, _, content = got.partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert content.endswith(b"data: [DONE]\n\n")


async def test_pipelined_requests_are_answered_in_order(nixl: Bench) -> None:
    got = await raw(
        nixl.port.port,
        b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    )
    assert got.index(b"hello") < got.index(b'"choices"')
