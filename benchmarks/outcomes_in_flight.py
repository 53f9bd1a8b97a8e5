"""`python -m benchmarks.outcomes_in_flight`: what a picker that lets go knows of requests in flight, and what that takes.

Workers and clients are in this process, so one clock says what is in flight; an Envoy and pickers are processes. `memory`: of picker
and Envoy with many answers under way, by both ways to hear of their ends. `truth`: how old is what the picker says is in
flight, with clients that wait and with clients that leave. `restart`: what a picker that starts again does not know.
"""

import argparse
import asyncio
import contextlib
import functools
import json
import random
import re
import resource
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from benchmarks.envoy_process import envoy
from benchmarks.metrics_pages import page
from benchmarks.process_usage import percentile, processor_seconds, resident_megabytes
from epp.envoy.config import render
from epp.envoy.json_values import Address
from epp.envoy.settings import EnvoySettings
from tests.epp.picker_programs import PickerProgram, picker_programs
from tests.eventually import eventually

_LOCAL: Final = "127.0.0.1"
_WORKERS: Final = 3
_PAGE: Final = page(1000)
_PROMPT: Final = "x" * 950
"""Some 1 KiB in all."""
_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_PIECE: Final = b"8\r\ndata: x\n\r\n"
_END: Final = b"0\r\n\r\n"
_WAYS: Final = {
    "ext-proc, with trailers": EnvoySettings(outcomes="ext-proc", response_trailer="SEND"),
    "access-log": EnvoySettings(outcomes="access-log"),
}
_OPENED_AT_ONCE: Final = 50
_HELD: Final = 10.0
"""Seconds in which answers are under way and nothing else happens."""
_LONGEST: Final = 600.0
_TOLD: Final = 0.06
"""Seconds: what the picker says shall be no older."""
_STEP: Final = 0.005
_OLDEST: Final = 10.0


