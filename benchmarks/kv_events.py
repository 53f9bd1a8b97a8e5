"""What it costs to follow KV events: processor time and lag at 100,000 blocks a second, memory, the longest turn; and whether it is right."""

import asyncio
import multiprocessing
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

from benchmarks.ports import free_ports
from benchmarks.process_usage import resident_megabytes
from epp.scheduling.kv_events.batches import BlocksStored, Steps
from epp.scheduling.kv_events.cache_index import CacheIndex
from epp.scheduling.kv_events.event_stream import KvEventStream

_WORKERS: Final = 10
_RATE: Final = 100_000
"""Blocks a second that are stored, of all workers; as many are removed."""
_BATCH: Final = 64
"""Blocks that one batch stores: a chunk of 1,024 tokens."""
_HELD: Final = 100
"""Chunks that a worker holds before it removes the oldest."""
_SECONDS: Final = 20.0
_TOKENS: Final = 16
_BATCHES: Final = 1_000_000
_PROMPTS: Final = 100_000


def _finish(steps: Generator[None, None, Any]) -> float:
    """Returns the longest processor time between two steps."""
    longest = 0.0
    while True:
        began = time.thread_time()
        try:
            next(steps)
        except StopIteration:
            return max(longest, time.thread_time() - began)
        longest = max(longest, time.thread_time() - began)


class _Timed(KvEventStream):
    """Notes how long after its publication a batch counts."""

    lags: list[float]

    def live(self, number: int, payload: bytes) -> Steps[None]:
        yield from super().live(number, payload)
        self.lags.append(time.time() - self._last_time)


def publish(ports: list[int]) -> None:
    """Of all workers, from a process of its own. Payloads are made before: only number and time are set."""
    import zmq

    from examples.simulator.kv_messages import removed, stored, vllm

    context, rng = zmq.Context(), random.Random(1)
    sockets = [context.socket(zmq.PUB) for _ in ports]
    for socket, port in zip(sockets, ports, strict=True):
        socket.bind(f"tcp://127.0.0.1:{port}")
    chunks = [
        ([rng.getrandbits(63) for _ in range(_BATCH)], [rng.getrandbits(17) for _ in range(_BATCH * _TOKENS)])
        for _ in range(2 * _HELD)
    ]
    payloads = [
        vllm(stored(list(names), tokens), removed(*chunks[at - _HELD][0]))
        for at, (names, tokens) in enumerate(chunks)
    ]
    began, sent = time.monotonic() + 1.0, 0
    while True:
        at, number = sent % len(ports), sent // len(ports)
        time.sleep(max(0.0, began + sent * _BATCH / _RATE - time.monotonic()))
        payload = payloads[number % len(payloads)]
        # an array's head, a float's, the time
        timed = payload[:2] + struct.pack(">d", time.time()) + payload[10:]
        sockets[at].send_multipart([b"", number.to_bytes(8, "big"), timed])
        sent += 1


async def _follow() -> None:
    import zmq.asyncio

    from epp.kv_events.publishers import publisher_at
    from epp.kv_events.subscriber import KvSubscriber

    ports, index, lags = free_ports(_WORKERS), CacheIndex(), list[float]()
    process = multiprocessing.get_context("spawn").Process(target=publish, args=(ports,), daemon=True)
    process.start()
    context, replays = zmq.asyncio.Context(), asyncio.Semaphore(8)
    streams, tasks = [], []

    async def ask(_: str) -> None:
        """There are no peers."""

    for port in ports:
        stream = _Timed(index, index.add_publisher(), can_replay=False)
        stream.lags = lags
        subscriber = KvSubscriber(context, publisher_at("127.0.0.1", port), stream, "w", replays, ask)
        streams.append(stream)
        tasks.append(asyncio.create_task(subscriber.run()))
    await asyncio.sleep(8.0)  # the caches are full
    lags.clear()
    began, used, blocks = time.monotonic(), time.process_time(), sum(one.batches for one in streams)
    await asyncio.sleep(_SECONDS)
    elapsed, used = time.monotonic() - began, time.process_time() - used
    blocks = (sum(one.batches for one in streams) - blocks) * _BATCH
    lags.sort()
    p50, p99 = (lags[int(len(lags) * share)] * 1000 for share in (0.5, 0.99))
    print(
        f"{blocks / elapsed:,.0f} blocks/s of {_WORKERS} workers stored, and as many removed: {used / elapsed:.2f} of a processor, "
        f"{used / blocks * 1e6:.1f} µs a block; lag p50 {p50:.1f} ms, p99 {p99:.1f} ms; gaps {sum(one.gaps for one in streams)}",
        flush=True,
    )
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    process.terminate()
    process.join()
    context.destroy(linger=0)


