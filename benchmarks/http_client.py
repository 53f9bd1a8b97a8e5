"""Measures what a POST costs over the dispatcher's gateway client and over aiohttp's session, in turn, on the same work.

`python -m benchmarks.http_client`. The target runs in its own process on the other core and answers at once.
"""

import argparse
import asyncio
import datetime
import gc
import os
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import aiohttp

from benchmarks.process_usage import percentile
from dispatcher.delivery.gateway import Gateway, GatewayAnswer
from epp.wire.certificate import KeyPair, self_signed

PATH = "/v1/chat/completions"
HEADERS = {
    "content-type": "application/json",
    "x-request-id": "0b0c3e2a-6f0e-4c0a-9f52-8d2f1d8f6f00",
    "x-envoy-upstream-rq-timeout-ms": "60000",
}
PAYLOAD = b'{"model": "m", "prompt": "' + b"x" * 2000 + b'"}'
ROUNDS = 5
REQUESTS = {1: 400, 32: 1200, 256: 1536}
"""Requests of one turn, by the number in flight."""
SIZES = (300, 64 * 1024)
"""Bytes of an answer's body."""

Post: TypeAlias = Callable[[], Awaitable[int]]
"""Returns the status after the whole response was read."""


@dataclass(frozen=True, slots=True)
class Turn:
    """`cost` in microseconds of processor time, the others in milliseconds, for one request."""

    cost: float
    p50: float
    p99: float


async def main(rounds: int = ROUNDS) -> None:
    cores = sorted(os.sched_getaffinity(0))
    pair = self_signed(datetime.datetime.now(datetime.UTC))
    print(f"median of {rounds} turns; cores {cores[0]} | {cores[-1]}")
    for tls in (None, pair):
        for size in SIZES:
            async with _target(size, tls, cores[-1]) as port:
                os.sched_setaffinity(0, {cores[0]})
                url = f"http{'' if tls is None else 's'}://127.0.0.1:{port}"
                trusted = None if tls is None else _trusting(tls)
                async with Gateway(url, tls=trusted) as gateway, _session(trusted) as session:
                    posts = {"gateway": _over_gateway(gateway), "session": _over_session(session, url + PATH)}
                    for in_flight, count in REQUESTS.items():
                        turns = await _measure(posts, in_flight, count, rounds)
                        _print(f"{url.partition(':')[0]}, {size} bytes, {in_flight} in flight", turns)
                os.sched_setaffinity(0, cores)


async def _measure(posts: dict[str, Post], in_flight: int, count: int, rounds: int) -> dict[str, list[Turn]]:
    turns: dict[str, list[Turn]] = {name: [] for name in posts}
    for post in posts.values():
        await _take_turn(post, in_flight, in_flight)  # connects
    for number in range(rounds):
        names = list(posts) if number % 2 == 0 else list(posts)[::-1]
        for name in names:
            gc.collect()
            turns[name].append(await _take_turn(posts[name], in_flight, count))
    return turns


async def _take_turn(post: Post, in_flight: int, count: int) -> Turn:
    took: list[float] = []
    numbers = iter(range(count))

    async def ask() -> None:
        for _ in numbers:
            begun = time.perf_counter()
            assert await post() == 200
            took.append((time.perf_counter() - begun) * 1000)

    busy = time.process_time()
    await asyncio.gather(*(ask() for _ in range(in_flight)))
    busy = time.process_time() - busy
    return Turn(busy / count * 1e6, percentile(took, 0.5), percentile(took, 0.99))


def _print(what: str, turns: dict[str, list[Turn]]) -> None:
    figures = []
    for name, taken in turns.items():
        cost, p50, p99 = (
            statistics.median(getattr(turn, field) for turn in taken) for field in ("cost", "p50", "p99")
        )
        figures.append(f"{name} {cost:.0f} us, p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    ratios = (ours.cost / theirs.cost for ours, theirs in zip(*turns.values(), strict=True))
    print(f"{what}: {'; '.join(figures)}; cost x{statistics.median(ratios):.2f}", flush=True)


def _over_gateway(gateway: Gateway) -> Post:
    async def post() -> int:
        answer = await gateway.post(PATH, HEADERS, PAYLOAD, 60)
        assert isinstance(answer, GatewayAnswer), answer
        return answer.status

    return post


def _session(trusted: ssl.SSLContext | None) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=trusted or True),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
        timeout=aiohttp.ClientTimeout(total=60, sock_connect=10),
    )


def _over_session(session: aiohttp.ClientSession, url: str) -> Post:
    async def post() -> int:
        async with session.post(url, data=PAYLOAD, headers=HEADERS, allow_redirects=False) as answer:
            await answer.read()
            return answer.status

    return post


def _trusting(pair: KeyPair) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=pair.certificate.decode())
    context.check_hostname = False  # it names no address
    return context


@asynccontextmanager
async def _target(size: int, tls: KeyPair | None, core: int) -> AsyncIterator[int]:
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--size", str(size)]
        if tls is not None:
            Path(folder, "tls.crt").write_bytes(tls.certificate)  # noqa: ASYNC240  # before anything is measured
            Path(folder, "tls.key").write_bytes(tls.key)  # noqa: ASYNC240
            arguments += ["--cert-path", folder]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.noop_gateway", *arguments, stdout=asyncio.subprocess.PIPE
        )
        try:
            os.sched_setaffinity(process.pid, {core})
            assert process.stdout is not None
            yield int(await process.stdout.readline())
        finally:
            process.terminate()
            await process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http_client", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asyncio.run(main(parser.parse_args().rounds))
