"""A picker of several processes, as clients see it: one picker. Real processes, which are killed and stopped."""

import asyncio
import contextlib
import json
import os
import re
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from grpc import aio

from epp.__main__ import main
from epp.config.sibling_processes import VARIABLE
from epp.serve.processes import private_folder
from tests.epp.epp_program import LOCAL, epp_program
from tests.epp.local_picker import stream_over
from tests.epp.peers.test_peers import BODY, workers
from tests.epp.picker_programs import PickerProgram, picker_programs
from tests.epp.web.test_picker_page import events
from tests.eventually import eventually
from tests.in_process import run_here


def processes(picker: PickerProgram) -> dict[int, int]:
    """The process ids by place."""
    assert picker.process is not None
    return processes_of(picker.process.pid)


def processes_of(parent: int) -> dict[int, int]:
    found = {}
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        with contextlib.suppress(OSError):
            said = re.search(rf"{VARIABLE}=\[(\d+)", Path(f"/proc/{child}/environ").read_text())
            if said is not None:
                found[int(said[1])] = int(child)
    return found


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


@asynccontextmanager
async def group(count: int, ports: list[int], *more: str) -> AsyncIterator[PickerProgram]:
    async with picker_programs(1, ports, [f"--processes={count}", *more]) as (picker,):
        await eventually(lambda: len(processes(picker)) == count)
        yield picker


