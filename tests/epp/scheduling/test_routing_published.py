"""Virtual time gives the order of policies that was measured on real machines, before anything is claimed from it.

llm-d, "KV-Cache Wins You Can See" (2025-09-24): 16 H100, Qwen-32B, many customers with a context each. TTFT mean: exact prefixes
0.298 s, approximate ones 13.3 s, by load only 47.0 s, random 45.3 s; output tokens a second: 8730, 6944, 4429, 4429.
"""

import functools
from collections.abc import Mapping
from dataclasses import replace

from benchmarks.routing.arms import chooser
from benchmarks.routing.figures import Figures, median
from benchmarks.routing.virtual import Run
from benchmarks.routing.workloads import WORKLOADS

RANDOM, LOAD, APPROXIMATE = "random", "load only", "the Go picker's weights"
STICKY, EXACT = "the Go picker, sticky", "exact prefixes"


@functools.cache
def found() -> Mapping[str, Figures]:
    runs: dict[str, list[Figures]] = {}
    for seed in range(2):
        turns = WORKLOADS["llm-d's tenants"].turns(seed)
        workload = replace(WORKLOADS["llm-d's tenants"], turns=lambda _, turns=turns: turns)
        for way in (RANDOM, LOAD, APPROXIMATE, STICKY, EXACT):
            runs.setdefault(way, []).append(Run(chooser(way), workload, seed).figures())
    return {way: median(figures) for way, figures in runs.items()}


def test_load_alone_is_hardly_better_than_chance() -> None:
    assert 0.7 * found()[RANDOM].ttft < found()[LOAD].ttft <= found()[RANDOM].ttft
    assert found()[LOAD].tokens_per_second < 1.2 * found()[RANDOM].tokens_per_second


def test_approximate_prefixes_are_several_times_better() -> None:
    assert found()[APPROXIMATE].ttft < found()[LOAD].ttft / 3
    assert found()[APPROXIMATE].tokens_per_second > 1.4 * found()[LOAD].tokens_per_second


def test_sticky_and_exact_prefixes_are_better_still() -> None:
    assert max(found()[STICKY].ttft, found()[EXACT].ttft) < 0.95 * found()[APPROXIMATE].ttft
    fewest = min(found()[STICKY].hits, found()[EXACT].hits)
    assert fewest > found()[APPROXIMATE].hits > 2 * found()[LOAD].hits
