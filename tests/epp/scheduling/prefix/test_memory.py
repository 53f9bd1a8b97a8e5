"""The memory of the index at a hundredth of the pool that `python -m benchmarks prefixes` measures."""

import tracemalloc

import pytest

from benchmarks.prefix_index import Filled

WORKERS = 10


@pytest.mark.parametrize(("workers_in_all", "least"), [(1000, 0.6), (100, 0.95)])
def test_it_remembers_what_caches_of_a_million_tokens_hold_in_a_gibibyte(
    workers_in_all: int, least: float
) -> None:
    filled = Filled(WORKERS, 1000, 1024**3 * WORKERS // workers_in_all)
    assert filled.remembered() >= least
    assert filled.index.used_bytes <= filled.index.max_bytes


@pytest.mark.parametrize("prompt_tokens", [256, 1000])
def test_it_takes_the_memory_that_it_says(prompt_tokens: int) -> None:
    tracemalloc.start()
    try:
        filled = Filled(1, prompt_tokens)
        traced, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert filled.index.used_bytes / 2 < traced < filled.index.used_bytes * 1.1
