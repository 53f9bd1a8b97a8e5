"""What a request costs through the sidecar of a decode worker, and through llm-d's, in turn on the same work.

`python -m benchmarks.pd_sidecar [--go-sidecar FILE]`. The workers are one process, which does as little as it can; each event
of a stream has the time at which it was written, on the clock that all processes of a machine share.
"""

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.ports import free_ports
from benchmarks.process_usage import percentile, processor_seconds

ROOT: Final = Path(__file__).parents[1]
EVENTS: Final = 200
GAP: Final = 0.005
"""Seconds between two events of a stream."""
ROUNDS: Final = 5
WHOLE: Final = (8, 50)
"""Connections, and requests one after the other on each."""
STREAMED: Final = (16, 1)
_STAMP: Final = re.compile(rb'"at":([0-9]{1,20})')
_PROMPT: Final = "x" * 2000
_TRANSFER: Final = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "e",
    "remote_block_ids": [list(range(125))],
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
}


@dataclass
class Turn:
    """Of one turn, in seconds: of whole answers, of first bytes, of each event since it was written."""

    requests: int = 0
    whole: list[float] = field(default_factory=list)
    events: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Way:
    """How requests get to the decode worker; `pid` None: directly."""

    name: str
    port: int
    pid: int | None


async def main(go_sidecar: Path | None, rounds: int) -> None:
    async with AsyncExitStack() as stack:
        prefill, decode = await stack.enter_async_context(_workers())
        ways = [Way("no sidecar", decode, None)]
        ours = [sys.executable, "-m", "registry", "pd-sidecar", "--address", "127.0.0.1"]
        ways.append(await stack.enter_async_context(_sidecar("adsum", ours, decode)))
        if go_sidecar is not None:
            go = [str(go_sidecar), "--secure-proxy=false", "--zap-log-level=error"]
            ways.append(await stack.enter_async_context(_sidecar("llm-d", go, decode)))
        print(
            f"median of {rounds} turns; {EVENTS} events, {GAP * 1000:g} ms apart; prompt of {len(_PROMPT)} bytes"
        )
        for two_legs in (False, True):
            for stream in (False, True):
                header = f"x-prefiller-host-port: 127.0.0.1:{prefill}\r\n" if two_legs else ""
                await _compare(ways, header, rounds, stream=stream)


async def _compare(ways: Sequence[Way], header: str, rounds: int, *, stream: bool) -> None:
    kind = f"{'two legs' if header else 'passed on'}, {'streamed' if stream else 'whole'}"
    print(f"\n{kind:22} {'CPU/request':>12} {'answer p50':>11} {'p99':>9} {'event p50':>10} {'p99':>9}")
    turns: dict[str, list[tuple[float, ...]]] = {way.name: [] for way in ways}
    for number in range(rounds + 1):  # the first one warms up
        for way in ways:
            before = processor_seconds(way.pid) if way.pid else 0.0
            turn = await _turn(way.port, header if way.pid else "", stream=stream)
            cost = (processor_seconds(way.pid) - before) / turn.requests if way.pid else 0.0
            if number:
                waits = [*_quantiles(turn.whole), *_quantiles(turn.events)]
                turns[way.name].append((cost, *waits))
    for name, found in turns.items():
        cost, *waits = (statistics.median(column) for column in zip(*found, strict=True))
        shown = f"{cost * 1e6:9.0f} µs" if cost else f"{'':>12}"
        columns = "".join(f"{wait * 1000:>8.2f} ms" if wait else "" for wait in waits)
        print(f"{name:22} {shown} {columns}")


def _quantiles(values: list[float]) -> tuple[float, float]:
    return (percentile(values, 0.5), percentile(values, 0.99)) if values else (0.0, 0.0)


async def _turn(port: int, header: str, *, stream: bool) -> Turn:
    body = json.dumps({"model": "m", "prompt": _PROMPT, "max_tokens": EVENTS, "stream": stream})
    request = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{header}"
        f"content-length: {len(body)}\r\n\r\n{body}"
    ).encode()
    connections, each = STREAMED if stream else WHOLE
    turn = Turn(connections * each)
    await asyncio.gather(*(_ask(port, request, each, turn) for _ in range(connections)))
    return turn


async def _ask(port: int, request: bytes, times: int, turn: Turn) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(times):
        began = time.monotonic_ns()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = re.search(rb"(?i)content-length: *([0-9]+)", head)
        if length is not None:
            await reader.readexactly(int(length[1]))
        else:
            await _read_events(reader, turn)
        turn.whole.append((time.monotonic_ns() - began) / 1e9)
    writer.close()


async def _read_events(reader: asyncio.StreamReader, turn: Turn) -> None:
    received = b""
    while not received.endswith(b"\r\n0\r\n\r\n"):
        data = await reader.read(65536)
        assert data, "the stream broke off"
        now = time.monotonic_ns()
        turn.events += [(now - int(found)) / 1e9 for found in _STAMP.findall(data)]
        received = received[-16:] + data


@asynccontextmanager
async def _sidecar(name: str, command: Sequence[str], decode: int) -> AsyncIterator[Way]:
    [port] = free_ports(1)
    arguments = [f"--port={port}", f"--model-server-port={decode}", "--kv-connector=nixlv2"]
    process = await asyncio.create_subprocess_exec(
        *command, *arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT
    )
    try:
        for _ in range(600):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                break
        yield Way(name, port, process.pid)
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def _workers() -> AsyncIterator[tuple[int, int]]:
    """The ports of the prefill and of the decode worker."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.pd_sidecar", "--workers", stdout=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    try:
        prefill, decode = (await process.stdout.readline()).split()
        yield int(prefill), int(decode)
    finally:
        process.kill()
        await process.wait()


class _Worker(asyncio.Protocol):
    """Answers each request at once, or with a stream; both workers are alike."""

    def __init__(self) -> None:
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *([0-9]+)", head)
        if not end or (length is not None and len(body) < int(length[1])):
            return
        self._received = b""
        if re.search(rb'"stream": ?true', body):
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            self._event(0)
            return
        answer = {
            "id": "x",
            "choices": [{"text": "y" * 200, "finish_reason": "length"}],
            "usage": {"prompt_tokens": 500},
        }
        if re.search(rb'"do_remote_decode": ?true', body):
            answer["kv_transfer_params"] = _TRANSFER
        text = json.dumps(answer).encode()
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
            % (len(text), text)
        )

    def _event(self, number: int) -> None:
        if self._transport.is_closing():
            return
        if number == EVENTS:
            self._transport.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
            return
        event = b'data: {"id":"x","at":%d,"choices":[{"text":" tok"}]}\n\n' % time.monotonic_ns()
        self._transport.write(b"%x\r\n%s\r\n" % (len(event), event))
        asyncio.get_running_loop().call_later(GAP, self._event, number + 1)


async def _serve_workers() -> None:
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(_Worker, "127.0.0.1", 0) for _ in range(2)]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pd_sidecar", description=__doc__)
    parser.add_argument(
        "--go-sidecar", type=Path, metavar="FILE", help="llm-d's pd-sidecar, built from source"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--workers", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    asyncio.run(_serve_workers() if options.workers else main(options.go_sidecar, options.rounds))
