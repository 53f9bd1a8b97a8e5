"""Pickers as processes that tell each other over real sockets: bookings, death, a stop, a newcomer, strangers and liars."""

import asyncio
import contextlib
import json
import re
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from benchmarks.ports import free_ports
from epp.ext_proc.access_log_entry import ACCESS_LOG
from epp.ext_proc.protocol import EXT_PROC
from epp.peers.messages.peers_pb2 import Hello, News
from tests.epp.epp_program import LOCAL, epp_program
from tests.epp.ext_proc.test_outcome_ledger import entry, message
from tests.epp.local_picker import stream_over
from tests.epp.peers.test_subscriber import add
from tests.epp.picker_programs import PickerProgram, picker_programs
from tests.eventually import eventually

TELL = "/adsum.peers.v1.Peers/Tell"
BODY = json.dumps({"model": "m", "prompt": "hello " * 500}).encode()


@asynccontextmanager
async def workers(count: int) -> AsyncIterator[list[int]]:
    """Ports that accept connections and say nothing."""
    async with AsyncExitStack() as stack:
        ports = []
        for _ in range(count):
            server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
            await stack.enter_async_context(server)
            ports.append(server.sockets[0].getsockname()[1])
        yield ports


@asynccontextmanager
async def requests(picker: PickerProgram, count: int, messages: Any) -> AsyncIterator[None]:
    """So many are in flight at the picker in the block."""
    async with aio.insecure_channel(picker.address) as channel:
        streams: list[Any] = []
        for _ in range(count):
            stream = stream_over(channel)
            await stream.write(messages.headers())
            await stream.write(messages.body(BODY, end_of_stream=True))
            assert await stream.read() is not aio.EOF
            streams.append(stream)
        try:
            yield
        finally:
            for stream in streams:
                stream.cancel()


async def heard(picker: PickerProgram) -> list[int]:
    """What is in flight at each of its peers, the fewest first."""
    status = await picker.page("status")
    return sorted(peer["inflight"] for peer in status["peers"]["connected"])


def tells(picker: PickerProgram, *expected: int) -> Any:
    async def found() -> bool:
        endpoints = (await picker.page("debug/endpoints"))["endpoints"]
        counted = sum(endpoint["peer_inflight"] for endpoint in endpoints)
        return await heard(picker) == sorted(expected) and counted == sum(expected)

    return found


