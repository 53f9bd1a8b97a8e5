"""The state of one queue: what was accepted, where it is, and its one terminal result (pure; times are passed in).

A request is waiting (pending or delayed), or claimed, or it has a result. Nothing else moves it than the methods here.
"""

from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from dispatcher.broker.memory.order import FairOrder, QueuePosition, Timeline
from dispatcher.broker.memory.results import ResultStore
from dispatcher.broker.message import (
    Claim,
    DeadLetter,
    DispatchCandidate,
    ErrorCode,
    Request,
    Result,
    new_token,
)
from dispatcher.broker.queue import QueueRules, State, Totals
from dispatcher.broker.validation import (
    CANCELLED,
    DEAD_LETTERS_KEPT,
    EXPIRED,
    LONGEST_LEASE_MS,
    POISON,
    RAW_KEPT,
    check_request,
    counted_as,
    deadline_error,
    error_payload,
)


class RequestTableListener(Protocol):
    """Who is told what happened in a book."""

    def claimable(self) -> None:
        """Something may be claimable, now or at another time than before."""

    def done(self) -> None:
        """There is one more result."""

    def cancelled(self, owner: str, fence: str) -> None:
        """A claim's request was cancelled."""


@dataclass(slots=True)
class Entry:
    """A request that has no result yet. `until_ms`: the end of its delay or of its lease."""

    place: QueuePosition
    request: Request
    state: State = State.PENDING
    delivery: int = 0
    attempt: int = 0
    lapses: int = 0
    fence: str = ""
    owner: str = ""
    charge: float = 0.0
    until_ms: int = 0


