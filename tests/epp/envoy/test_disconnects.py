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
from epp.envoy.config import bootstrap, render
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


@pytest.fixture
async def asked(running_envoy: Any, director: Any, picking: Any) -> AsyncIterator[Any]:
    """`await asked(serve, ours=..., within=..., attempts=...)`: the status that a client sees of a worker that does this."""
    async with AsyncExitStack() as stack:

        async def ask(serve: Serve | None, *, ours: bool, within: str = "60s", attempts: int = 3) -> int:
            address = await stack.enter_async_context(worker(serve))
            director.outcome = picking(address)
            picker = Picker(TransportKind.HTTP2, director)
            await stack.enter_async_context(picker.listener)
            pickers = (Address("127.0.0.1", picker.port),)
            settings = replace(LOCAL, pickers=pickers, route_timeout=within, attempts=attempts)
            config = bootstrap(settings)
            manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0][
                "typed_config"
            ]
            if not ours:
                del manager["local_reply_config"]
            envoy = await stack.enter_async_context(running_envoy(yaml.safe_dump(config)))
            client = await stack.enter_async_context(aiohttp.ClientSession())
            async with client.post(envoy.url("/v1/completions"), data=b"x") as answer:
                status = answer.status
            await eventually(lambda: director.released)
            return status

        yield ask


@pytest.mark.parametrize("ours", [True, False], ids=["our local replies", "Envoy's"])
@pytest.mark.parametrize("serve", [None, resets], ids=["refuses", "resets"])
async def test_a_worker_that_is_not_reached_or_resets_is_told_of(
    asked: Any, director: Any, serve: Serve | None, ours: bool
) -> None:
    assert await asked(serve, ours=ours) in (502, 503)
    assert director.failures in ([Failure.CONNECT], [Failure.RESET])


@pytest.mark.parametrize("ours", [True, False], ids=["our local replies", "Envoy's"])
@pytest.mark.parametrize(
    "serve",
    [
        without_a_body(b"HTTP/1.1 503 Service Unavailable\r\ndate: now\r\nserver: uvicorn\r\n"),
        without_a_body(b"HTTP/1.1 502 Bad Gateway\r\n"),
        without_a_body(b"HTTP/1.1 200 OK\r\n"),
    ],
    ids=["503", "502", "200"],
)
async def test_what_a_worker_answers_itself_says_nothing(
    asked: Any, director: Any, serve: Serve, ours: bool
) -> None:
    await asked(serve, ours=ours, attempts=1)  # a 503 is sent to another worker, which there is not
    assert director.failures == []


@pytest.mark.parametrize("ours", [True, False], ids=["our local replies", "Envoy's"])
async def test_a_worker_that_does_not_answer_in_time_is_told_of(
    asked: Any, director: Any, ours: bool
) -> None:
    assert await asked(hangs, ours=ours, within="1s") == 504
    assert director.failures == [Failure.TIMEOUT]


@pytest.mark.parametrize("listed", [True, False], ids=["it tries it", "it does not know it"])
async def test_an_attempt_that_envoy_repeated_elsewhere_is_told_of(
    running_envoy: Any, director: Any, picking: Any, listed: bool
) -> None:
    async with AsyncExitStack() as stack:
        gone, other = [
            await stack.enter_async_context(worker(serve))
            for serve in (None, without_a_body(b"HTTP/1.1 200 OK\r\n"))
        ]
        director.outcome = picking(gone, other)
        picker = Picker(TransportKind.HTTP2, director)
        await stack.enter_async_context(picker.listener)
        hosts = [Address("127.0.0.1", int(one.rpartition(":")[2])) for one in (gone, other)]
        settings = replace(
            LOCAL,
            mode="override-host",
            pickers=(Address("127.0.0.1", picker.port),),
            endpoints=hosts if listed else hosts[1:],
        )
        envoy = await stack.enter_async_context(running_envoy(yaml.safe_dump(bootstrap(settings))))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        async with client.post(envoy.url("/v1/completions"), data=b"x") as answer:
            assert answer.status == 200
        await eventually(lambda: director.released)
    assert director.reported == [other]
    assert director.retries == [2 if listed else 1]
    assert director.failures == []


async def breaks_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab")
    await writer.drain()
    writer.close()


async def test_an_answer_that_broke_off_before_it_reached_the_client_is_told_in_openai_s_form(
    running_envoy: Any, director: Any, picking: Any
) -> None:
    """Envoy has its head, which is with the picker, when the worker is gone: else the client would have it."""
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(worker(breaks_off))
        director.outcome = picking(address)
        picker = Picker(TransportKind.HTTP2, director)
        await stack.enter_async_context(picker.listener)
        settings = replace(LOCAL, pickers=(Address("127.0.0.1", picker.port),), outcomes="ext-proc")
        envoy = await stack.enter_async_context(running_envoy(yaml.safe_dump(bootstrap(settings))))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        async with client.post(envoy.url("/v1/completions"), data=b"x") as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (502, "worker_failed")


@pytest.mark.parametrize("honoured", [True, False])
async def test_a_client_says_how_long_its_answer_may_take(
    running_envoy: Any, director: Any, picking: Any, honoured: bool
) -> None:
    """As the dispatcher does. A client that is not trusted could make workers look slow, so a flag says so."""
    async with AsyncExitStack() as stack:
        director.outcome = picking(await stack.enter_async_context(worker(hangs)))
        picker = Picker(TransportKind.HTTP2, director)
        await stack.enter_async_context(picker.listener)
        flags = parse(["--epp", f"127.0.0.1:{picker.port}", f"--client-timeouts={str(honoured).lower()}"])
        settings = replace(flags, listen=LOCAL.listen, admin=LOCAL.admin, secure=False)
        envoy = await stack.enter_async_context(running_envoy(render(settings)))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        headers = {TIMEOUT_HEADER: "50", "x-envoy-max-retries": "9", "x-envoy-retry-on": "5xx"}
        asking = client.post(envoy.url("/v1/completions"), data=b"x", headers=headers)
        if honoured:
            async with asking as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (504, "worker_timeout")
            await eventually(lambda: director.failures == [Failure.TIMEOUT])
            return
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1), asking:
                pass
