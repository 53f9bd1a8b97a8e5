"""Takes requests from the head of one queue through its gate: peek, admit, claim, launch.

Candidates are only peeked at before the gate admits them: a closed gate holds no claim and no slot, so other replicas and
queues can use them.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from adsum.tasks import BackgroundTasks, first_of
from dispatcher.broker.contract.message import Claim, DispatchCandidate
from dispatcher.broker.contract.queue import Queue, QueueError
from dispatcher.delivery.observer import DispatchObserver
from dispatcher.delivery.sender import Admission
from dispatcher.gates.gate import DispatchGate, Outcome, RefusedError, Scope
from dispatcher.pump.closed_gate_log import ClosedGateLog
from dispatcher.pump.slots import Slots

MAX_BATCH = 128
"""Requests peeked at, and claimed, in one round."""
POLL_INTERVAL = 1.0
"""Seconds after which an empty queue is peeked at without a wake-up, in case one was lost."""
OUTAGE_PAUSE = 0.5
"""Seconds between two tries while the broker is away."""
FAULT_PAUSE = 5.0
"""Seconds between two rounds after an unexpected error, ours or of a gate."""

Pause = Callable[[], Awaitable[object]]
Refused = tuple[DispatchCandidate, RefusedError]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MatchedClaims:
    """Pairs of a claim and the admission that covers it, and what is left over on both sides."""

    pairs: Sequence[tuple[Claim, Admission]]
    claims: Sequence[Claim]
    admissions: Sequence[Admission]


def match_claims(claims: Sequence[Claim], admissions: Sequence[Admission]) -> MatchedClaims:
    """Pair each claim with its own admission, else with one of the same tenant for a request at least as large.

    Other replicas claim from the same queue, so a claim can return requests that this pump did not peek at.
    """
    left = {admission.candidate.token: admission for admission in admissions}
    pairs: list[tuple[Claim, Admission]] = []
    unexpected = []
    for claim in claims:
        if admission := left.pop(claim.request.token, None):
            pairs.append((claim, admission))
        else:
            unexpected.append(claim)
    unmatched = []
    for claim in unexpected:
        fitting = (token for token, admission in left.items() if _covers(admission.candidate, claim))
        if token := next(fitting, None):
            pairs.append((claim, left.pop(token)))
        else:
            unmatched.append(claim)
    return MatchedClaims(pairs, unmatched, list(left.values()))


@dataclass(slots=True)
class GateAnswers:
    """The answers of a gate to several candidates, in the order of the queue.

    `batches`: admissions to claim, each batch with the tenants to skip, which were refused before it. `overtaking`: admitted
    although an earlier candidate of the queue or of the same tenant was refused; they are released.
    """

    batches: list[tuple[list[Admission], frozenset[str]]] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    overtaking: list[Admission] = field(default_factory=list)


def sort_answers(
    candidates: Sequence[DispatchCandidate], answers: Sequence[Admission | RefusedError]
) -> GateAnswers:
    """Admissions up to the first refusal of the whole queue, without those behind a refusal of their own tenant."""
    found = GateAnswers()
    blocked: frozenset[str] = frozenset()
    closed = False
    for candidate, answer in zip(candidates, answers, strict=True):
        behind = closed or candidate.tenant in blocked
        if isinstance(answer, RefusedError):
            if not behind:
                found.refused.append((candidate, answer))
                closed = answer.scope is Scope.QUEUE
                blocked |= {candidate.tenant}
        elif behind:
            found.overtaking.append(answer)
        elif found.batches and found.batches[-1][1] == blocked:
            found.batches[-1][0].append(answer)
        else:
            found.batches.append(([answer], blocked))
    return found


def _covers(candidate: DispatchCandidate, claim: Claim) -> bool:
    return candidate.tenant == claim.request.tenant and candidate.size >= len(claim.request.payload)


class Pump:
    """Claims what the gate admits and passes it to `launch`, which then owns one slot for each claim.

    The third argument of `launch`: the monotonic clock before the claim was requested, in seconds. The lease began no
    earlier.
    """

    def __init__(
        self,
        queue: Queue,
        gate: DispatchGate,
        slots: Slots,
        owner: str,
        launch: Callable[[Claim, Admission, float], None],
        observer: DispatchObserver,
    ) -> None:  # fmt: skip
        self._queue = queue
        self._gate = gate
        self._slots = slots
        self._owner = owner
        self._launch = launch
        self._observer = observer
        self._blocked_tenants: dict[str, str] = {}
        self._unblocking = BackgroundTasks()
        self._tenant_unblocked = asyncio.Event()
        self._unused = 0
        self.blocked_by = ""
        """Why nothing is sent now; empty while something is, or while the queue is empty."""
        self.closed_gate_log = ClosedGateLog(queue.name)

    @property
    def blocked_tenants(self) -> Mapping[str, str]:
        """Why the requests of a tenant wait although those of others may go, by tenant."""
        return self._blocked_tenants

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
        skipped = frozenset(self._blocked_tenants)
        candidates = await self._queue.peek(limit, skip_tenants=skipped)
        if not candidates:
            self.blocked_by = ""
            self.closed_gate_log.opened("nothing waits for its gate any more")
            return self._wait_for_work
        if self.blocked_by:  # one question is enough to learn that the gate is still closed
            candidates = candidates[:1]
        # Shielded: a claim whose answer nobody awaits would hold its request until the lease ends.
        claiming = asyncio.create_task(self._admit_and_claim(candidates, skipped))
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

    async def _admit_and_claim(
        self, candidates: Sequence[DispatchCandidate], skipped: frozenset[str]
    ) -> Sequence[Refused]:
        answers = await self._admit_all(candidates)
        left = deque(answers.batches)
        try:
            while left:
                admissions, blocked = left.popleft()
                await self._claim(admissions, skipped | blocked)
        finally:
            await _release([admission for admissions, _ in left for admission in admissions])
        return answers.refused

    async def _admit_all(self, candidates: Sequence[DispatchCandidate]) -> GateAnswers:
        answers = await asyncio.gather(*map(self._admit, candidates), return_exceptions=True)
        granted = [answer for answer in answers if isinstance(answer, Admission)]
        for error in answers:
            if isinstance(error, BaseException) and not isinstance(error, RefusedError):
                await _release(granted)
                raise error
        valid = [answer for answer in answers if isinstance(answer, Admission | RefusedError)]
        answered = sort_answers(candidates, valid)
        await _release(answered.overtaking)
        return answered

    async def _admit(self, candidate: DispatchCandidate) -> Admission | RefusedError:
        manager = self._gate.admit(candidate)
        try:
            return Admission(candidate, manager, await manager.__aenter__())
        except RefusedError as refusal:
            return refusal

    async def _claim(self, admissions: Sequence[Admission], skipped: frozenset[str]) -> None:
        left = admissions
        claim_started = time.monotonic()
        try:
            claims = await self._queue.claim(len(admissions), owner=self._owner, skip_tenants=skipped)
            paired = match_claims(claims, admissions)
            left = paired.admissions
            for claim, admission in paired.pairs:
                self._launch_claim(claim, admission, claim_started)
        finally:
            await _release(left)
        unmatched = list(paired.claims)
        try:
            await self._readmit(unmatched, claim_started)
        finally:
            if unmatched:
                await self._queue.release(unmatched)

    async def _readmit(self, unmatched: list[Claim], claim_started: float) -> None:
        """Ask the gate for claims that nobody asked for; those that it refuses stay in the list."""
        for claim in list(unmatched):
            request = claim.request
            size = len(request.payload)
            seen = DispatchCandidate(request.id, request.token, request.tenant, request.deadline_ms, size)
            answer = await self._admit(seen)
            if isinstance(answer, Admission):
                unmatched.remove(claim)
                self._launch_claim(claim, answer, claim_started)

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
        if candidate.tenant not in self._blocked_tenants:
            self._blocked_tenants[candidate.tenant] = refusal.reason
            self._unblocking.start(
                self._block_tenant(candidate.tenant, refusal), f"tenant {candidate.tenant}"
            )
        return None

    async def _block_tenant(self, tenant: str, refusal: RefusedError) -> None:
        try:
            await refusal.changed()
        finally:
            self._blocked_tenants.pop(tenant, None)
            self._tenant_unblocked.set()

    async def _wait_for_work(self) -> None:
        """Wait until the queue has a request, or a blocked tenant is unblocked."""
        if not self._blocked_tenants:
            await self._queue.wait(POLL_INTERVAL)
            return
        await first_of(self._queue.wait(POLL_INTERVAL), self._tenant_unblocked.wait())


async def _release(admissions: Sequence[Admission]) -> None:
    await asyncio.gather(*(admission.release(Outcome.UNUSED) for admission in admissions))