class RequestTable:
    def __init__(self, listener: RequestTableListener) -> None:
        self._listener = listener
        self._rules = QueueRules()
        self._order = FairOrder()
        self._entries: dict[int, Entry] = {}
        self._numbers: dict[str, dict[str, int]] = {}
        self._waiting, self._delayed, self._leases = Timeline(), Timeline(), Timeline()
        self._counts: Counter[str] = Counter()
        self._dead: deque[DeadLetter] = deque(maxlen=DEAD_LETTERS_KEPT)
        self._last = 0
        self.results = ResultStore(self._forget)

    def set_rules(self, rules: QueueRules) -> None:
        """They hold from now on; a tier stays what it was when the request came."""
        self._rules = rules
        self._order.weights = rules.weights

    def submit(self, now: int, request: Request) -> Request:
        """As `dispatcher.broker.queue.Queue.submit`, but for the idempotency key."""
        check_request(request, self._rules)
        if earlier := self._known(request):
            return earlier
        if request.deadline_ms <= now:
            raise deadline_error(request, now)
        self._last += 1
        tier = request.tier if self._rules.strict_tiers else 0
        accepted = replace(request, created_ms=request.created_ms or now)
        place = QueuePosition(tier, request.tenant, request.deadline_ms, self._last)
        self._entries[self._last] = Entry(place, accepted)
        self._numbers.setdefault(request.id, {})[request.token] = self._last
        self._counts["submitted"] += 1
        self._let_in(self._entries[self._last])
        return accepted

    def heads(self, now: int, limit: int, skip: Collection[str]) -> Sequence[DispatchCandidate]:
        self.tidy(now)
        requests = (self._entries[place.number].request for place in self._order.next(limit, skip))
        return [DispatchCandidate(r.id, r.token, r.tenant, r.deadline_ms, len(r.payload)) for r in requests]

    def claim(self, now: int, limit: int, owner: str, skip: Collection[str]) -> Sequence[Claim]:
        self.tidy(now)
        claims = []
        for place in self._order.next(limit, skip):
            entry = self._entries[place.number]
            entry.charge = self._order.take(place)
            self._waiting.discard(place.deadline_ms, place.number)
            entry.delivery += 1
            entry.fence, entry.owner, entry.state = f"{place.number}.{new_token()}", owner, State.CLAIMED
            self._lease(entry, now)
            claims.append(Claim(entry.request, entry.fence, entry.delivery, entry.attempt, entry.until_ms))
            entry.attempt += 1
        return claims

    def extend(self, now: int, claim: Claim) -> bool:
        entry = self._held(claim)
        if entry is None:
            return False
        self._leases.discard(entry.until_ms, entry.place.number)
        self._lease(entry, now)
        return True

    def finish(self, now: int, claim: Claim, result: Result) -> bool:
        """As `dispatcher.broker.queue.Queue.finish`; said again it is True again."""
        entry = self._held(claim)
        if entry is None:
            return self.results.finished_by(_number(claim), claim.fence)
        self._end(entry, now, result)
        return True

    def retry(self, now: int, claim: Claim, delay_ms: int) -> bool:
        """As `dispatcher.broker.queue.Queue.retry`; said again it is True again."""
        entry = self._held(claim)
        if entry is None:
            return self._released(claim)
        self._drop_claim(entry)
        self._counts["retries"] += 1
        if delay_ms <= 0:
            self._let_in(entry)
        else:
            entry.state, entry.until_ms = State.DELAYED, now + delay_ms
            self._delayed.add(entry.until_ms, entry.place.number)
            self._waiting.add(entry.place.deadline_ms, entry.place.number)
            self._listener.claimable()
        return True

    def release(self, claim: Claim, *, sent: bool) -> bool:
        """As `dispatcher.broker.queue.Queue.release`; said again it is True again."""
        entry = self._held(claim)
        if entry is None:
            return self._released(claim)
        self._drop_claim(entry)
        entry.delivery -= 1
        entry.attempt -= not sent
        self._let_in(entry, credit=entry.charge)
        return True

    def cancel(self, now: int, id: str, token: str | None) -> State:
        self.tidy(now)
        state, number = self.find(id, token)
        if (entry := self._entries.get(number)) is None:
            return state
        if state is State.CLAIMED:
            self._listener.cancelled(entry.owner, entry.fence)
        self._fail(entry, now, ErrorCode.CANCELLED, CANCELLED)
        return state

    def find(self, id: str, token: str | None) -> tuple[State, int]:
        """The state and number of a submission, the newest of its id where no token is given; number 0: none."""
        tokens = self._numbers.get(id, {})
        number = tokens.get(token, 0) if token is not None else max(tokens.values(), default=0)
        if entry := self._entries.get(number):
            return entry.state, number
        return (State.DONE if number else State.UNKNOWN), number

    def reject(self, now: int, raw: bytes, reason: str, id: str | None, code: ErrorCode) -> None:
        self._bury(DeadLetter(reason, raw[:RAW_KEPT], id, now))
        if id is not None:
            self._last += 1
            request = Request(id, b"", now)
            self._numbers.setdefault(id, {})[request.token] = self._last
            self._counts["submitted"] += 1
            self._publish(
                self._last, Result(id, request.token, 0, error_payload(reason), code, reason, 0, now)
            )

    def tidy(self, now: int) -> int:
        """Let due retries in, give lapsed claims back, answer what is past its deadline; how many were touched."""
        self._shorten_leases(now)
        due, lapsed = self._delayed.due(now), self._leases.due(now)
        for number in due:
            entry = self._entries[number]
            self._delayed.discard(entry.until_ms, number)
            self._waiting.discard(entry.place.deadline_ms, number)
            self._let_in(entry)
        for number in lapsed:
            self._lapse(self._entries[number], now)
        overdue = self._waiting.due(now)
        for number in overdue:
            self._fail(self._entries[number], now, ErrorCode.DEADLINE_EXCEEDED, EXPIRED)
        self.results.expire(now)
        return len(due) + len(lapsed) + len(overdue)

    def next_ms(self) -> int | None:
        """When a retry is due or a lease ends, the earliest."""
        times = [at for at in (self._delayed.first(), self._leases.first()) if at is not None]
        return min(times, default=None)

    def dead_letters(self, limit: int) -> Sequence[DeadLetter]:
        return list(self._dead)[:limit]

    def totals(self) -> Totals:
        pending = len(self._waiting) + len(self._leases)
        return Totals(**self._counts, pending=pending, claimed=len(self._leases), delayed=len(self._delayed))

    def _known(self, request: Request) -> Request | None:
        number = self._numbers.get(request.id, {}).get(request.token)
        if number is None:
            return None
        entry = self._entries.get(number)
        return entry.request if entry else request

    def _held(self, claim: Claim) -> Entry | None:
        """The entry, if this claim still holds it: also past the end of its lease, until somebody takes it back."""
        entry = self._entries.get(_number(claim))
        if entry is None or entry.state is not State.CLAIMED or entry.fence != claim.fence:
            return None
        return entry

    def _released(self, claim: Claim) -> bool:
        entry = self._entries.get(_number(claim))
        return entry is not None and entry.state is not State.CLAIMED and entry.fence == claim.fence

    def _lease(self, entry: Entry, now: int) -> None:
        entry.until_ms = now + self._rules.lease_ms
        self._leases.add(entry.until_ms, entry.place.number)

    def _shorten_leases(self, now: int) -> None:
        """A clock that went back leaves no claim to its holder for longer than a lease."""
        latest = now + max(self._rules.lease_ms, LONGEST_LEASE_MS)
        while self._leases and self._leases[-1][0] > latest:
            until_ms, number = self._leases[-1]
            self._leases.discard(until_ms, number)
            self._entries[number].until_ms = latest
            self._leases.add(latest, number)

    def _drop_claim(self, entry: Entry) -> None:
        self._leases.discard(entry.until_ms, entry.place.number)

    def _let_in(self, entry: Entry, credit: float = 0.0) -> None:
        entry.state = State.PENDING
        self._order.put(entry.place, credit)
        self._waiting.add(entry.place.deadline_ms, entry.place.number)
        self._listener.claimable()

    def _lapse(self, entry: Entry, now: int) -> None:
        self._drop_claim(entry)
        entry.fence = ""
        entry.lapses += 1
        entry.state = State.DELAYED  # in no order any more
        self._waiting.add(entry.place.deadline_ms, entry.place.number)
        if entry.place.deadline_ms <= now:
            return
        if entry.lapses >= self._rules.max_deliveries:
            request = entry.request
            self._bury(DeadLetter(POISON, request.payload[:RAW_KEPT], request.id, now))
            self._fail(entry, now, ErrorCode.INFERENCE_ERROR, POISON)
            return
        self._waiting.discard(entry.place.deadline_ms, entry.place.number)
        self._counts["redelivered"] += 1
        self._let_in(entry)

    def _fail(self, entry: Entry, now: int, code: ErrorCode, message: str) -> None:
        request = entry.request
        payload = error_payload(message)
        entry.fence = ""  # no claim may take this ending for its own
        self._end(entry, now, Result(request.id, request.token, 0, payload, code, message, entry.attempt))

    def _end(self, entry: Entry, now: int, result: Result) -> None:
        place = entry.place
        if entry.state is State.PENDING:
            self._order.drop(place)
        self._waiting.discard(place.deadline_ms, place.number)
        self._delayed.discard(entry.until_ms, place.number)
        self._leases.discard(entry.until_ms, place.number)
        del self._entries[place.number]
        request = entry.request
        self._publish(
            place.number, replace(result, id=request.id, token=request.token, finished_ms=now), entry.fence
        )

    def _publish(self, number: int, result: Result, fence: str = "") -> None:
        self._counts[counted_as(result)] += 1
        self.results.put(number, result, fence, result.finished_ms + self._rules.result_ttl_ms)
        self._listener.done()

    def _bury(self, letter: DeadLetter) -> None:
        self._dead.appendleft(letter)
        self._counts["dead_letters"] += 1

    def _forget(self, number: int, result: Result) -> None:
        tokens = self._numbers[result.id]
        del tokens[result.token]
        if not tokens:
            del self._numbers[result.id]


def _number(claim: Claim) -> int:
    return int(claim.fence.partition(".")[0])
