"""Runs one queue: its pump, its deliveries, the heartbeat of their leases, the sweep of lapsed claims."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Self

from adsum.tasks import BackgroundTasks, cancel_and_wait
from dispatcher.broker.contract.message import Claim
from dispatcher.broker.contract.queue import QueueError
from dispatcher.broker.opening import Intake
from dispatcher.delivery.sender import Delivery, DeliveryState, DispatchObserver, Sender
from dispatcher.gates.admission import Admission
from dispatcher.gates.gate import DispatchGate
from dispatcher.pump.pump import Pump
from dispatcher.pump.slots import Slots

SWEEP_INTERVAL = 1.0
"""Seconds."""
HEARTBEATS_PER_LEASE = 3
"""One may be lost or late without the lease ending."""
MAX_REVOKED = 256
"""Cancellations kept for claims whose answer from the broker has not arrived yet."""
STORE_TIMEOUT = 10.0
"""Seconds for which a process that ends tries to store the answers that it has."""

log = logging.getLogger(__name__)


class QueueRunner:
    """An async context manager: entered, it pumps; left, its claims are released and its tasks have ended.

    Draining is `stop_claiming`, then `drained`, then leaving. `lease` in seconds. `intake` moves requests into the queue.
    """

    def __init__(
        self,
        gate: DispatchGate,
        slots: Slots,
        sender: Sender,
        *,
        owner: str,
        lease: float,
        intake: Intake | None = None,
    ) -> None:
        queue = self.queue = sender.queue
        self.gate = gate
        self.intake = intake
        self._moving = AsyncExitStack()
        self._slots = slots
        self._sender = sender
        self._observer: DispatchObserver = sender.observer
        self._lease, self._heartbeat_interval = lease, lease / HEARTBEATS_PER_LEASE
        self._deliveries: dict[str, Delivery] = {}
        self._revoked: dict[str, None] = {}
        self._delivered = asyncio.Event()
        self.pump = Pump(queue, gate, slots, owner, self._launch, sender.observer)
        self._pumping = BackgroundTasks()
        self._stopping = False
        self._upkeep = BackgroundTasks()

    @property
    def in_flight(self) -> int:
        """Claims of this process that are not settled yet."""
        return len(self._deliveries)

    @property
    def serves(self) -> bool:
        """False if its pump has ended by itself."""
        return self._stopping or bool(self._pumping)

    async def __aenter__(self) -> Self:
        name = self.queue.name
        if self.intake is not None:
            await self._moving.enter_async_context(self.intake)
        self._pumping.start(self.pump.run(), f"pump {name}")
        self._upkeep.start(self._repeat(self._heartbeat_interval, self._heartbeat), f"heartbeat {name}")
        self._upkeep.start(self._repeat(SWEEP_INTERVAL, self._sweep), f"sweep {name}")
        self._upkeep.start(self._repeat(0.0, self._drop_cancelled), f"cancellations {name}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_claiming()
        await self.release_claims()
        await self._upkeep.aclose()

    async def stop_claiming(self) -> None:
        """Close the intake and claim nothing more."""
        self._stopping = True
        await self._moving.aclose()
        await self._pumping.aclose()

    async def drained(self) -> None:
        """Returns when no claim is in flight."""
        while self._deliveries:
            self._delivered.clear()
            await self._delivered.wait()

    async def release_claims(self) -> None:
        """Abort what is being sent and release it to its place in the queue; store the answers that are complete."""
        deliveries = list(self._deliveries.values())
        for delivery in deliveries:
            delivery.abort()
        aborted = [delivery for delivery in deliveries if delivery.aborted]
        await _wait_or_cancel(aborted)
        try:
            for state in (DeliveryState.ABORTED_UNSENT, DeliveryState.ABORTED_SENT):
                claims = [delivery.claim for delivery in aborted if delivery.state is state]
                # One that was sent counts as an attempt: a request that kills its dispatchers must become a dead letter.
                await self.queue.release(claims, sent=state is DeliveryState.ABORTED_SENT)
        except QueueError as error:
            log.warning(
                "queue %s: cannot release %d claims, they lapse with their leases: %s",
                self.queue.name,
                len(aborted),
                error,
            )
        if unstored := await _wait_or_cancel(deliveries, timeout=STORE_TIMEOUT):
            log.error(
                "queue %s: %d answers could not be stored, their requests will be sent again",
                self.queue.name,
                unstored,
            )

    def _launch(self, claim: Claim, admission: Admission, claim_started: float) -> None:
        delivery = Delivery(claim, admission, claim_started + self._lease)
        self._deliveries[claim.fence] = delivery
        # Cancellations come over another connection than claims, so one may arrive before its claim.
        if claim.fence in self._revoked:
            delivery.lose()
        self._observer.claimed(claim)
        delivery.task = asyncio.create_task(self._deliver(delivery))

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            await self._sender.deliver(delivery)
        except Exception:  # the claim lapses with its lease: it is delivered again, or becomes a dead letter
            log.exception(
                "queue %s: unexpected error while sending %r", self.queue.name, delivery.claim.request.id
            )
        finally:
            del self._deliveries[delivery.claim.fence]
            self._slots.release(1)
            self._delivered.set()
            self._observer.slot_released()

    async def _heartbeat(self) -> None:
        deliveries = list(self._deliveries.values())
        if not deliveries:
            return
        still_held = await self.queue.extend([delivery.claim for delivery in deliveries])
        for delivery, held in zip(deliveries, still_held, strict=True):
            if not held:
                delivery.lose()

    async def _drop_cancelled(self) -> None:
        for fence in await self.queue.cancelled(self._heartbeat_interval):
            if delivery := self._deliveries.get(fence):
                delivery.lose()
                continue
            self._revoked[fence] = None
            if len(self._revoked) > MAX_REVOKED:
                del self._revoked[next(iter(self._revoked))]

    async def _sweep(self) -> None:
        self._observer.sweeping()
        await self.queue.sweep()

    async def _repeat(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` every `seconds`; once a second while the broker is away."""
        while True:
            try:
                await work()
                await asyncio.sleep(seconds)
            except QueueError:
                await asyncio.sleep(1.0)
            except Exception:  # a heartbeat that stops would let all claims of the queue lapse
                log.exception("queue %s: unexpected error, trying again in 1 s", self.queue.name)
                await asyncio.sleep(1.0)


async def _wait_or_cancel(deliveries: list[Delivery], timeout: float | None = None) -> int:
    """Wait for them, at most `timeout` seconds, then cancel them; returns how many were cancelled."""
    tasks = [delivery.task for delivery in deliveries if delivery.task is not None]
    if not tasks:
        return 0
    _, late = await asyncio.wait(tasks, timeout=timeout)
    await cancel_and_wait(*late)
    return len(late)