async def open_stream(stack: AsyncExitStack, picker: PickerProgram, messages: Any) -> Any:
    """A request over a connection of its own, which was picked."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channel = await stack.enter_async_context(aio.insecure_channel(picker.address, options=options))
    stream = stream_over(channel)
    await stream.write(messages.headers())
    await stream.write(messages.body(BODY, end_of_stream=True))
    assert await stream.read() is not aio.EOF
    stack.callback(stream.cancel)
    return stream


async def spread_streams(
    stack: AsyncExitStack, picker: PickerProgram, messages: Any, count: int, at_others: list[int]
) -> tuple[list[Any], int]:
    """Requests that the processes share evenly, and how many were opened for that: who reports nothing for a second gets none,
    on a busy machine too."""
    for tried in range(1, 11):
        opened = await stack.enter_async_context(AsyncExitStack())
        streams = [await open_stream(opened, picker, messages) for _ in range(count)]
        with contextlib.suppress(AssertionError):
            await eventually(lambda: _is(of_peers(picker), at_others), within=5.0)
            return streams, count * tried
        await opened.aclose()
    raise AssertionError(f"{await of_peers(picker)} at the others, not {at_others}")


async def counted(picker: PickerProgram, name: str) -> float:
    async with aiohttp.ClientSession() as client, client.get(picker.metrics) as answer:
        page = await answer.text()
    return sum(map(float, re.findall(rf"(?m)^{name}(?:\{{.*\}})? (\S+)$", page)))


async def of_peers(picker: PickerProgram) -> list[int]:
    """What the other processes have in flight, as the one that answers knows it."""
    return sorted(peer["inflight"] for peer in (await picker.page("status"))["peers"]["connected"])


async def test_connections_are_spread_and_what_each_has_counts_for_all(messages: Any) -> None:
    async with workers(2) as ports, group(3, ports) as picker, AsyncExitStack() as stack:
        _, asked = await spread_streams(stack, picker, messages, 6, [2, 2])

        async def all_in_flight() -> bool:  # the page is cached for a moment
            return await picker.in_flight() == 6

        await eventually(all_in_flight)
        assert await counted(picker, "llm_d_epp_request_total") == asked
        endpoints = (await picker.page("debug/endpoints"))["endpoints"]
        assert sum(one["inflight"] for one in endpoints) == 6
        status = await picker.page("status")
        assert status["process"] in (1, 2, 3)
        assert status["processes"] == 3


async def test_a_process_that_is_killed_takes_its_own_streams_alone_and_is_started_again(
    messages: Any,
) -> None:
    async with workers(2) as ports, group(2, ports) as picker, AsyncExitStack() as stack:
        streams, asked = await spread_streams(stack, picker, messages, 4, [2])
        assert await counted(picker, "llm_d_epp_request_total") == asked
        before, killed = processes(picker), (await picker.page("status"))["process"]
        os.kill(before[killed], signal.SIGKILL)  # it serves the pages, too

        ended = [asyncio.create_task(stream.code()) for stream in streams]
        await eventually(lambda: sum(one.done() for one in ended) >= 2)
        await open_stream(stack, picker, messages)
        await eventually(lambda: processes(picker).get(killed, before[killed]) != before[killed])
        await eventually(lambda: _is(of_peers(picker), [0], or_error=True))
        assert sum(one.done() for one in ended) == 2, (
            f"the others go on: {[one.done() and one.result() for one in ended]}"
        )
        for one in ended:
            one.cancel()
        assert await counted(picker, "llm_d_epp_request_total") == asked + 1, "what it had counted stays"


async def test_one_that_stands_still_gets_no_connections_and_counts_no_more(messages: Any) -> None:
    async with workers(2) as ports, group(2, ports) as picker, AsyncExitStack() as stack:
        await spread_streams(stack, picker, messages, 2, [1])
        place = (await picker.page("status"))["process"]
        stopped = processes(picker)[place]
        os.kill(stopped, signal.SIGSTOP)
        try:

            async def noticed() -> bool:
                with contextlib.suppress(TimeoutError):  # the stopped one took the connection
                    async with asyncio.timeout(10):
                        status = await picker.page("status")
                        return status["process"] == 3 - place and status["peers"]["connected"] == []
                return False

            await eventually(noticed)
            for _ in range(3):
                await open_stream(stack, picker, messages)
            assert await noticed()
            await eventually(lambda: _missing(picker, place))
        finally:
            os.kill(stopped, signal.SIGCONT)
        await eventually(lambda: _is(of_peers(picker), [4]))  # the pages are those of the first again


async def shown(picker: PickerProgram, count: int) -> list[int]:
    """The sequences of the decisions on the page, once there are so many."""
    async with asyncio.timeout(60.0), events(picker.metrics.removesuffix("/metrics")) as told:
        async for topic, said in told:
            if topic == "decisions" and said["recorded"] == count:
                return [one["sequence"] for one in said["decisions"]]
    raise AssertionError("the stream ended")


async def test_a_decision_is_found_whoever_made_it_and_none_outlives_who_started_them(messages: Any) -> None:
    async with workers(2) as ports, group(2, ports) as picker, AsyncExitStack() as stack:
        for _ in range(4):
            await open_stream(stack, picker, messages)
        page = await picker.page("debug/decisions")
        sequences = [one["sequence"] for one in page["decisions"]]
        assert len(sequences) == 4
        assert sequences == sorted(set(sequences))
        after = await picker.page(f"debug/decisions?after={sequences[1]}&limit=1")
        assert [one["sequence"] for one in after["decisions"]] == sequences[2:3]
        assert page["last"] == sequences[-1]
        assert await shown(picker, 4) == sequences[::-1]
        there = processes(picker)
        picker.send(signal.SIGKILL)
        await eventually(lambda: not any(map(is_there, there.values())))


async def test_signals_are_for_all_of_them(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\n")
    async with (
        workers(1) as ports,
        epp_program(
            *LOCAL, "--processes=2", f"--endpoint=127.0.0.1:{ports[0]}", f"--config-file={config}"
        ) as picker,
    ):
        assert picker.stdout is not None
        assert (await picker.stdout.readline()).startswith(b"ready grpc=127.0.0.1:")
        there = processes_of(picker.pid)
        assert sorted(there) == [1, 2]
        picker.send_signal(signal.SIGHUP)
        await asyncio.sleep(0.5)
        assert processes_of(picker.pid) == there
        picker.send_signal(signal.SIGTERM)
        _, said = await picker.communicate()
        assert picker.returncode == 0
        assert said.count(b"draining: serving") == 2
        assert not any(map(is_there, there.values()))


def test_the_folder_of_one_that_was_killed_is_removed_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as short:  # a socket's path has little room
        monkeypatch.setattr(tempfile, "tempdir", short)
        shared = Path(short)
        with private_folder() as lives:
            (shared / "adsum-epp-starts").mkdir()
            (left := shared / "adsum-epp-left").mkdir()
            (left / "lock").touch()
            with private_folder() as other:
                assert {*shared.iterdir()} == {lives, other, shared / "adsum-epp-starts"}
            assert lives.is_dir()
        assert [one.name for one in shared.iterdir()] == ["adsum-epp-starts"]
        (of_another := shared / "adsum-epp-another").mkdir()
        os.mkfifo(of_another / "lock")  # opening it would wait for ever
        monkeypatch.setattr(os, "geteuid", lambda: -1)
        with private_folder():
            assert of_another.is_dir()


async def test_wrong_input_and_a_taken_port_are_said_as_by_one(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("kind: Nothing\n")
    async with epp_program(
        *LOCAL, "--processes=2", "--endpoint=127.0.0.1:9", f"--config-file={config}"
    ) as it:
        _, said = await it.communicate()
        assert it.returncode == 2
        assert b"error: " in said
    async with workers(1) as ports:
        taken = f"--grpc-port={ports[0]}"
        async with epp_program(*LOCAL, taken, "--processes=2", "--endpoint=127.0.0.1:9") as it:
            _, said = await it.communicate()
            assert it.returncode == 1
            assert b"(--grpc-port)" in said


def test_what_several_processes_cannot_do_is_refused() -> None:
    for given, why in (
        (["--processes=0"], "from 1 to 64"),
        (["--processes=2", "--transport=grpc"], "--transport http2"),
    ):
        said = run_here(main, *LOCAL, *given)
        assert said.returncode == 2
        assert why in said.stderr


async def _missing(picker: PickerProgram, place: int) -> bool:
    return list((await picker.page("status"))["peers"]["missing"]) == [f"process {place}"]


async def _is(found: Any, expected: list[int], *, or_error: bool = False) -> bool:
    try:
        return bool(await found == expected)
    except (aiohttp.ClientError, json.JSONDecodeError):
        if not or_error:
            raise
        return False
