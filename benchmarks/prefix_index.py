"""What the prefix index remembers of the workers' caches, the memory it takes, and what it costs a pick."""

import asyncio
import gc
import itertools
import random
import sys
import time
from typing import Final

from benchmarks.process_usage import resident_megabytes
from epp.scheduling.prefix.index import Key, PrefixIndex
from epp.scheduling.prefix.producer import BlockEnds, PrefixCacheProducer

CACHE_TOKENS: Final = 1_000_000
"""Of each worker."""
_MAX_BYTES: Final = 1024 * 1024 * 1024
_PICKS: Final = 5000


class Filled:
    """An index after each worker was sent what its cache holds, and half of that again; prompts have nothing in common."""

    def __init__(self, workers: int, prompt_tokens: int, max_bytes: int = _MAX_BYTES) -> None:
        producer = PrefixCacheProducer()
        table = BlockEnds(producer.grain)
        self.size = table.count(prompt_tokens // producer.block_tokens)
        self.ends = table.ends
        self.index = PrefixIndex(max_bytes)
        self.keys: list[Key] = [(f"w{number}", "1") for number in range(workers)]
        self.capacity = CACHE_TOKENS // producer.block_tokens
        self.fits = CACHE_TOKENS // prompt_tokens
        """Prompts that a worker's cache holds."""
        self.rng = random.Random(1)
        self._sent: list[tuple[Key, int]] = []
        for _ in range(self.fits * 3 // 2):
            for key in self.keys:
                self._send(key)

    def _send(self, key: Key) -> None:
        first = self.rng.getrandbits(63)
        self._sent.append((key, first))
        self.index.record(self.chain(first), key, self.capacity, self.ends)

    def chain(self, first: int) -> range:
        return range(first, first + self.size)

    def remembered(self) -> float:
        """The share of what the caches hold that the index knows."""
        cached = self._sent[-self.fits * len(self.keys) :]
        whole = [self.index.held(self.chain(first), key) == self.size for key, first in cached]
        return sum(whole) / len(whole)

    def pick_seconds(self) -> float:
        """Processor time of one pick: find who holds the prompt, claim it for a worker, confirm the claim. Half are new."""
        spent = 0.0
        for number in range(_PICKS):
            key, first = (
                self.rng.choice(self._sent) if number % 2 else (self.keys[0], self.rng.getrandbits(63))
            )
            chain = self.chain(first)
            began = time.thread_time()
            self.index.match(chain, ())
            claim = self.index.claim(chain, key, self.capacity, self.ends)
            self.index.confirm(chain, key, claim, self.capacity, self.ends)
            spent += time.thread_time() - began
        return spent / _PICKS


def measure(workers: int, prompt_tokens: int) -> None:
    gc.collect()
    before = resident_megabytes()
    filled = Filled(workers, prompt_tokens)
    index = filled.index
    blocks, grown = len(index), resident_megabytes() - before - sys.getsizeof(filled._sent) / 1e6
    remembered, seconds = filled.remembered(), filled.pick_seconds()
    print(
        f"{workers} workers with caches of a million tokens, prompts of {prompt_tokens}: {remembered:.0%} remembered, "
        f"{blocks:,} blocks, {index.used_bytes / blocks:.1f} bytes each ({grown * 1e6 / blocks:.1f} of the process), "
        f"{seconds * 1e6:.1f} µs a pick",
        flush=True,
    )


async def main() -> None:
    """Prints a line for each pool, each from a process of its own; some minutes."""
    for workers, tokens in itertools.product((4, 100, 1000), (1000, 4000, 16_000)):
        arguments = ("-m", "benchmarks.prefix_index", str(workers), str(tokens))
        process = await asyncio.create_subprocess_exec(sys.executable, *arguments)
        assert await process.wait() == 0


if __name__ == "__main__":
    measure(int(sys.argv[1]), int(sys.argv[2]))
