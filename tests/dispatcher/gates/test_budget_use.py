"""The share of the line that is used while requests wait: a gate, its meter and a ledger over a simulated pool, in virtual time."""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import mean

import pytest

from dispatcher.broker.memory.broker import MemoryLedger
from dispatcher.gates.built_in.ledger_gate import LedgerGate
from dispatcher.gates.gate import Outcome, RefusedError
from dispatcher.gates.metering.meter import Meter
from dispatcher.gates.metering.metric_sources import LOAD, ConstantReader, TargetSource
from dispatcher.gates.metering.readers import Sample
from dispatcher.gates.parameters import MetricParameters
from tests.dispatcher.gates.gate_tools import candidate
from tests.kubernetes.fake.virtual_time import VIRTUAL, Backend

CAPACITY = 100
BASELINE = Fraction(1, 4)
LINE = CAPACITY * (1 - BASELINE)
EVERY = 0.05


@pytest.fixture
def anyio_backend() -> Backend:
    return VIRTUAL


Between = tuple[float, float]


@dataclass
class Pool:
    """Times in seconds. `way`: from being sent to running; `late`: how old what the page shows is."""

    way: Between = (0.01, 0.1)
    lasts: Between = (3.0, 6.0)
    late: float = 0.0
    others: Callable[[float], int] = lambda _: 10
    running: int = 0
    sent: int = 0
    looks: list[tuple[float, int]] = field(default_factory=list)
    _shown: deque[tuple[float, int]] = field(default_factory=deque)
    _rng: random.Random = field(default_factory=lambda: random.Random(1))

    @property
    def load(self) -> int:
        return self.others(asyncio.get_running_loop().time()) + self.running

    async def read(self) -> Sample:
        """The page."""
        await asyncio.sleep(0.02)
        now = asyncio.get_running_loop().time()
        self._note()
        while len(self._shown) > 1 and self._shown[1][0] <= now - self.late:
            self._shown.popleft()
        return Sample(Fraction(self._shown[0][1] + self.others(now - self.late)))

    async def serve(self) -> None:
        """One request, to its end."""
        self.sent += 1
        await asyncio.sleep(self._rng.uniform(*self.way))
        self.running += 1
        self._note()
        await asyncio.sleep(self._rng.uniform(*self.lasts))
        self.running -= 1
        self._note()
        await asyncio.sleep(0.005)

    async def watch(self) -> None:
        """Note the true load, again and again."""
        while True:
            self.looks.append((asyncio.get_running_loop().time(), self.load))
            await asyncio.sleep(EVERY)

    def _note(self) -> None:
        self._shown.append((asyncio.get_running_loop().time(), self.running))


async def send_all_day(gate: LedgerGate, pool: Pool) -> None:
    """There is always another one that waits."""

    async def one(stack: AsyncExitStack) -> None:
        async with stack:
            await pool.serve()

    async with asyncio.TaskGroup() as group:
        while True:
            async with AsyncExitStack() as entered:
                try:
                    slot = await entered.enter_async_context(gate.admit(candidate()))
                except RefusedError as refusal:
                    await refusal.changed()
                    continue
                slot.outcome = Outcome.ACCEPTED
                group.create_task(one(entered.pop_all()))


async def dispatch(pool: Pool, rules: MetricParameters, ledger: MemoryLedger, starts: float) -> None:
    """One replica, from `starts` seconds on."""
    loop = asyncio.get_running_loop()
    source = TargetSource("load", pool, ConstantReader(Fraction(1)), Fraction(CAPACITY), BASELINE, LOAD)
    await asyncio.sleep(starts)
    async with LedgerGate([lambda: Meter(source, ledger.state, rules, monotonic=loop.time)], ledger) as gate:
        await send_all_day(gate, pool)


async def flooded(
    pool: Pool,
    rules: MetricParameters,
    seconds: float,
    *,
    starts: Sequence[float] = (0.0,),
    warm: float | None = None,
) -> list[float]:
    """The load, as a share of the line, from `warm` on: else from when the first wave of requests has ended."""
    loop = asyncio.get_running_loop()
    ledger = MemoryLedger(lambda: round(loop.time() * 1000))
    begun = loop.time()
    working = [asyncio.create_task(dispatch(pool, rules, ledger, start)) for start in starts]
    working.append(asyncio.create_task(pool.watch()))
    try:
        await asyncio.wait(working, timeout=seconds)
    finally:
        for task in working:
            task.cancel()
        await asyncio.wait(working)
    warm = 2 * rules.lag + 2 * pool.lasts[1] if warm is None else warm
    return [float(load / LINE) for at, load in pool.looks if at > begun + warm]


RULES = MetricParameters(interval=0.2, lag=1.5)
SLOW = MetricParameters(interval=5.0, lag=15.0)


@pytest.mark.parametrize(
    ("pool", "rules", "least"),
    [
        pytest.param(Pool(), RULES, 0.95, id="fresh page"),
        pytest.param(Pool(lasts=(4.4, 4.6)), RULES, 0.95, id="all as long"),
        pytest.param(Pool(way=(0.2, 0.6)), RULES, 0.95, id="slow way"),
        pytest.param(Pool(late=0.5), RULES, 0.95, id="late page"),
        pytest.param(Pool(late=1.4), RULES, 0.9, id="page as late as the lag"),
        pytest.param(Pool(lasts=(0.7, 0.9)), RULES, 0.9, id="shorter than the lag"),
        pytest.param(Pool(lasts=(0.5, 12.0)), RULES, 0.95, id="of any length"),
        pytest.param(Pool(lasts=(30.0, 60.0), late=8.0), SLOW, 0.9, id="through Prometheus"),
    ],
)
async def test_09_the_line_is_used_and_kept(pool: Pool, rules: MetricParameters, least: float) -> None:
    loads = await flooded(pool, rules, 40 * rules.lag)
    assert mean(loads) > least
    assert max(loads) < 1.06


async def test_09_replicas_that_start_later_send_nothing_twice() -> None:
    """The second sees a page on which nothing of the first shows yet."""
    loads = await flooded(Pool(late=1.0), RULES, 12, starts=(0.0, 0.9, 1.2), warm=0)
    assert max(loads) < 1.03


async def test_09_whoever_else_comes_and_goes_the_line_is_used_and_soon_kept() -> None:
    """Others rise by 20 of 75 for 10 s, again and again: what runs cannot be called back, and nothing is added to it."""
    pool = Pool(others=lambda at: 10 if at % 20 < 10 else 30)
    loads = await flooded(pool, RULES, 100)
    over = [load for load in loads if load > 1.03]
    assert mean(loads) > 0.9
    assert max(loads) < 1 + 20 / LINE + 0.03
    assert len(over) / len(loads) < 0.12
