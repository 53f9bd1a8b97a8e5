"""Requests that come before the first worker does: they wait for it, or for the end of their time."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.overload.arms import GO, OURS, Arm, arms, flow_control
from benchmarks.overload.client import Fate, Users
from benchmarks.overload.load import Arrival, Source
from benchmarks.overload.stage import Stage, stage, totals
from benchmarks.process_usage import percentile

REQUESTS: Final = 200
_SHORT: Final = Source("standard", "red", 1.0, 20, 8)
_QUEUED: Final = "llm_d_epp_flow_control_queue_size"
_DEADLINE: Final = 45.0
_PATIENCE: Final = 60.0
_HEADER: Final = (
    "| | waited for the first worker | answered | after it came, p50 | most | without a worker, TTL 2 s | after |\n"
    "|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True, slots=True)
class FromZero:
    """`queued`: how many the picker held before the first worker came, `came`: when that was, in seconds from the start.

    `expired`: those for whom no worker came before their time was over.
    """

    picker: str
    queued: int
    came: float
    fates: Sequence[Fate]
    expired: Sequence[Fate]


async def tables(binary: Path | None) -> list[str]:
    """Runs it with each picker."""
    found = ["", f"### From zero: {REQUESTS} requests wait for the first worker", "", _HEADER]
    for arm in arms(binary, "60s"):
        if arm.name in (OURS, GO):
            found.append(_row(await from_zero(arm)))
    return found


async def from_zero(arm: Arm, requests: int = REQUESTS) -> FromZero:
    """Two runs: in one a worker comes when all requests wait, in the other none."""
    arrivals = [Arrival(0.0, _SHORT, f"{number:08} is here") for number in range(requests)]
    async with stage(_configured(arm, "60s"), workers_at_first=0) as there:
        sending = asyncio.create_task(Users(there.port, _PATIENCE).send(arrivals))
        start = time.monotonic()
        queued = await _until_queued(there, requests)
        came = time.monotonic() - start
        there.pool.add(0)
        fates = await sending
    async with stage(_configured(arm, "2s"), workers_at_first=0) as there:
        expired = await Users(there.port, _PATIENCE).send(arrivals[:20])
    return FromZero(arm.name, queued, came, fates, expired)


def _configured(arm: Arm, no_endpoint_ttl: str) -> Arm:
    return Arm(arm.name, arm.binary, flow_control("60s", no_endpoint_ttl))


async def _until_queued(there: Stage, count: int) -> int:
    """How many wait, once all do or no more come."""
    until, queued = time.monotonic() + _DEADLINE, 0
    while queued < count and time.monotonic() < until:
        await asyncio.sleep(0.1)
        queued = int(totals(await there.page(0), (_QUEUED,)).get(_QUEUED, 0))
    return queued


def _row(found: FromZero) -> str:
    answered = [one.ended - found.came for one in found.fates if one.status == 200]
    seconds = f"{percentile(answered, 0.5):.1f} s | {max(answered):.1f} s" if answered else "- | -"
    ended = Counter((one.status, one.cause, bool(one.retry_after)) for one in found.expired)
    how = ", ".join(
        f"{count} times {status} {cause}{' with Retry-After' if told else ''}"
        for (status, cause, told), count in ended.items()
    )
    waited = percentile([one.ended - one.at for one in found.expired], 0.5)
    return f"| {found.picker} | {found.queued} | {len(answered)} | {seconds} | {how} | {waited:.1f} s |"
