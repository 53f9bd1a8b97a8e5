"""What the picker learns of a worker from Envoy's own answers, with our local replies and with Envoy's."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
import yaml

from epp.config.settings import TransportKind
from epp.envoy.config import bootstrap
from epp.envoy.flags import parse
from epp.envoy.json_values import Address
from epp.outliers.settings import Failure
from tests.epp.envoy.test_envoy import LOCAL, Picker
from tests.eventually import eventually
from tests.raw_server import Serve, answers, raw_server

TIMEOUT_HEADER = "x-envoy-upstream-rq-timeout-ms"


async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()


async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


@asynccontextmanager
async def worker(serve: Serve | None) -> AsyncIterator[str]:
    """Its address; None: nothing listens there."""
    if serve is None:
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            yield f"127.0.0.1:{bound.getsockname()[1]}"
    else:
        async with raw_server(serve) as port:
            yield f"127.0.0.1:{port}"


def without_a_body(head: bytes) -> Serve:
    return answers(head + b"Content-Length: 0\r\n\r\n", keep=False)


class Front:
    """A picker that is `director`, and an Envoy before it."""

    def __init__(self, stack: AsyncExitStack, running_envoy: Any, director: Any, picking: Any) -> None:
        self._stack, self._running_envoy, self._director, self._picking = (
            stack,
            running_envoy,
            director,
            picking,
        )

    async def pick(self, *serves: Serve | None) -> list[str]:
        """The addresses of workers that do this, which are picked from now on."""
        addresses = [await self._stack.enter_async_context(worker(serve)) for serve in serves]
        self._director.outcome = self._picking(*addresses)
        return addresses

    async def open(self, *, ours: bool = True, **settings: Any) -> None:
        """`ours`: with our local replies."""
        picker = Picker(TransportKind.HTTP2, self._director)
        await self._stack.enter_async_context(picker.listener)
        config = bootstrap(replace(LOCAL, pickers=(Address("127.0.0.1", picker.port),), **settings))
        if not ours:
            [chain] = config["static_resources"]["listeners"][0]["filter_chains"]
            del chain["filters"][0]["typed_config"]["local_reply_config"]
        envoy = await self._stack.enter_async_context(self._running_envoy(yaml.safe_dump(config)))
        self._url = envoy.url("/v1/completions")
        self._client = await self._stack.enter_async_context(aiohttp.ClientSession())

    def ask(self, **headers: Any) -> Any:
        return self._client.post(self._url, data=b"x", **headers)

    async def status(self) -> int:
        """What a client sees, once the picker has heard of it too."""
        before = len(self._director.released)
        async with self.ask() as answer:
            status: int = answer.status
        await eventually(lambda: len(self._director.released) > before)
        return status


@pytest.fixture
async def front(running_envoy: Any, director: Any, picking: Any) -> AsyncIterator[Front]:
    async with AsyncExitStack() as stack:
        yield Front(stack, running_envoy, director, picking)


OURS = pytest.mark.parametrize("ours", [True, False], ids=["our local replies", "Envoy's"])


@OURS
async def test_a_worker_that_is_not_reached_or_resets_is_told_of(
    front: Front, director: Any, ours: bool
) -> None:
    await front.open(ours=ours)
    for number, serve in enumerate((None, resets), 1):
        await front.pick(serve)
        assert await front.status() in (502, 503)
        assert len(director.failures) == number
        assert director.failures[-1] in (Failure.CONNECT, Failure.RESET)


@OURS
async def test_what_a_worker_answers_itself_says_nothing(front: Front, director: Any, ours: bool) -> None:
    await front.open(ours=ours, attempts=1)  # a 503 is sent to another worker, which there is not
    for status, head in (
        (503, b"503 Service Unavailable\r\ndate: now\r\nserver: uvicorn"), (502, b"502 Bad Gateway"), (200, b"200 OK")
    ):  # fmt: skip
        await front.pick(without_a_body(b"HTTP/1.1 %s\r\n" % head))
        assert await front.status() == status
    assert director.failures == []


@OURS
async def test_a_worker_that_does_not_answer_in_time_is_told_of(
    front: Front, director: Any, ours: bool
) -> None:
    await front.pick(hangs)
    await front.open(ours=ours, route_timeout="1s")
    assert await front.status() == 504
    assert director.failures == [Failure.TIMEOUT]


@pytest.mark.parametrize("listed", [True, False], ids=["it tries it", "it does not know it"])
async def test_an_attempt_that_envoy_repeated_elsewhere_is_told_of(
    front: Front, director: Any, listed: bool
) -> None:
    addresses = await front.pick(None, without_a_body(b"HTTP/1.1 200 OK\r\n"))
    known = addresses if listed else addresses[1:]
    await front.open(mode="override-host", endpoints=[Address.parse(one) for one in known])
    assert await front.status() == 200
    assert director.reported == addresses[1:]
    assert director.retries == [2 if listed else 1]
    assert director.failures == []


async def breaks_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab")
    await writer.drain()
    writer.close()


async def test_an_answer_that_broke_off_before_it_reached_the_client_is_told_in_openai_s_form(
    front: Front,
) -> None:
    """Envoy has its head, which is with the picker, when the worker is gone: else the client would have it."""
    await front.pick(breaks_off)
    await front.open(outcomes="ext-proc")
    async with front.ask() as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (502, "worker_failed")


@pytest.mark.parametrize("honoured", [True, False])
async def test_a_client_says_how_long_its_answer_may_take(
    front: Front, director: Any, honoured: bool
) -> None:
    """As the dispatcher does. A client that is not trusted could make workers look slow, so a flag says so."""
    await front.pick(hangs)
    flag = f"--client-timeouts={str(honoured).lower()}"
    await front.open(client_timeouts=parse([flag]).client_timeouts)
    asking = front.ask(headers={TIMEOUT_HEADER: "50", "x-envoy-max-retries": "9", "x-envoy-retry-on": "5xx"})
    if honoured:
        async with asking as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (504, "worker_timeout")
        await eventually(lambda: director.failures == [Failure.TIMEOUT])
        return
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1), asking:
            pass