@dataclass(slots=True)
class Worker:
    """Answers with pieces of a stream. `spans`: when each request came and ended."""

    port: int = 0
    spans: list[list[float]] = field(default_factory=list)
    in_flight: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"POST "):
                    await self._answer(await _body(head, reader), reader, writer)
                else:
                    found = _PAGE if head.startswith(b"GET /metrics ") else b""
                    status = b"200 OK" if found else b"404 Not Found"
                    writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(found), found))
        writer.close()

    async def _answer(self, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(body)
        loop = asyncio.get_running_loop()
        span = [loop.time(), float("inf")]
        self.spans.append(span)
        self.in_flight += 1
        try:
            if asked["stream"]:
                writer.write(_HEAD + _PIECE)
            try:
                async with asyncio.timeout(asked["seconds"]):
                    await reader.readexactly(1)  # ends if Envoy closes, as the client left
            except TimeoutError:
                writer.write(_END if asked["stream"] else _HEAD + _PIECE + _END)
        finally:
            span[1] = loop.time()
            self.in_flight -= 1


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    length = re.search(rb"(?i)content-length: (\d+)", head)
    if length is not None:
        return await reader.readexactly(int(length[1]))
    body = b""
    while size := int((await reader.readline()).strip(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return body


@contextlib.asynccontextmanager
async def workers() -> AsyncIterator[list[Worker]]:
    async with contextlib.AsyncExitStack() as stack:
        found = [Worker() for _ in range(_WORKERS)]
        for worker in found:
            server = await asyncio.start_server(worker.serve, _LOCAL, 0, backlog=4096)
            stack.callback(server.close)
            worker.port = server.sockets[0].getsockname()[1]
        yield found


@dataclass(frozen=True, slots=True)
class Stage:
    workers: list[Worker]
    pickers: list[PickerProgram]
    envoy: int
    port: int

    async def ask(self, seconds: float, *, stream: bool = True, leaves_after: float | None = None) -> bool:
        """Whether the answer came whole."""
        body = {"model": "m", "prompt": _PROMPT, "stream": stream, "seconds": seconds}
        said = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection(_LOCAL, self.port)
        head = f"POST /v1/completions HTTP/1.1\r\nhost: g\r\nconnection: close\r\ncontent-length: {len(said)}\r\n\r\n"
        writer.write(head.encode() + said)
        try:
            async with asyncio.timeout(leaves_after):
                return (await reader.read()).endswith(_END)
        except TimeoutError:
            return False
        finally:
            writer.close()

    @property
    def in_flight(self) -> int:
        return sum(worker.in_flight for worker in self.workers)


@contextlib.asynccontextmanager
async def staged(settings: EnvoySettings, pickers: int = 1, most: int = 1000) -> AsyncIterator[Stage]:
    async with workers() as answering, picker_programs(pickers, [one.port for one in answering]) as asked:
        given = EnvoySettings(
            listen=Address(_LOCAL, 0), admin=Address(_LOCAL, 0), secure=False, access_log="",
            pickers=[Address.parse(one.address) for one in asked], max_connections=most + 100,
            outcomes=settings.outcomes, response_trailer=settings.response_trailer,
        )  # fmt: skip
        async with envoy(render(given)) as (pid, port):
            yield Stage(answering, asked, pid, port)


async def memory(count: int) -> None:
    for way, settings in _WAYS.items():
        async with staged(settings, most=count) as stage:
            [picker] = stage.pickers
            assert picker.process is not None
            pids = picker.process.pid, stage.envoy
            await asyncio.gather(*[stage.ask(0.0) for _ in range(100)])
            before = [resident_megabytes(pid) for pid in pids]
            opening = asyncio.Semaphore(_OPENED_AT_ONCE)
            async with asyncio.TaskGroup() as group:
                asking = [group.create_task(_held(stage, opening)) for _ in range(count)]
                await eventually(lambda: stage.in_flight >= count, _LONGEST)
                used = [processor_seconds(pid) for pid in pids]
                await asyncio.sleep(_HELD)
                held = [processor_seconds(pid) - one for pid, one in zip(pids, used, strict=True)]
                after = [resident_megabytes(pid) for pid in pids]
                known = await picker.in_flight()
                for one in asking:
                    one.cancel()
            said = [
                f"{name} {first:.0f} MB, then {last:.0f} ({(last - first) * 1e3 / count:.1f} KB each), {100 * cores / _HELD:.1f} % of a core"
                for name, first, last, cores in zip(("picker", "Envoy"), before, after, held, strict=True)
            ]
            print(
                f"{way}, {count} answers under way, {known:.0f} of them known: {'; '.join(said)}", flush=True
            )


async def _held(stage: Stage, opening: asyncio.Semaphore) -> None:
    """Some at once: nobody asks for 10,000 answers in one moment."""
    async with opening:
        asking = asyncio.ensure_future(stage.ask(3600.0))
        await asyncio.sleep(0.1)
    try:
        await asking
    finally:
        asking.cancel()


async def truth(seconds: float, rate: float) -> None:
    for leaving in (0.0, 1.0):
        chance = random.Random(27)
        async with staged(_WAYS["access-log"]) as stage, asyncio.TaskGroup() as group:
            loop, [picker] = asyncio.get_running_loop(), stage.pickers
            reading = group.create_task(_samples(stage, seconds))
            ends = loop.time() + seconds
            while loop.time() < ends:
                takes = chance.uniform(0.05, 2.0)
                leaves = chance.uniform(0.02, takes) if chance.random() < leaving else None
                group.create_task(stage.ask(takes, stream=chance.random() < 0.5, leaves_after=leaves))
                await asyncio.sleep(1 / rate)
            samples = await reading
            await eventually(lambda: not stage.in_flight)
            ended = loop.time()
            await eventually(functools.partial(_idle, picker))
            idle = loop.time() - ended
            lost = (await picker.page("status"))["outcomes"]["lost"]
        ages = [
            _age(worker.spans, count, first, last)
            for first, last, counts in samples
            for worker, count in zip(stage.workers, counts, strict=True)
        ]
        print(
            f"{'each client leaves' if leaving else 'clients wait'}, {len(ages)} numbers in flight read: "
            f"{100 * sum(age == 0 for age in ages) / len(ages):.1f} % true, "
            f"{100 * sum(age <= _TOLD for age in ages) / len(ages):.1f} % at most {_TOLD * 1e3:.0f} ms old, "
            f"99 % {percentile(ages, 0.99) * 1e3:.0f}, all {max(ages) * 1e3:.0f} ms; none in flight {idle * 1e3:.0f} ms after the last, "
            f"{lost} lost",
            flush=True,
        )


async def _samples(stage: Stage, seconds: float) -> list[tuple[float, float, list[int]]]:
    """When each was asked for and had come, and what the picker said of each worker."""
    loop, found = asyncio.get_running_loop(), []
    ends = loop.time() + seconds
    async with aiohttp.ClientSession() as session:
        while loop.time() < ends:
            asked = loop.time()
            async with session.get(stage.pickers[0].metrics) as answer:
                text = await answer.text()
            counts = dict(
                re.findall(
                    r"(?m)^llm_d_epp_per_endpoint_inflight_requests\{[^\n]*?-(\d+)\"[^\n]*\} (\S+)$", text
                )
            )
            said = [int(float(counts.get(str(worker.port), 0))) for worker in stage.workers]
            found.append((asked, loop.time(), said))
            await asyncio.sleep(0.02)
    return found


def _age(spans: Sequence[Sequence[float]], count: int, first: float, last: float) -> float:
    """Seconds by which the news of each request must be late, or early, for the number that was said from `first` to `last`."""
    age = 0.0
    while True:
        sure = sum(began < first - age and ended > last + age for began, ended in spans)
        possible = sum(began <= last + age and ended >= first - age for began, ended in spans)
        if sure <= count <= possible or age > _OLDEST:
            return age
        age += _STEP


async def _idle(picker: PickerProgram) -> bool:
    return not await picker.in_flight()


async def restart(count: int) -> None:
    async with staged(_WAYS["access-log"], pickers=2) as stage:
        asking = [asyncio.ensure_future(stage.ask(20.0, stream=at % 2 == 0)) for at in range(count)]
        await eventually(lambda: stage.in_flight == count)
        known = [await one.in_flight() for one in stage.pickers]
        first = stage.pickers[0]
        await first.stop()
        await first.start()
        again, truth_then = await first.in_flight(), stage.in_flight
        whole = sum(await asyncio.gather(*asking))
        await eventually(functools.partial(_idle, stage.pickers[1]))
        # it counts entries once it has picked
        assert all([await stage.ask(0.0) for _ in range(4)])
        async with aiohttp.ClientSession() as session, session.get(first.metrics) as answer:
            entries = dict(re.findall(r"_outcome_entries_total\{told=\"(.*)\"\} (\S+)", await answer.text()))
        print(
            f"restart of one of two pickers with {count} under way ({known} known): after it {again:.0f} known to it of {truth_then} in "
            f"flight; {whole} answers came whole; entries that it heard afterwards: {entries}"
        )


async def main(parts: Sequence[str], count: int) -> None:
    found = {
        "memory": functools.partial(memory, count),
        "truth": functools.partial(truth, 20.0, 40.0),
        "restart": functools.partial(restart, 200),
    }
    for name in parts or found:
        await found[name]()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outcomes_in_flight", description=__doc__)
    parser.add_argument("part", nargs="*", help="memory, truth, restart; by default all")
    parser.add_argument("--answers", type=int, default=10_000, help="under way, for the memory")
    given = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # each is two connections of Envoy, and two of this process
    asyncio.run(main(given.part, min(given.answers, most // 2 - 100)))
