"""Gates without a metric, and combined gates."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any, Self

import pytest

from dispatcher.broker.contract.ledger import Quota
from dispatcher.broker.contract.message import DispatchCandidate
from dispatcher.broker.contract.queue import QueueError
from dispatcher.broker.memory.broker import MemoryLedger, MemoryQuotas, wall_clock_ms
from dispatcher.gates.built_in.limits import AllOfGate, TenantQuotaGate
from dispatcher.gates.gate import DispatchGate, Outcome, Scope, Slot
from tests.dispatcher.gates.gate_tools import HeldSlots, candidate, open_gate
from tests.in_time import by, with_more_time


async def test_constant_is_open() -> None:
    async with open_gate("constant") as gate:
        assert gate.budget() == 1
        assert await HeldSlots(gate).admit_all(most=500) == 500


@with_more_time(1_200)
async def test_12_a_429_closes_even_the_constant_gate_for_everybody(ms: int) -> None:
    ledger = MemoryLedger(wall_clock_ms)
    async with open_gate("constant", ledger=ledger) as one, open_gate("constant", ledger=ledger) as other:
        mine, theirs = HeldSlots(one), HeldSlots(other)
        await mine.ask()
        rejected_ms = wall_clock_ms()
        await mine.release_oldest(Outcome.OVERLOADED, retry_after_ms=ms)
        async with by(rejected_ms + ms, ledger.now_ms):
            refusal = await theirs.refused()
            assert "asked to wait" in str(refusal)
        await asyncio.wait_for(refusal.changed(), ms / 1000 + 90)
        assert wall_clock_ms() >= rejected_ms + ms
        assert await theirs.admit_all() == 1  # the probe
        await theirs.release_oldest(Outcome.ACCEPTED)
        assert await theirs.admit_all() == 2


@pytest.mark.parametrize("outcome", [Outcome.OTHER, Outcome.UNUSED])
async def test_12_a_probe_that_tells_nothing_is_no_probe(outcome: Outcome) -> None:
    async with open_gate("constant") as gate:
        slots = HeldSlots(gate)
        await slots.ask()
        await slots.release_oldest(Outcome.OVERLOADED)
        async with asyncio.timeout(90):
            while (refusal := await slots.ask()) is not None:
                await refusal.changed()
        assert await slots.admit_all() == 0
        await slots.release_oldest(outcome)
        assert await slots.admit_all() == 1


TWO = {"type": "local-max-concurrency", "params": {"limit": 2}}


@pytest.mark.parametrize(
    ("kind", "params"), [("local-max-concurrency", TWO["params"]), ("wait-on-refuse", {"gate": TWO})]
)
async def test_local_concurrency_refuses_the_third_and_wakes_it(kind: str, params: dict[str, Any]) -> None:
    async with open_gate(kind, params) as gate:
        slots = HeldSlots(gate)
        assert await slots.admit_all() == 2
        assert gate.budget() == 0
        refusal = await slots.refused()
        assert refusal.scope is Scope.QUEUE
        waiting = asyncio.ensure_future(refusal.changed())
        await asyncio.sleep(0)
        assert not waiting.done()
        await slots.release_oldest()
        await asyncio.wait_for(waiting, 90)
        assert gate.budget() == 0.5
        assert await slots.admit_all() == 1


async def test_20_a_quota_holds_up_its_tenant_only() -> None:
    quota = {"limit": "2", "mode": "concurrency"}
    async with open_gate("redis-quota", quota) as gate:
        slots = HeldSlots(gate)
        assert await slots.admit_all(candidate("a")) == 2  # one id, twice: two places
        refusal = await slots.refused(candidate("a"))
        assert refusal.scope is Scope.TENANT
        assert await slots.admit_all(candidate("b")) == 2
        waiting = asyncio.ensure_future(refusal.changed())
        await slots.release_oldest()
        await asyncio.wait_for(waiting, 90)
        assert await slots.admit_all(candidate("a")) == 1


async def test_a_rate_is_not_used_up_by_what_was_not_sent() -> None:
    async with open_gate("redis-quota", {"limit": 1, "window": "1h"}) as gate:
        slots = HeldSlots(gate)
        assert await slots.admit_all() == 1
        await slots.release_oldest(Outcome.UNUSED)
        assert await slots.admit_all() == 1
        await slots.release_oldest(Outcome.OTHER)
        assert await slots.admit_all() == 0


async def test_a_rate_opens_when_its_window_has_passed() -> None:
    async with open_gate("redis-quota", {"limit": 1, "window": "200ms"}) as gate:
        slots, starts = HeldSlots(gate), list[tuple[float, float]]()
        async with asyncio.timeout(90):
            while len(starts) < 3:
                asked = time.monotonic()
                if (refusal := await slots.ask()) is None:
                    starts.append((asked, time.monotonic()))
                else:
                    await refusal.changed()
    for (before, _), (_, after) in pairwise(starts):
        assert after - before > 0.19


async def test_all_of_takes_all_or_none() -> None:
    gates = [
        {"type": "redis-quota", "params": {"limit": 1, "window": "1h"}},
        {"type": "local-max-concurrency", "params": {"limit": 1}},
    ]
    async with open_gate("all-of", {"gates": gates}) as gate:
        slots = HeldSlots(gate)
        assert await slots.ask(candidate("a")) is None
        assert gate.budget() == 0
        for _ in range(3):  # refused by the second: the first must not count them
            refusal = await slots.refused(candidate("b"))
            assert refusal.scope is Scope.QUEUE
        await slots.release_oldest()
        assert await slots.ask(candidate("b")) is None
        await slots.release_oldest()
        refusal = await slots.refused(candidate("a"))
        assert refusal.scope is Scope.TENANT


@pytest.mark.parametrize(
    ("kind", "params"),
    [("composite", {"gates": [{"type": "constant"}, TWO]}), ("local-max-concurrency", {"limit": 9})],
    ids=["told by all-of", "without a ledger"],
)
async def test_12_every_gate_minds_what_the_target_said(kind: str, params: dict[str, Any]) -> None:
    async with open_gate(kind, params) as gate:
        slots = HeldSlots(gate)
        await slots.ask()
        await slots.release_oldest(Outcome.OVERLOADED, retry_after_ms=60_000)
        assert "overloaded" in str(await slots.refused())


@pytest.mark.parametrize("inner", ["constant", "nested"])
async def test_12_several_gates_over_one_ledger_open_again_after_a_429(inner: str) -> None:
    other = {"type": "all-of", "params": {"gates": [{"type": "constant"}]}} if inner == "nested" else None
    gates = [{"type": "constant"}, other or {"type": "constant"}]
    async with open_gate("all-of", {"gates": gates}) as gate:
        slots = HeldSlots(gate)
        await slots.ask()
        await slots.release_oldest(Outcome.OVERLOADED, retry_after_ms=1)
        refusal = await slots.ask()
        if refusal is not None:
            await asyncio.wait_for(refusal.changed(), 90)
            assert await slots.ask() is None  # the probe
        await slots.release_oldest(Outcome.ACCEPTED)
        assert await slots.admit_all(most=5) == 2


async def test_12_a_gate_that_reads_nothing_probes_an_overloaded_target_once_a_second_only() -> None:
    async with open_gate("constant") as gate:
        slots, probes, ends = HeldSlots(gate), 0, time.monotonic() + 1.5
        while time.monotonic() < ends:
            refusal = await slots.ask()
            if refusal is None:
                probes += 1
                await slots.release_oldest(Outcome.OVERLOADED)
            else:
                await asyncio.wait_for(refusal.changed(), 90)
        assert probes <= 3


async def test_12_however_long_a_target_asks_to_wait_it_is_probed_soon_and_the_reason_says_when() -> None:
    now_ms = 1_700_000_000_000
    ledger = MemoryLedger(lambda: now_ms)
    async with open_gate("constant", ledger=ledger) as gate:
        slots = HeldSlots(gate)
        await slots.ask()
        await slots.release_oldest(Outcome.OVERLOADED, retry_after_ms=86_400_000)
        assert str(await slots.ask()) == "the target was overloaded and asked to wait, until 22:13:50 UTC"
        now_ms += 30_000
        assert await slots.ask() is None


async def test_cancelled_while_it_holds_a_place_gives_it_back() -> None:
    async with open_gate("local-max-concurrency", {"limit": 1}) as gate:
        entered = asyncio.Event()

        async def hold() -> None:
            async with gate.admit(candidate()):
                entered.set()
                await asyncio.Event().wait()

        holding = asyncio.create_task(hold())
        await entered.wait()
        holding.cancel()
        await asyncio.wait([holding])
        assert await HeldSlots(gate).admit_all() == 1


async def test_an_error_of_the_body_passes_through_all_of_and_counts_as_no_start() -> None:
    rate = {"type": "redis-quota", "params": {"limit": 5, "window": "1h"}}
    async with open_gate("all-of", {"gates": [{"type": "constant"}, rate]}) as gate:
        with pytest.raises(KeyError):
            async with gate.admit(candidate()):
                raise KeyError
        assert await HeldSlots(gate).admit_all() == 5


class FaultyGate(DispatchGate):
    """Admits everything, and fails when a slot is left: as one of an installed package may."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def budget(self) -> float:
        return 1.0

    @asynccontextmanager
    async def admit(self, candidate: DispatchCandidate) -> AsyncIterator[Slot]:
        yield Slot()
        raise QueueError("gone")


async def test_a_start_that_was_used_counts_although_another_gate_fails_at_its_end() -> None:
    quota = Quota(limit=1, window_ms=3_600_000)
    async with AllOfGate([TenantQuotaGate(MemoryQuotas(wall_clock_ms), quota, ""), FaultyGate()]) as gate:
        slots = HeldSlots(gate)
        assert await slots.ask() is None
        with suppress(QueueError):
            await slots.release_oldest(Outcome.ACCEPTED)
        refusal = await slots.refused()
        assert refusal.scope is Scope.TENANT