def flags(folder: Path) -> list[str]:
    return [f"--peers=file://{folder}", "--peer-port=0"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir(mode=0o700)
    return folder


async def test_what_one_sends_the_others_count_until_it_ends_dies_or_stops(root: Path, messages: Any) -> None:
    async with workers(2) as ports, picker_programs(3, ports, flags(root)) as (one, other, third):
        for picker in one, other, third:
            await eventually(tells(picker, 0, 0))
        async with requests(one, 5, messages), requests(other, 3, messages):
            await eventually(tells(third, 3, 5))
            await eventually(tells(other, 0, 5))
            await eventually(tells(one, 0, 3))
            assert await one.in_flight() == 5, "the metrics page has its own alone"

            other.send(signal.SIGSTOP)
            await eventually(tells(third, 5))
            other.send(signal.SIGCONT)
            await eventually(tells(third, 3, 5))

            async with AsyncExitStack() as stack:
                (newcomer,) = await stack.enter_async_context(picker_programs(1, ports, flags(root)))
                assert await heard(newcomer) == [0, 3, 5], "before it is ready"

            one.send(signal.SIGKILL)
            await one.ended()
            await eventually(tells(third, 3))
            await eventually(tells(other, 0))
        await eventually(tells(third, 0))


async def test_a_fixed_list_that_names_every_picker(messages: Any) -> None:
    first, second, *ports = free_ports(8)
    listed = [f"--peer=127.0.0.1:{port}" for port in (first, second)]
    async with workers(2) as served, AsyncExitStack() as stack:
        pickers = []
        for at, port in enumerate((first, second)):
            own = PickerProgram(ports[3 * at : 3 * at + 3], served, [*listed, f"--peer-port={port}"])
            stack.push_async_callback(own.stop)
            await own.start()
            pickers.append(own)
        async with requests(pickers[0], 2, messages):
            await eventually(tells(pickers[1], 2))

            async def none_missing() -> bool:
                status = await pickers[1].page("status")
                return bool(status["peers"]["missing"] == {})

            await eventually(none_missing)


async def test_a_peer_that_kept_its_own_stream_is_not_missing() -> None:
    """Two that dial each other at once keep one stream: the other one's address, whose stream ended, is connected all the same."""
    ended = asyncio.Event()

    async def accept(_: object, context: Any) -> None:
        await context.read()
        await context.write(hello(name="0" * 16))
        ended.set()

    server, (port,) = aio.server(), free_ports(1)
    handlers = {"Tell": grpc.stream_stream_rpc_method_handler(accept)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("adsum.peers.v1.Peers", handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    async with (
        workers(1) as ports,
        picker_programs(1, ports, [f"--peer=127.0.0.1:{port}", "--peer-port=0"]) as (picker,),
    ):
        await ended.wait()
        async with aio.insecure_channel((await picker.page("status"))["peers"]["address"]) as channel:
            stream: Any = channel.stream_stream(TELL)()
            await stream.write(hello(name="0" * 16))
            await stream.read()
            while not (peers := (await picker.page("status"))["peers"])["connected"]:
                await stream.write(b"")  # silence would end it
            assert peers["missing"] == {}
            stream.cancel()
    await server.stop(None)


async def lie(address: str, *parts: bytes) -> str:
    """How a picker ends the stream of one who sends this."""
    async with aio.insecure_channel(address) as channel:
        stream: Any = channel.stream_stream(TELL)()
        try:
            for part in parts:
                await stream.write(part)
            while await stream.read() is not aio.EOF:
                pass
        except (aio.AioRpcError, asyncio.InvalidStateError):
            pass
        return str((await stream.code()).name)


def hello(**changes: Any) -> bytes:
    given: dict[str, Any] = {"version": 1, "oldest": 1, "name": "f" * 16} | changes
    return News(hello=Hello(**given)).SerializeToString()


async def test_a_peer_that_lies_changes_nothing(root: Path, messages: Any) -> None:
    async with workers(2) as ports, picker_programs(2, ports, flags(root)) as (one, other):
        await eventually(tells(other, 0))
        address = (await other.page("status"))["peers"]["address"]
        crowd = News()
        for number in range(1_000_000):
            crowd.ended.append(number)
        endpoint = News(anew=True)
        endpoint.endpoints.add(number=1, id="w", incarnation="1")
        huge = News()
        add(huge, 1, size=2**32 - 1)
        assert await lie(address, b"\xff" * 100) == "INVALID_ARGUMENT"
        assert await lie(address, hello(version=9, oldest=7)) == "INVALID_ARGUMENT"
        assert await lie(address, hello(name="../../etc")) == "INVALID_ARGUMENT"
        assert await lie(address, hello(), b"\xff" * 100) == "INVALID_ARGUMENT"
        assert (
            await lie(address, hello(), endpoint.SerializeToString(), huge.SerializeToString())
            == "INVALID_ARGUMENT"
        )
        assert await lie(address, hello(), crowd.SerializeToString()) == "INVALID_ARGUMENT"
        assert await lie(address, hello(), bytes(8 * 1024 * 1024)) in ("RESOURCE_EXHAUSTED", "CANCELLED")
        newer = hello(version=9, oldest=1) + b"\xfa\x3e\x03abc"
        assert await lie(address, newer) == "DEADLINE_EXCEEDED", "it was understood, and then silent"
        async with requests(one, 2, messages):
            await eventually(tells(other, 2))


async def test_a_token_lets_in_who_has_it(root: Path, tmp_path: Path, messages: Any) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("r" * 40 + "\n")
    wrong.write_text("w" * 40)
    with_token = [*flags(root), f"--peer-token-file={right}"]
    async with AsyncExitStack() as stack:
        ports = await stack.enter_async_context(workers(1))
        one, other = await stack.enter_async_context(picker_programs(2, ports, with_token))
        async with requests(one, 2, messages):
            await eventually(tells(other, 2))
            stranger = [*flags(root), f"--peer-token-file={wrong}"]
            async with picker_programs(1, ports, stranger) as (third,):

                async def refused() -> bool:
                    missing = (await third.page("status"))["peers"]["missing"]
                    return len(missing) == 2 and all("UNAVAILABLE" in why for why in missing.values())

                await eventually(refused)
                assert await heard(third) == []
                assert await heard(other) == [2]
            address = (await other.page("status"))["peers"]["address"]
            assert await lie(address, hello()) == "UNAVAILABLE", "plain text"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--peers=kubernetes://llm"], "--peer-token-file"),
        (["--peer=10.0.0.1:9004"], "--peer-token-file"),
        (["--peers=file:///x", "--peer=127.0.0.1:1"], "exclude each other"),
        (["--peers=nonsense://"], "--peers: 'nonsense://' is not a discovery URL"),
        (["--peers=file:///x", "--peer-token-file=/nowhere"], "/nowhere"),
    ],
)
async def test_flags_that_would_speak_to_strangers_stop_the_start(given: list[str], named: str) -> None:
    async with epp_program(*LOCAL, "--endpoint=127.0.0.1:1", *given) as process:
        _, errors = await process.communicate()
        assert process.returncode == 2
        assert named in errors.decode().splitlines()[-1]


async def test_a_short_token_is_refused(tmp_path: Path) -> None:
    (token := tmp_path / "token").write_text("password")
    with contextlib.suppress(ProcessLookupError):
        async with epp_program(
            *LOCAL, "--endpoint=127.0.0.1:1", "--peers=file:///x", f"--peer-token-file={token}"
        ) as process:
            _, errors = await process.communicate()
            assert process.returncode == 2
            assert "has 8 characters" in errors.decode()


async def test_the_end_of_a_request_may_be_heard_by_another_picker(root: Path, messages: Any) -> None:
    """An Envoy sends its access log to one picker, whichever picked."""
    async with workers(2) as ports, picker_programs(2, ports, flags(root)) as (one, other):
        await eventually(tells(other, 0))
        await eventually(tells(one, 0))
        name = (await other.page("status"))["peers"]["name"]
        async with aio.insecure_channel(other.address) as channel, aio.insecure_channel(one.address) as log:
            stream: Any = channel.stream_stream(f"/{EXT_PROC}/Process")(
                metadata=(("x-adsum-outcomes", "access-log"),)
            )
            await stream.write(messages.headers().SerializeToString())
            await stream.write(messages.body(BODY, end_of_stream=True).SerializeToString())
            found = re.search(f"{name}[0-9a-f]{{12}}".encode(), await stream.read())
            assert found is not None
            stream.cancel()
            await eventually(tells(one, 1))
            entries: Any = log.stream_unary(f"/{ACCESS_LOG}/StreamAccessLogs")()
            await entries.write(message(entry("f" * 28), entry(found[0].decode())))
            await eventually(tells(one, 0))
            assert await other.in_flight() == 0
