"""`python -m benchmarks prefill-faults`: what fails when a prefill worker is killed, frozen or drained under load, in real time.

The demo's parts: two workers that decode, each behind our sidecar, two that compute prompts, a picker without a file, a real Envoy.
"""

import asyncio
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from examples.demo.cluster import MODEL, MoreFlags
from examples.demo.disaggregated import NEW_WORDS, PairsCluster
from examples.demo.load import Exchange, LoadGenerator

_BEFORE: Final = 6.0
_AFTER: Final = 14.0
_FROZEN: Final = 8.0
_USERS: Final = 12
_VICTIM: Final = "prefill-1"
_FAULTS: Final[Mapping[str, signal.Signals]] = {
    "killed (SIGKILL)": signal.SIGKILL, "frozen for 8 s (SIGSTOP)": signal.SIGSTOP, "drained (SIGTERM)": signal.SIGTERM
}  # fmt: skip


async def main() -> None:
    """Prints a row for each fault, and for both of vLLM's `kv_load_failure_policy`."""
    print(
        "| prefill worker | KV cache that cannot be fetched | requests | failed | of these, had begun | TTFT p50 before | p50 after | p99 after |"
    )
    print("|---" * 8 + "|")
    for policy in ("recompute", "fail"):
        for fault in _FAULTS:
            exchanges, at = await _run(policy, fault)
            print(f"| {fault} | {policy} | {_row(exchanges, at)} |", flush=True)
            for cause, count in Counter(one.failure for one in exchanges if one.failure).items():
                print(f"<!-- {count}: {cause} -->")


async def _run(policy: str, fault: str) -> tuple[Sequence[Exchange], float]:
    """All requests, and when the fault was."""
    flags = MoreFlags(simulator=("--kv-load-failure-policy", policy, "--transfer-seconds", "0.3"))
    with tempfile.TemporaryDirectory(prefix="adsum-faults-") as root:
        async with PairsCluster(Path(root), flags=flags) as cluster:
            async with LoadGenerator(cluster.url, MODEL, _USERS, new_words=NEW_WORDS) as load:
                await asyncio.sleep(_BEFORE)
                at = time.monotonic()
                cluster.workers[_VICTIM].send(_FAULTS[fault])
                if _FAULTS[fault] is signal.SIGSTOP:
                    await asyncio.sleep(_FROZEN)
                    cluster.workers[_VICTIM].send(signal.SIGCONT)
                await asyncio.sleep(at + _AFTER - time.monotonic())
                await load.stop()
            return list(load.exchanges), at


def _row(exchanges: Sequence[Exchange], at: float) -> str:
    failed = [one for one in exchanges if one.failure]
    begun = sum(one.first_token is not None for one in failed)
    before, after = list[float](), list[float]()
    for one in exchanges:
        if one.first_token is not None:
            (after if one.started > at - 1.0 else before).append(one.first_token - one.started)
    times = (statistics.median(before), statistics.median(after), statistics.quantiles(after, n=100)[98])
    return " | ".join([str(len(exchanges)), str(len(failed)), str(begun), *(f"{one:.2f} s" for one in times)])
