"""The thread behind the blocking forms: after its end, and in a process that was forked from its own."""

import asyncio
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

import discovery.blocking
import registry.blocking
from adsum.portal import EventLoop
from discovery import MetadataUnavailableError, RegistrationError

FORK = """
import os, sys, time
def forked(child):
    "What the child's exit status is; -9 when it hangs."
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        child()
        sys.exit(0)
    deadline = time.monotonic() + 45
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, 9)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def said(call):
    try:
        call()
    except RuntimeError as error:
        print(str(error).split(" and belongs")[0], flush=True)
"""


def lines_of(program: str, root: Path) -> list[str]:
    source = f"URL = {f'file://{root}'!r}\n{FORK}\n{textwrap.dedent(program)}"
    quiet = ["-W", "ignore::DeprecationWarning"]  # Python 3.12 and later warn of every fork beside a thread
    ran = subprocess.run([sys.executable, *quiet, "-c", source], capture_output=True, text=True, timeout=150)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.splitlines()


def test_a_forked_child_of_a_reader_ends_and_is_told_to_open_its_own(tmp_path: Path) -> None:
    program = """
        import discovery.blocking
        service = discovery.blocking.open(URL)
        service.list_instances("prod", "decode")
        stream = service.watch("prod", "decode").__enter__()
        print(forked(lambda: None))
        def child():
            said(lambda: service.list_instances("prod", "decode"))
            said(lambda: next(stream))
            said(lambda: stream.instances)
            stream.close()
            service.close()
            with discovery.blocking.open(URL) as own:
                print(own.list_instances("prod", "decode"), flush=True)
        print(forked(child))
        print(service.list_instances("prod", "decode"))
    """
    refused = "this discovery was opened before a fork"
    assert lines_of(program, tmp_path) == ["0", *[refused] * 3, "[]", "0", "[]"]


def test_a_forked_child_of_a_worker_ends_and_takes_nothing_back(tmp_path: Path) -> None:
    program = """
        import registry.blocking, signal
        handle = registry.blocking.open(URL).register_instance("prod", "decode")
        handle.drain_on_sigterm()
        print(forked(lambda: None))
        def child():
            said(lambda: handle.set_ready("ready"))
            said(lambda: handle.set_metadata({}))
            said(lambda: handle.drain(1))
            said(lambda: handle.busy())
            handle.close()
        print(forked(child))
        print(forked(lambda: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(30))))
        handle.set_ready("ready")
        print(len(os.listdir(URL[7:] + "/prod/decode")))
    """
    refused = "this registry was opened before a fork"
    assert lines_of(program, tmp_path) == ["0", *[refused] * 4, "0", "-15", "3"]


def test_what_was_opened_but_not_used_before_a_fork_works_after_it(tmp_path: Path) -> None:
    program = """
        import discovery.blocking
        service = discovery.blocking.open(URL)
        print(forked(lambda: print(service.list_instances("prod", "decode"), flush=True)))
        print(service.list_instances("prod", "decode"))
    """
    assert lines_of(program, tmp_path) == ["[]", "0", "[]"]


def test_after_close_calls_are_errors_and_no_thread_starts() -> None:
    threads = {*threading.enumerate()}  # one of a test before may end meanwhile
    registering = registry.blocking.open("memory://closed")
    service = discovery.blocking.open("memory://closed")
    handle = registering.register_instance("prod", "decode")
    handle.set_ready("ready")
    [instance] = service.list_instances("prod", "decode")
    stream = service.watch("prod", "decode").__enter__()
    service.close()
    registering.close()
    with pytest.raises(RuntimeError, match="this discovery is closed; open another one"):
        service.list_instances("prod", "decode")
    with pytest.raises(RuntimeError, match="this registry is closed; open another one"):
        registering.register_instance("prod", "decode")
    with pytest.raises(RegistrationError, match="is closed"):
        handle.set_ready("ready")
    with pytest.raises(MetadataUnavailableError, match="discovery is closed"):
        instance.metadata()
    with pytest.raises(StopIteration):
        next(stream)
    stream.close()
    handle.close()
    handle.drain(1)
    service.close()
    assert {*threading.enumerate()} <= threads


def test_closing_ends_what_waits_in_other_threads() -> None:
    service = discovery.blocking.open("memory://waiting")
    waiting = threading.Event()
    ended: list[str] = []

    def read() -> None:
        stream = service.watch("prod", "decode")
        with stream:
            waiting.set()
            ended.extend(event.instance_id for event in stream)
        ended.append("over")

    def wait_for_more() -> None:
        with pytest.raises(RuntimeError):
            discovery.blocking.wait_for_instances(service, "prod", "decode", count=1, timeout=90)
        ended.append("refused")

    threads = [threading.Thread(target=target, daemon=True) for target in (read, wait_for_more)]
    for thread in threads:
        thread.start()
    assert waiting.wait(90)
    time.sleep(0.05)
    service.close()
    for thread in threads:
        thread.join(90)
    assert sorted(ended) == ["over", "refused"]


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
