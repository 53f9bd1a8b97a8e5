"""The access log service on the port of ext_proc, over both transports."""

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from grpc import StatusCode, aio

from epp.config.settings import TransportKind
from epp.ext_proc.access_log_entry import ACCESS_LOG
from epp.ext_proc.exchange import Exchange
from epp.ext_proc.exchange_settings import ExchangeSettings
from epp.ext_proc.outcomes import OutcomeLedger
from epp.ext_proc.protocol import EXT_PROC
from epp.health import Health
from epp.request.body import MemoryBudget
from epp.wire.messages.ext_proc_pb2 import ProcessingResponse
from epp.wire.opening import open_transport
from epp.wire.transport import ListenAddress, Transport
from tests.epp.ext_proc.test_outcomes import entry, message
from tests.eventually import eventually


class Served:
    def __init__(self, transport: Transport, ledger: OutcomeLedger, channel: aio.Channel) -> None:
        self.transport, self.ledger = transport, ledger
        self.open_log = channel.stream_unary(f"/{ACCESS_LOG}/StreamAccessLogs")
        self.process = channel.stream_stream(f"/{EXT_PROC}/Process")


@pytest.fixture(params=list(TransportKind))
async def served(request: pytest.FixtureRequest, director: Any) -> AsyncIterator[Served]:
    ledger = OutcomeLedger("0123456789abcdef")
    memory = MemoryBudget(10**8)

    def exchange() -> Exchange:
        return Exchange(director, ExchangeSettings(), budget=memory)

    transport = open_transport(request.param, exchange, Health(), memory, time.monotonic)
    transport.await_outcomes(ledger)
    listener = transport.listener(ListenAddress("127.0.0.1", 0), processing=True)
    async with listener, aio.insecure_channel(listener.address) as channel:
        yield Served(transport, ledger, channel)


async def pick(served: Served, messages: Any, *headers: tuple[str, str]) -> ProcessingResponse:
    stream = served.process(metadata=headers)
    await stream.write(messages.headers(end_of_stream=True).SerializeToString())
    answer = ProcessingResponse.FromString(await stream.read())
    stream.cancel()
    return answer


async def test_a_log_tells_what_became_of_a_pick(served: Served, director: Any, messages: Any) -> None:
    await pick(served, messages, ("x-adsum-outcomes", "access-log"))
    await eventually(lambda: served.transport.open_streams == 0)
    assert (director.released, len(served.ledger)) == ([], 1)
    log = served.open_log()
    # the first message has Envoy's node, which is large
    await log.write(b"\x0a\x82\xe0\x03\x0a" + b"\xfe\xdf\x03" + bytes(0xEFFE))
    await log.write(message(entry("another"), entry(director.outcome.token)))
    await eventually(lambda: director.released)
    assert served.ledger.logs == 1
    await log.done_writing()
    assert await log == b""
    await eventually(lambda: served.ledger.logs == 0)


@pytest.mark.parametrize("headers", [(), (("x-adsum-outcomes", "ext-proc"),)])
async def test_a_stream_that_says_nothing_of_a_log_releases_at_its_end(
    served: Served, director: Any, messages: Any, headers: Any
) -> None:
    await pick(served, messages, *headers)
    await eventually(lambda: director.released)
    assert not served.ledger.used


async def test_a_message_that_is_no_log_ends_the_stream(served: Served) -> None:
    log = served.open_log()
    await log.write(b"\xff\xff")
    assert await log.code() is StatusCode.INTERNAL
    assert "StreamAccessLogsMessage" in await log.details()


async def test_a_drain_ends_the_logs(served: Served) -> None:
    log = served.open_log()
    await log.write(message())
    await eventually(lambda: served.ledger.logs == 1)
    served.transport.drain()
    assert await log.code() is StatusCode.UNAVAILABLE
    again = served.open_log()
    await again.write(message())
    assert await again.code() is StatusCode.UNAVAILABLE
