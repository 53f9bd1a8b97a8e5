"""Everything that runs for one queue: its pump, its requests on their way, their heartbeat, the sweep."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self

from dispatcher.broker.message import Claim
from dispatcher.broker.queue import Queue, QueueError
from dispatcher.delivery.observer import DispatchObserver
from dispatcher.delivery.sending import Admission, Flight, FlightState, Sender
from dispatcher.gates.gate import DispatchGate
from dispatcher.pump.pump import Pump
from dispatcher.pump.slots import Slots
from runtime.tasks import BackgroundTasks, cancel_and_wait

SWEEP_EVERY = 1.0
"""Seconds."""
BEATS_PER_LEASE = 3
REVOKED_KEPT = 256
"""Cancellations that are remembered for claims which are still on their way from the broker."""
LAST_WORDS = 10.0
"""Seconds that a leaving process tries to store the answers that it has."""

log = logging.getLogger(__name__)


class Lane:
    """Entered: it pumps. `stop_claiming`: nothing new is claimed. `release_claims`: what is on its way is aborted.

    Left: all tasks are gone; what was still on its way is released first. `lease` in seconds.
    """

    def __init__(
        self, queue: Queue, gate: DispatchGate, slots: Slots, sender: Sender, *, owner: str, lease: float
    ) -> None:
        self.queue = queue
        self.gate = gate
        self._slots = slots
        self._sender = sender
        self._observer: DispatchObserver = sender.observer
        self._lease, self._beat_every = lease, lease / BEATS_PER_LEASE
        self._flights: dict[str, Flight] = {}
        self._revoked: dict[str, None] = {}
        self._landed = asyncio.Event()
        self._pump = Pump(queue, gate, slots, owner, self._launch, sender.observer)
        self._pumping = BackgroundTasks()
        self._upkeep = BackgroundTasks()

    @property
    def in_flight(self) -> int:
        """Requests that this process has claimed and whose end the broker does not know yet."""
        return len(self._flights)

    @property
    def claims(self) -> Sequence[Claim]:
        return [flight.claim for flight in self._flights.values()]

    @property
    def waits_for(self) -> str:
        """Why nothing goes; empty when something does, or nothing is there."""
        return self._pump.waits_for

    async def __aenter__(self) -> Self:
        name = self.queue.name
        self._pumping.start(self._pump.run(), f"pump {name}")
        self._upkeep.start(self._every(self._beat_every, self._beat), f"heartbeat {name}")
        self._upkeep.start(self._every(SWEEP_EVERY, self._sweep), f"sweep {name}")
        self._upkeep.start(self._every(0.0, self._drop_cancelled), f"cancellations {name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop_claiming()
        await self.release_claims()
        await self._upkeep.aclose()

    async def stop_claiming(self) -> None:
        await self._pumping.aclose()

    async def landed(self) -> None:
        """Until nothing is on its way any more."""
        while self._flights:
            self._landed.clear()
            await self._landed.wait()

    async def release_claims(self) -> None:
        """Abort what is being sent and release it to the queue, at its place; ends that are known are told first."""
        flights = list(self._flights.values())
        for flight in flights:
            flight.abort()
        aborted = [flight for flight in flights if flight.aborted]
        await _over(aborted)
        try:
            for state in (FlightState.ABORTED_UNSENT, FlightState.ABORTED_SENT):
                claims = [flight.claim for flight in aborted if flight.state is state]
                await self.queue.release(claims, sent=state is FlightState.ABORTED_SENT)
        except QueueError as error:
            log.warning("%s: %d claims end with their leases: %s", self.queue.name, len(aborted), error)
        if unheard := await _over(flights, within=LAST_WORDS):
            log.error(
                "%s: %d answers could not be stored, they will be asked for again", self.queue.name, unheard
            )

    def _launch(self, claim: Claim, admission: Admission, asked: float) -> None:
        flight = Flight(claim, admission, asked + self._lease)
        self._flights[claim.fence] = flight
        if claim.fence in self._revoked:
            flight.lose()
        self._observer.claimed(claim)
        flight.task = asyncio.create_task(self._fly(flight))

    async def _fly(self, flight: Flight) -> None:
        try:
            await self._sender.deliver(flight)
        except Exception:  # its claim ends with its lease: another delivery, or a dead letter
            log.exception("%s: a fault while sending %r", self.queue.name, flight.claim.request.id)
        finally:
            del self._flights[flight.claim.fence]
            self._slots.release(1)
            self._landed.set()
            self._observer.landed()

    async def _beat(self) -> None:
        flights = list(self._flights.values())
        if not flights:
            return
        ours = await self.queue.extend([flight.claim for flight in flights])
        for flight, held in zip(flights, ours, strict=True):
            if not held:
                flight.lose()

    async def _drop_cancelled(self) -> None:
        for fence in await self.queue.cancelled(self._beat_every):
            if flight := self._flights.get(fence):
                flight.lose()
                continue
            self._revoked[fence] = None
            if len(self._revoked) > REVOKED_KEPT:
                del self._revoked[next(iter(self._revoked))]

    async def _sweep(self) -> None:
        self._observer.sweeping()
        await self.queue.sweep()

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        """`work`, again and again, `seconds` apart; while the broker is away once a second."""
        while True:
            try:
                await work()
                await asyncio.sleep(seconds)
            except QueueError:
                await asyncio.sleep(1.0)
            except Exception:  # without its heartbeat the queue's claims would lapse one after the other
                log.exception("%s: a fault; it goes on in a second", self.queue.name)
                await asyncio.sleep(1.0)


async def _over(flights: list[Flight], within: float | None = None) -> int:
    """Wait for them, at most `within` seconds; then cancel. How many did not end by themselves."""
    tasks = [flight.task for flight in flights if flight.task is not None]
    if not tasks:
        return 0
    _, late = await asyncio.wait(tasks, timeout=within)
    await cancel_and_wait(*late)
    return len(late)
