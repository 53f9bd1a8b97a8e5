"""Takes requests from the head of one queue through its gate: peek, admit, claim, launch.

Candidates are only peeked at before the gate admits them: a closed gate holds no claim and no slot, so other replicas and
queues can use them.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from adsum.tasks import BackgroundTasks, first_of
from dispatcher.broker.contract.message import Claim, DispatchCandidate
from dispatcher.broker.contract.queue import Queue, QueueError
from dispatcher.delivery.sender import DispatchObserver
from dispatcher.gates.admission import Admission
from dispatcher.gates.gate import DispatchGate, RefusedError, Scope
from dispatcher.pump.claiming import Claimer, Launch
from dispatcher.pump.slots import Slots

MAX_BATCH = 128
"""Requests peeked at, and claimed, in one round."""
POLL_INTERVAL = 1.0
"""Seconds after which an empty queue is peeked at without a wake-up, in case one was lost."""
OUTAGE_PAUSE = 0.5
"""Seconds between two tries while the broker is away."""
FAULT_PAUSE = 5.0
"""Seconds between two rounds after an unexpected error, ours or of a gate."""

LOG_AFTER = 10.0
"""Seconds for which a gate is closed before it is logged; a working gate closes for shorter times."""

Pause = Callable[[], Awaitable[object]]

log = logging.getLogger(__name__)


class ClosedGateLog:
    """Logs a gate that stays closed while requests wait: one line after `after` seconds, one when it ends."""

    def __init__(self, queue: str, after: float = LOG_AFTER) -> None:
        self.after = after
        self._queue = queue
        self._reason = ""
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._logged = False

    def closed(self, reason: str) -> None:
        """The gate refused the whole queue, now or once more."""
        self._reason = reason
        if self._timer is None:
            self._since = time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(self.after, self._log)

    def opened(self, event: str) -> None:
        """A request is sent, or none waits any more: `event`, for the log."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        if self._logged:
            self._logged = False
            log.warning("queue %s: %s, after %.0f s", self._queue, event, time.monotonic() - self._since)

    @property
    def closed_for(self) -> float | None:
        """Seconds since the gate closed; None: it is open, or nothing waits for it."""
        return None if self._timer is None else time.monotonic() - self._since

    def close(self) -> None:
        """Cancel the line that is due."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._logged = False

    def _log(self) -> None:
        self._logged = True
        log.warning("queue %s: nothing is sent: %s", self._queue, self._reason)


class Pump:
    """Claims what the gate admits and passes it to `launch`, which then owns one slot for each claim."""

    def __init__(
        self,
        queue: Queue,
        gate: DispatchGate,
        slots: Slots,
        owner: str,
        launch: Launch,
        observer: DispatchObserver,
    ) -> None:  # fmt: skip
        self._queue = queue
        self._slots = slots
        self._claimer = Claimer(queue, gate, owner, self._launch_claim)
        self._launch = launch
        self._observer = observer
        self.blocked_tenants: dict[str, str] = {}
        """Why the requests of a tenant wait although those of others may go, by tenant."""
        self._unblocking = BackgroundTasks()
        self._tenant_unblocked = asyncio.Event()
        self._unused = 0
        self.blocked_by = ""
        """Why nothing is sent now; empty while something is, or while the queue is empty."""
        self.closed_gate_log = ClosedGateLog(queue.name)

    async def run(self) -> None:
        """Run until cancelled. A claim that is being made is completed first: its lease must have an owner."""
        try:
            while True:
                await self._run_round()
        finally:
            self.closed_gate_log.close()
            await self._unblocking.aclose()

    async def _run_round(self) -> None:
        try:
            pause = await self._round_with_slots()
            if pause is not None:
                await pause()
        except QueueError as error:
            self.blocked_by = f"the broker is away: {error}"
            await asyncio.sleep(OUTAGE_PAUSE)
        except Exception as error:  # a gate of an installed package may raise anything; its queue must go on
            log.exception("queue %s: unexpected error, trying again in %g s", self._queue.name, FAULT_PAUSE)
            self.blocked_by = f"unexpected error, see the log: {type(error).__name__}"
            await asyncio.sleep(FAULT_PAUSE)

    async def _round_with_slots(self) -> Pause | None:
        """One round with the slots that are free; it releases those it did not use before it waits."""
        self._unused = await self._slots.acquire(MAX_BATCH)
        try:
            self._tenant_unblocked.clear()
            return await self._round(self._unused)
        finally:
            self._slots.release(self._unused)
            self._unused = 0

    async def _round(self, limit: int) -> Pause | None:
        skipped = frozenset(self.blocked_tenants)
        candidates = await self._queue.peek(limit, skip_tenants=skipped)
        if not candidates:
            self.blocked_by = ""
            self.closed_gate_log.opened("nothing waits for its gate any more")
            return self._wait_for_work
        if self.blocked_by:  # one question is enough to learn that the gate is still closed
            candidates = candidates[:1]
        # Shielded: a claim whose answer nobody awaits would hold its request until the lease ends.
        claiming = asyncio.create_task(self._claimer.claim_admitted(candidates, skipped))
        try:
            refusals = await asyncio.shield(claiming)
        except asyncio.CancelledError:
            await asyncio.gather(claiming, return_exceptions=True)
            raise
        self.blocked_by = ""
        pause = None
        for candidate, refusal in refusals:
            pause = self._refused(candidate, refusal)
        return pause

    def _launch_claim(self, claim: Claim, admission: Admission, claim_started: float) -> None:
        self._unused -= 1
        self.closed_gate_log.opened("sends again")
        self._launch(claim, admission, claim_started)

    def _refused(self, candidate: DispatchCandidate, refusal: RefusedError) -> Pause | None:
        self._observer.refused(candidate, refusal)
        if refusal.scope is Scope.QUEUE:
            self.blocked_by = refusal.reason
            self.closed_gate_log.closed(refusal.reason)
            return refusal.changed
        if candidate.tenant not in self.blocked_tenants:
            self.blocked_tenants[candidate.tenant] = refusal.reason
            self._unblocking.start(
                self._block_tenant(candidate.tenant, refusal), f"tenant {candidate.tenant}"
            )
        return None

    async def _block_tenant(self, tenant: str, refusal: RefusedError) -> None:
        try:
            await refusal.changed()
        finally:
            self.blocked_tenants.pop(tenant, None)
            self._tenant_unblocked.set()

    async def _wait_for_work(self) -> None:
        """Wait until the queue has a request, or a blocked tenant is unblocked."""
        if not self.blocked_tenants:
            await self._queue.wait(POLL_INTERVAL)
            return
        await first_of(self._queue.wait(POLL_INTERVAL), self._tenant_unblocked.wait())