def _memory(workers: int, blocks: int, *, alike: bool = True) -> None:
    """`alike`: workers name a block alike, as vLLM's with one PYTHONHASHSEED; else each has a name of its own for it."""
    index, rng = CacheIndex(), random.Random(1)
    before = resident_megabytes()
    holdings = [index.add_publisher() for _ in range(workers)]
    for _ in range(blocks // _BATCH):
        names = [rng.getrandbits(63) for _ in range(_BATCH)]
        tokens = [rng.getrandbits(17) for _ in range(_BATCH * _TOKENS)]
        for one in holdings:
            if not alike:
                names = [rng.getrandbits(63) for _ in range(_BATCH)]
            event = BlocksStored(("gpu", 0, "", ""), names, None, tokens, _TOKENS)
            _finish(index.apply(one, [event]))
    grown = resident_megabytes() - before
    print(
        f"{len(index):,} blocks, each held by {workers} workers that name it {'alike' if alike else 'each its own way'}: "
        f"{grown:.0f} MB, {grown * 1e6 / len(index):.0f} bytes a block",
        flush=True,
    )


def _longest_turn() -> None:
    from examples.simulator.kv_messages import removed, stored, vllm

    index, rng = CacheIndex(), random.Random(1)
    stream = KvEventStream(index, index.add_publisher(), can_replay=False)
    names = [rng.getrandbits(63) for _ in range(140_000)]
    tokens = [30_000 + rng.getrandbits(15) for _ in range(140_000 * _TOKENS)]
    for number, payload in enumerate((vllm(stored(list(names), tokens)), vllm(removed(*names)))):
        began = time.thread_time()
        longest = _finish(stream.live(number, payload))
        print(
            f"a batch of {len(payload):,} bytes: {time.thread_time() - began:.2f} s of processor time, "
            f"the longest turn {longest * 1000:.1f} ms",
            flush=True,
        )


def _clear() -> None:
    """What a worker of a million blocks takes from the loop when it begins anew; each block by a name of its own, in two tiers."""
    index, rng = CacheIndex(), random.Random(1)
    other, one = index.add_publisher(), index.add_publisher()
    for _ in range(1_000_000 // _BATCH):
        tokens = [rng.getrandbits(17) for _ in range(_BATCH * _TOKENS)]
        for holdings in (other, one):
            names = [rng.getrandbits(63) for _ in range(_BATCH)]
            stores = [
                BlocksStored((tier, 0, "", ""), names, None, tokens, _TOKENS) for tier in ("gpu", "host")
            ]
            _finish(index.apply(holdings, stores))
    began = time.thread_time()
    index.clear(one)
    cleared = time.thread_time()
    longest = _finish(index.apply(other, []))
    print(
        f"{len(index):,} blocks of a worker that begins anew: cleared in {(cleared - began) * 1000:.1f} ms of processor time, let go "
        f"in {time.thread_time() - cleared:.2f} s, the longest turn {longest * 1000:.1f} ms",
        flush=True,
    )


def _model() -> None:
    """What is believed beside what a worker holds."""
    from tests.epp.scheduling.kv_events.test_event_stream import storm

    for keeps, what in ((10_000, "a long replay"), (40, "a short one"), (0, "none")):
        seen = storm(1, keeps, _BATCHES // 3)
        said = ", ".join(f"{count:,} {known.value}" for known, count in seen.most_common())
        print(f"{_BATCHES // 3:,} batches, {what}: {said}; wrong never", flush=True)


def _prompts() -> None:
    """The keys that a prompt's tokens give beside those that the events of its worker give."""
    from tests.epp.kv_events.model_files import write_model
    from tests.epp.kv_events.test_tokenizer_files import compare_with_events

    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        began = time.monotonic()
        compared = compare_with_events(Path(folder), _PROMPTS)
    print(
        f"{_PROMPTS:,} prompts, chats and completions that grow, {compared.tokens:,} tokens, {compared.blocks:,} blocks of events: "
        f"{compared.wrong} differ; {time.monotonic() - began:.0f} s in all, "
        f"{compared.seconds / _PROMPTS * 1e6:.0f} µs of processor time for the tokens of a prompt",
        flush=True,
    )


_PARTS: Final[dict[str, Callable[[], None]]] = {
    "follow": lambda: asyncio.run(_follow()),
    "one": lambda: _memory(1, 1_000_000),
    "ten": lambda: _memory(10, 1_000_000),
    "hundred": lambda: _memory(100, 100_000),
    "own": lambda: _memory(10, 1_000_000, alike=False),
    "turn": _longest_turn,
    "clear": _clear,
    "model": _model,
    "prompts": _prompts,
}


async def main() -> None:
    """Prints the parts, each from a process of its own; some minutes."""
    for part in _PARTS:
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "benchmarks.kv_events", part)
        assert await process.wait() == 0


if __name__ == "__main__":
    _PARTS[sys.argv[1]]()
