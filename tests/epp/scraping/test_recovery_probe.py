"""Which answers of an ejected worker say that it may get a request again; over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from epp.endpoints.endpoint import Endpoint
from epp.scraping.liveness import answers_probe


@asynccontextmanager
async def serving(answer: bytes | None, asked: list[bytes]) -> AsyncIterator[Endpoint]:
    """A worker that answers this to everything, None: nothing; the metrics are on another port."""
    open_connections: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_connections.append(writer)
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        if answer is not None:
            writer.write(answer)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield Endpoint(
            id="w", incarnation="1", address="127.0.0.1", port=port, metrics_port=9, scheme="https"
        )
    finally:
        server.close()
        for writer in open_connections:
            writer.transport.abort()


def response(status: str, body: bytes = b"") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("answer", "alive"),
    [
        (response("200 OK"), True),
        (response("200 OK", b"x" * 500_000), True),
        (response("404 Not Found"), True),
        (response("405 Method Not Allowed"), True),
        (response("401 Unauthorized"), True),
        (response("307 Temporary Redirect"), True),
        (response("501 Not Implemented"), True),
        (response("500 Internal Server Error"), False),
        (response("503 Service Unavailable"), False),
        (b"SSH-2.0-OpenSSH\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab", False),
        (None, False),
    ],
    ids=lambda given: given[:14].decode() if isinstance(given, bytes) else str(given),
)
async def test_what_an_answer_says(answer: bytes | None, alive: bool) -> None:
    asked: list[bytes] = []
    async with serving(answer, asked) as endpoint:
        # nobody waits for an answer that comes
        within = 60.0 if alive or (answer or b"").startswith(b"HTTP/1.1 50") else 0.3
        assert await answers_probe(endpoint, "/health?deep=1", within, None) is alive
    assert asked[0].startswith(b"GET /health?deep=1 HTTP/1.1\r\n")


async def test_a_port_that_nobody_listens_at() -> None:
    async with serving(None, []) as endpoint:
        pass
    assert await answers_probe(endpoint, "/health", 60.0, None) is False
