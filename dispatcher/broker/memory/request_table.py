"""The state of every request of one queue, from its submission to its single terminal result; times are passed in.

A request is waiting (pending or delayed), or claimed, or has a result. Only the methods here change that.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from dispatcher.broker.contract import validation
from dispatcher.broker.contract.ledger import Changes
from dispatcher.broker.contract.message import (
    Claim,
    DeadLetter,
    DispatchCandidate,
    ErrorCode,
    Fault,
    Request,
    Result,
    new_token,
)
from dispatcher.broker.contract.queue import QueueRules, State, TenantBacklog, Totals
from dispatcher.broker.memory.order import FairOrder, QueuePosition, Timeline
from dispatcher.broker.memory.results import ResultStore


@dataclass(slots=True)
class Entry:
    """A request without a result. `until_ms`: the end of its delay or of its lease. `cost`: what its claim charged."""

    position: QueuePosition
    request: Request
    state: State = State.PENDING
    delivery: int = 0
    attempt: int = 0
    lapses: int = 0
    failures: int = 0
    disconnects: int = 0
    fence: str = ""
    owner: str = ""
    cost: float = 0.0
    until_ms: int = 0


class RequestTable:
    """`changes`: something may be claimable, or will be at another time. `finished`: there is one more result.

    `on_cancelled` is called with the owner and the fence of a claim whose request was cancelled.
    """

    def __init__(self, on_cancelled: Callable[[str, str], None]) -> None:
        self.changes, self.finished = Changes(), Changes()
        self._on_cancelled = on_cancelled
        self._rules = QueueRules()
        self._order = FairOrder()
        self._entries: dict[int, Entry] = {}
        self._numbers: dict[str, dict[str, int]] = {}
        """By id, then by token; also of requests whose result is kept."""
        self._waiting, self._delayed, self._leases = Timeline(), Timeline(), Timeline()
        self._counts: Counter[str] = Counter()
        self._held: Counter[str | None] = Counter()
        self._held_bytes: Counter[str | None] = Counter()
        """Requests without a result, and bytes of their payloads, by tenant; None: all."""
        self._dead: deque[DeadLetter] = deque(maxlen=validation.DEAD_LETTERS_KEPT)
        self._last = 0
        self.results = ResultStore(self._forget)

    def set_rules(self, rules: QueueRules) -> None:
        """Apply rules from now on; requests that are already here keep their tier."""
        self._rules = rules
        self._order.weights = rules.weights

    def submit(self, now: int, request: Request) -> Request:
        """`dispatcher.broker.contract.queue.Queue.submit` without the idempotency key."""
        validation.check_request(request, self._rules)
        if (number := self._numbers.get(request.id, {}).get(request.token)) is not None:
            known = self._entries.get(number)
            return known.request if known else request
        if request.deadline_ms <= now:
            raise validation.deadline_error(request, now)
        self._check_limits(request)
        tier = request.tier if self._rules.strict_tiers else 0
        accepted = replace(request, created_ms=request.created_ms or now)
        number = self._count(accepted)
        entry = Entry(QueuePosition(tier, request.tenant, request.deadline_ms, number), accepted)
        self._entries[number] = entry
        self._hold(request, 1)
        self._move(entry, State.PENDING)
        return accepted

    def peek(self, now: int, limit: int, skip: Collection[str]) -> Sequence[DispatchCandidate]:
        self.process_due(now)
        requests = (self._entries[position.number].request for position in self._order.peek(limit, skip))
        return [DispatchCandidate(r.id, r.token, r.tenant, r.deadline_ms, len(r.payload)) for r in requests]

    def claim(self, now: int, limit: int, owner: str, skip: Collection[str]) -> Sequence[Claim]:
        self.process_due(now)
        claims = []
        for position in self._order.peek(limit, skip):
            entry = self._entries[position.number]
            entry.cost = self._order.serve(position)
            entry.delivery += 1
            # The number finds the entry; the random part makes the fence unique among all claims of the request.
            entry.fence, entry.owner = f"{position.number}.{new_token()}", owner
            self._move(entry, State.CLAIMED, now + self._rules.lease_ms)
            counts = (entry.delivery, entry.attempt, entry.until_ms, entry.failures, entry.disconnects)
            claims.append(Claim(entry.request, entry.fence, *counts))
            # Counted before it is sent: a holder that is killed right after sending could not count it any more.
            entry.attempt += 1
        return claims

    def extend(self, now: int, claim: Claim) -> bool:
        entry = self._claimed(claim)
        if entry is None:
            return False
        self._move(entry, State.CLAIMED, now + self._rules.lease_ms)
        return True

    def finish(self, now: int, claim: Claim, result: Result, dead_letter: str) -> bool:
        """`dispatcher.broker.contract.queue.Queue.finish`; True again if repeated."""
        entry = self._claimed(claim)
        if entry is None:
            return self.results.finished_by(_number(claim), claim.fence)
        if dead_letter:
            self._give_up(entry, now, dead_letter)
        self._finish(entry, now, result)
        return True

    def retry(self, now: int, claim: Claim, delay_ms: int, fault: Fault | None) -> bool:
        """`dispatcher.broker.contract.queue.Queue.retry`; True again if repeated."""
        entry = self._claimed(claim)
        if entry is None:
            return self._was_returned(claim)
        self._counts["retries"] += 1
        entry.failures += fault is not None
        entry.disconnects += fault is Fault.DISCONNECTED
        self._move(entry, State.DELAYED if delay_ms > 0 else State.PENDING, now + delay_ms)
        return True

    def release(self, claim: Claim, *, sent: bool) -> bool:
        """`dispatcher.broker.contract.queue.Queue.release` for one claim; True again if repeated."""
        entry = self._claimed(claim)
        if entry is None:
            return self._was_returned(claim)
        entry.delivery -= 1
        entry.attempt -= not sent
        self._move(entry, State.PENDING, credit=entry.cost)
        return True

    def cancel(self, now: int, id: str, token: str | None) -> State:
        self.process_due(now)
        state, number = self.find(id, token)
        if (entry := self._entries.get(number)) is None:
            return state
        if state is State.CLAIMED:
            self._on_cancelled(entry.owner, entry.fence)
        self._fail(entry, now, ErrorCode.CANCELLED, validation.CANCELLED)
        return state

    def find(self, id: str, token: str | None) -> tuple[State, int]:
        """The state and number of a submission, without a token the newest of its id; number 0 if there is none."""
        tokens = self._numbers.get(id, {})
        # a dict keeps the order of insertion: the last number is the highest
        number = tokens.get(token, 0) if token is not None else next(reversed(tokens.values()), 0)
        if entry := self._entries.get(number):
            return entry.state, number
        return (State.DONE if number else State.UNKNOWN), number

    def reject(self, now: int, raw: bytes, reason: str, id: str | None, code: ErrorCode) -> None:
        self._add_dead_letter(raw, reason, id, now)
        if id is not None:
            request = Request(id, b"", now)
            result = Result(id, request.token, 0, validation.error_payload(reason), code, reason, 0, now)
            self._publish(self._count(request), result)

    def process_due(self, now: int) -> int:
        """Enqueue due retries and lapsed claims, finish expired requests; how many were changed.

        Every operation that reads the order does this first: no timer decides what is visible.
        """
        self._clamp_leases(now)
        due, lapsed = self._delayed.due(now), self._leases.due(now)
        for number in due:
            self._move(self._entries[number], State.PENDING)
        for number in lapsed:
            self._lapse(self._entries[number], now)
        overdue = self._waiting.due(now)
        for number in overdue:
            self._fail(self._entries[number], now, ErrorCode.DEADLINE_EXCEEDED, validation.EXPIRED)
        self.results.expire(now)
        return len(due) + len(lapsed) + len(overdue)

    def next_due_ms(self) -> int | None:
        """When the next retry is due or the next lease ends."""
        times = [at for at in (self._delayed.first(), self._leases.first()) if at is not None]
        return min(times, default=None)

    def dead_letters(self, limit: int) -> Sequence[DeadLetter]:
        return list(self._dead)[:limit]

    def totals(self) -> Totals:
        pending = len(self._waiting) + len(self._leases)
        return Totals(**self._counts, pending=pending, claimed=len(self._leases), delayed=len(self._delayed))

    def backlog(self, limit: int) -> list[TenantBacklog]:
        return self._order.backlog(limit)

    def _check_limits(self, request: Request) -> None:
        limits, tenant, size = self._rules.limits, request.tenant, len(request.payload)
        held = [(self._held[place], self._held_bytes[place]) for place in (None, tenant)]
        if limit := validation.exceeded_limit(limits, held[0], held[1], size):
            raise validation.full_error(limit, tenant, limits)

    def _hold(self, request: Request, sign: int) -> None:
        for place in (None, request.tenant):
            self._held[place] += sign
            self._held_bytes[place] += sign * len(request.payload)
            if not self._held[place]:
                del self._held[place], self._held_bytes[place]

    def _count(self, request: Request) -> int:
        """The number of a new submission."""
        self._last += 1
        self._numbers.setdefault(request.id, {})[request.token] = self._last
        self._counts["submitted"] += 1
        return self._last

    def _claimed(self, claim: Claim) -> Entry | None:
        """The entry, if this claim still holds it.

        A claim holds its request also after its lease has ended, until `process_due` takes it back: an answer that is
        a little late is better than a second run of the same request.
        """
        entry = self._entries.get(_number(claim))
        if entry is None or entry.state is not State.CLAIMED or entry.fence != claim.fence:
            return None
        return entry

    def _was_returned(self, claim: Claim) -> bool:
        """Whether this claim has returned the request already. The fence stays in the entry until the next claim."""
        entry = self._entries.get(_number(claim))
        return entry is not None and entry.state is not State.CLAIMED and entry.fence == claim.fence

    def _move(self, entry: Entry, state: State, until_ms: int = 0, credit: float = 0.0) -> None:
        """`until_ms`: the end of the delay or of the lease. `credit`: as in `FairOrder.add`."""
        self._leave(entry)
        entry.state, entry.until_ms = state, until_ms
        number, deadline_ms = entry.position.number, entry.position.deadline_ms
        if state is State.CLAIMED:
            self._leases.add(until_ms, number)
            return
        self._waiting.add(deadline_ms, number)
        if state is State.DELAYED:
            self._delayed.add(until_ms, number)
        else:
            self._order.add(entry.position, credit)
        self.changes.tell()

    def _leave(self, entry: Entry) -> None:
        """Take the entry off every line but the order, which `serve` and `remove` change."""
        self._waiting.discard(entry.position.deadline_ms, entry.position.number)
        for line in (self._delayed, self._leases):
            line.discard(entry.until_ms, entry.position.number)

    def _clamp_leases(self, now: int) -> None:
        """Cut leases that are longer than any lease can be: the clock went back since they were written.

        Unclamped, the requests of a killed dispatcher would stay claimed until the clock reaches those times again.
        """
        latest = now + max(self._rules.lease_ms, validation.LONGEST_LEASE_MS)
        while self._leases and self._leases[-1][0] > latest:
            until_ms, number = self._leases[-1]
            self._leases.discard(until_ms, number)
            self._entries[number].until_ms = latest
            self._leases.add(latest, number)

    def _lapse(self, entry: Entry, now: int) -> None:
        """End a claim whose lease has ended: its holder is taken for dead. A repeated cause becomes a dead letter."""
        entry.fence = ""
        entry.lapses += 1
        if entry.position.deadline_ms > now and entry.lapses < self._rules.max_deliveries:
            self._counts["redelivered"] += 1
            self._move(entry, State.PENDING)
            return
        self._leave(entry)
        entry.state = State.DELAYED  # it is not in the order
        self._waiting.add(entry.position.deadline_ms, entry.position.number)
        if entry.position.deadline_ms > now:  # else `process_due` finishes it as expired
            self._give_up(entry, now, validation.POISON)
            self._fail(entry, now, ErrorCode.INFERENCE_ERROR, validation.POISON)

    def _fail(self, entry: Entry, now: int, code: ErrorCode, message: str) -> None:
        request = entry.request
        entry.fence = ""  # else a claim that repeats `finish` would learn that this result is its own
        payload = validation.error_payload(message)
        self._finish(entry, now, Result(request.id, request.token, 0, payload, code, message, entry.attempt))

    def _finish(self, entry: Entry, now: int, result: Result) -> None:
        if entry.state is State.PENDING:
            self._order.remove(entry.position)
        self._leave(entry)
        number, request = entry.position.number, entry.request
        del self._entries[number]
        self._hold(request, -1)
        self._publish(
            number, replace(result, id=request.id, token=request.token, finished_ms=now), entry.fence
        )

    def _publish(self, number: int, result: Result, fence: str = "") -> None:
        self._counts[validation.counted_as(result)] += 1
        self.results.add(number, result, fence, result.finished_ms + self._rules.result_ttl_ms)
        self.finished.tell()

    def _give_up(self, entry: Entry, now: int, reason: str) -> None:
        self._add_dead_letter(entry.request.payload, reason, entry.request.id, now)

    def _add_dead_letter(self, raw: bytes, reason: str, id: str | None, now: int) -> None:
        self._dead.appendleft(DeadLetter(reason, raw[: validation.RAW_KEPT], id, now))
        self._counts["dead_letters"] += 1

    def _forget(self, number: int, result: Result) -> None:
        tokens = self._numbers[result.id]
        del tokens[result.token]
        if not tokens:
            del self._numbers[result.id]


def _number(claim: Claim) -> int:
    return int(claim.fence.partition(".")[0])
