"""What the gateway uses of aiohttp below its session: where one of these fails, aiohttp is another, not the gateway."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import StreamWriter
from aiohttp.streams import StreamReader
from yarl import URL

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest.mark.parametrize(
    ("what", "parameters"),
    [
        (aiohttp.ClientRequest.__init__, {"method", "url"}),
        (aiohttp.TCPConnector.connect, {"req", "traces", "timeout"}),
        (
            ResponseHandler.set_response_params,
            {"read_until_eof", "auto_decompress", "max_line_size", "max_field_size"},
        ),
        (ResponseHandler.read, {"self"}),
        (Connection.release, {"self"}),
        (Connection.close, {"self"}),
        (StreamReader.at_eof, {"self"}),
        (StreamReader.readany, {"self"}),
        (StreamWriter.__init__, {"protocol", "loop"}),
        (StreamWriter.write, {"chunk", "drain"}),
        (StreamWriter.drain, {"self"}),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_aiohttp_still_takes_what_we_give(what: Callable[..., Any], parameters: set[str]) -> None:
    assert parameters <= set(inspect.signature(what).parameters)


async def test_aiohttp_still_does_what_we_rely_on() -> None:
    """Its connections, seen from the gateway: taken, told to parse, read, given back, taken again."""

    async def twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"?")
        writer.write(OK)
        await reader.readuntil(b"?")
        writer.write(b"HTTP/1.1 2")
        writer.close()

    async def ask(connection: Connection) -> ResponseHandler:
        protocol, transport = connection.protocol, connection.transport
        assert isinstance(protocol, ResponseHandler), "a connection has aiohttp's response handler"
        assert isinstance(transport, asyncio.Transport), "a connection has asyncio's transport"
        protocol.set_response_params(read_until_eof=True, auto_decompress=False)
        transport.write(b"?")
        return protocol

    server = await asyncio.start_server(twice, "127.0.0.1", 0)
    url = URL(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    template, patience = aiohttp.ClientRequest("POST", url), aiohttp.ClientTimeout(total=None, connect=10)
    async with server, aiohttp.TCPConnector(limit=0, keepalive_timeout=30) as connector:
        first = await connector.connect(template, [], patience)
        protocol = await ask(first)
        message, payload = await protocol.read()
        assert (message.code, message.headers.get("Content-Length")) == (200, "2")
        assert (await payload.readany(), payload.at_eof()) == (b"ok", True)
        assert not protocol.should_close, "a connection whose answer was read may serve again"
        first.release()

        second = await connector.connect(template, [], patience)
        assert second.protocol is protocol, "a kept connection has the handler that it had"
        await ask(second)
        with pytest.raises(aiohttp.ServerDisconnectedError) as ended:
            await protocol.read()
        assert not isinstance(ended.value.message, str), "an answer that had begun is told from none"
        assert protocol.should_close
        second.close()
