"""What comes for a loop that is closed."""

import asyncio
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from adsum.event_loop import EventLoop


def test_a_callback_after_the_end_is_dropped() -> None:
    loop = EventLoop()
    loop.close()
    called: list[int] = []
    assert loop.call_soon_threadsafe(called.append, 1).cancelled()
    assert not called


def test_a_callback_is_called_in_the_loop() -> None:
    loop = EventLoop()
    threading.Thread(target=lambda: loop.call_soon_threadsafe(loop.stop)).start()
    loop.run_forever()
    loop.close()


def test_the_tests_have_such_loops() -> None:
    """Else one that is closed makes a later test fail, in which gRPC brings it what it no longer waits for."""
    plain = re.compile(r"def anyio_backend\(.*\) -> str:")
    tests = Path(__file__).parents[1]
    assert [path.name for path in tests.rglob("*.py") if plain.search(path.read_text())] == []


class WaitingServer:
    """Answers when it may."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self.asked, self.may_answer = threading.Event(), threading.Event()
        self._server = grpc.server(threads)
        handlers = {"Echo": grpc.unary_unary_rpc_method_handler(self._echo)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _echo(self, request: bytes, _: grpc.ServicerContext) -> bytes:
        self.asked.set()
        self.may_answer.wait(90)
        return request

    def stop(self) -> None:
        self.may_answer.set()
        self._server.stop(None).wait(90)


@pytest.fixture
def server() -> Iterator[WaitingServer]:
    with ThreadPoolExecutor(2) as threads:
        server = WaitingServer(threads)
        yield server
        server.stop()


def test_a_grpc_call_of_a_closed_loop_troubles_no_other(server: WaitingServer) -> None:
    kept: list[Any] = []  # or its channel would be closed with it
    errors: list[Any] = []

    async def ask() -> Any:
        channel = aio.insecure_channel(server.address)
        call = channel.unary_unary("/test/Echo")(b"hello")
        kept.extend((channel, call))
        return await call

    async def ask_and_leave() -> None:
        kept.append(asyncio.create_task(ask()))
        assert await asyncio.to_thread(server.asked.wait, 90)

    async def ask_and_wait() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        server.may_answer.set()
        assert await ask() == b"hello"

    left = EventLoop()
    left.run_until_complete(ask_and_leave())
    left.close()
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(ask_and_wait())
    assert errors == []
