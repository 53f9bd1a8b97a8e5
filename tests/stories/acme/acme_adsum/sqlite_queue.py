"""A queue in an SQLite file: each step is one transaction, in which leases that ended and deadlines that passed come first."""

import asyncio
import heapq
import json
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from acme_adsum.sqlite_store import LOOK, SqliteStore, now_ms
from dispatcher.extension import (
    CANCELLED,
    DEAD_LETTERS_KEPT,
    EXPIRED,
    FINISH_REMEMBERED_MS,
    KEY_CONFLICT,
    LONGEST_LEASE_MS,
    POISON,
    RAW_KEPT,
    Claim,
    ConflictError,
    DeadLetter,
    DispatchCandidate,
    ErrorCode,
    Fault,
    LeasedResult,
    Queue,
    QueueRules,
    Request,
    Result,
    State,
    TenantBacklog,
    Totals,
    check_key,
    check_request,
    counted_as,
    deadline_error,
    digest,
    error_payload,
    exceeded_limit,
    full_error,
    new_token,
)

NEW = """INSERT INTO requests (queue, id, token, tenant, tier, deadline, size, request, state)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'new')"""
HELD = "SELECT count(*), coalesce(sum(size), 0) FROM requests WHERE queue = ?"
NEXT = "SELECT * FROM requests WHERE queue = ? AND state = 'pending' AND tier = ? AND tenant = ? ORDER BY deadline, number"
TURNS = """SELECT DISTINCT tier, tenant, coalesce(at, 0) AS at FROM requests LEFT JOIN turns USING (queue, tier, tenant)
    WHERE queue = ? AND state = 'pending'"""
BACKLOG = """SELECT tenant, count(*), min(deadline) FROM requests LEFT JOIN turns USING (queue, tier, tenant)
    WHERE queue = ? AND state = 'pending' GROUP BY tier, tenant ORDER BY tier, coalesce(at, 0), tenant LIMIT ?"""
DUE = "SELECT * FROM requests WHERE queue = ? AND state = ? AND due <= ? ORDER BY due, number"
LATE = "SELECT * FROM requests WHERE queue = ? AND state IN ('pending', 'delayed') AND deadline <= ?"
CLAMP = "UPDATE requests SET due = ? WHERE queue = ? AND state = 'claimed' AND due > ?"
RESULT = """INSERT INTO results (number, queue, id, token, status, payload, code, message, attempts, finished, expires, claim)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
FIND = """SELECT number, state FROM requests WHERE queue = :queue AND id = :id AND (:token IS NULL OR token = :token)
    UNION SELECT number, 'done' FROM results WHERE queue = :queue AND id = :id AND NOT acked
    AND (:token IS NULL OR token = :token) ORDER BY number DESC LIMIT 1"""
IDLE = """DELETE FROM turns WHERE queue = ? AND tenant != '' AND at <= (
    SELECT at FROM turns AS clock WHERE clock.queue = turns.queue AND clock.tier = turns.tier AND clock.tenant = '')
    AND NOT EXISTS (SELECT 1 FROM requests WHERE requests.queue = turns.queue AND state = 'pending'
        AND requests.tier = turns.tier AND requests.tenant = turns.tenant)"""


class SqliteQueue(Queue):
    """One opened queue."""

    def __init__(self, store: SqliteStore, name: str, rules: QueueRules) -> None:
        self._store, self._name, self._rules = store, name, rules
        self._changes, self._results = f"changes {name}", f"results {name}"
        self._seen = store.count(self._changes)
        self._owners: set[str] = set()

    @property
    def name(self) -> str:
        return self._name

    async def submit(self, request: Request, *, idempotency_key: str | None = None) -> Request:
        check_request(request, self._rules)
        if idempotency_key is not None:
            check_key(idempotency_key)
        with self._store.transaction() as db:
            now, key = now_ms(), (self._name, request.tenant, idempotency_key)
            known = db.execute(
                "SELECT digest, request FROM keys WHERE queue = ? AND tenant = ? AND key = ? AND expires > ?",
                (*key, now),
            ).fetchone()
            if known:
                if known["digest"] != digest(request):
                    raise ConflictError(KEY_CONFLICT)
                return _decoded(known["request"], b"")
            accepted = self._accept(db, now, request)
            if idempotency_key is not None:
                expires = accepted.deadline_ms + self._rules.result_ttl_ms
                kept = (digest(request), _encoded(accepted), expires)
                db.execute("INSERT OR REPLACE INTO keys VALUES (?, ?, ?, ?, ?, ?)", (*key, *kept))
            return accepted

    async def peek(self, limit: int, *, skip_tenants: Collection[str] = ()) -> Sequence[DispatchCandidate]:
        with self._store.transaction() as db:
            self._process_due(db, now_ms())
            self._seen = self._store.count(self._changes)
            rows = self._in_order(db, limit, skip_tenants)
        return [
            DispatchCandidate(row["id"], row["token"], row["tenant"], row["deadline"], row["size"])
            for row in rows
        ]

    async def claim(self, limit: int, *, owner: str, skip_tenants: Collection[str] = ()) -> Sequence[Claim]:
        self._owners.add(owner)
        claims = []
        with self._store.transaction() as db:
            now = now_ms()
            self._process_due(db, now)
            until = now + self._rules.lease_ms
            for row in self._in_order(db, limit, skip_tenants):
                fence = f"{row['number']}.{new_token()}"
                db.execute(
                    "UPDATE requests SET state = 'claimed', due = ?, fence = ?, owner = ?, delivery = delivery + 1, "
                    "attempt = attempt + 1, cost = ? WHERE number = ?",
                    (until, fence, owner, self._charge(db, row), row["number"]),
                )
                [body] = db.execute(
                    "SELECT payload FROM bodies WHERE number = ?", (row["number"],)
                ).fetchone()
                request = _decoded(row["request"], body)
                counts = (row["delivery"] + 1, row["attempt"], until, row["failures"], row["disconnects"])
                claims.append(Claim(request, fence, *counts))
            self._seen = self._store.count(self._changes)
        return claims

    async def extend(self, claims: Sequence[Claim]) -> Sequence[bool]:
        with self._store.transaction() as db:
            until = now_ms() + self._rules.lease_ms
            update = "UPDATE requests SET due = ? WHERE number = ? AND state = 'claimed' AND fence = ?"
            return [
                db.execute(update, (until, _number(claim), claim.fence)).rowcount == 1 for claim in claims
            ]

    async def finish(self, claim: Claim, result: Result, *, dead_letter: str = "") -> bool:
        with self._store.transaction() as db:
            if row := _claimed(db, claim):
                if dead_letter:
                    self._give_up(db, now_ms(), row, dead_letter)
                self._finish(db, now_ms(), row, result)
                return True
            query = "SELECT 1 FROM results WHERE number = ? AND claim = ?"
            return db.execute(query, (_number(claim), claim.fence)).fetchone() is not None

    async def retry(self, claim: Claim, delay_ms: int, *, fault: Fault | None = None) -> bool:
        with self._store.transaction() as db:
            row = _claimed(db, claim)
            if row is None:
                return _was_returned(db, claim)
            self._store.add(f"retries {self._name}")
            if fault is not None:
                counted = (fault is Fault.DISCONNECTED, row["number"])
                update = "UPDATE requests SET failures = failures + 1, disconnects = disconnects + ? WHERE number = ?"
                db.execute(update, counted)
            if delay_ms <= 0:
                self._enqueue(db, row)
            else:
                values = (now_ms() + delay_ms, row["number"])
                db.execute("UPDATE requests SET state = 'delayed', due = ? WHERE number = ?", values)
                self._store.add(self._changes)
            return True

    async def release(self, claims: Sequence[Claim], *, sent: bool = False) -> int:
        ours = 0
        with self._store.transaction() as db:
            for claim in claims:
                if row := _claimed(db, claim):
                    values = (0 if sent else 1, row["number"])
                    db.execute(
                        "UPDATE requests SET delivery = delivery - 1, attempt = attempt - ? WHERE number = ?",
                        values,
                    )
                    self._enqueue(db, row, credit=row["cost"])
                ours += row is not None or _was_returned(db, claim)
        return ours

    async def cancel(self, id: str, token: str | None = None) -> State:
        with self._store.transaction() as db:
            now = now_ms()
            self._process_due(db, now)
            state, number = self._find(db, id, token)
            row = db.execute("SELECT * FROM requests WHERE number = ?", (number,)).fetchone()
            if row is None:
                return state
            if state is State.CLAIMED:
                values = (self._name, row["owner"], row["fence"], now)
                db.execute("INSERT INTO cancellations VALUES (?, ?, ?, ?)", values)
            self._fail(db, now, row, ErrorCode.CANCELLED, CANCELLED)
            return state

    async def sweep(self) -> int:
        with self._store.transaction() as db:
            now = now_ms()
            changed = self._process_due(db, now)
            db.execute("DELETE FROM keys WHERE queue = ? AND expires <= ?", (self._name, now))
            old = now - self._rules.lease_ms  # `extend` has found those by now
            db.execute("DELETE FROM cancellations WHERE queue = ? AND at <= ?", (self._name, old))
            db.execute(IDLE, (self._name,))
            return changed

    async def reject(self, raw: bytes, reason: str, *, id: str | None = None, code: ErrorCode) -> None:
        with self._store.transaction() as db:
            now = now_ms()
            self._add_letter(db, now, reason, raw, id)
            if id is not None:
                number = self._insert(db, request := Request(id, b"", now))
                db.execute("DELETE FROM requests WHERE number = ?", (number,))
                result = Result(id, request.token, 0, error_payload(reason), code, reason, 0, now)
                self._publish(db, number, result, "")

    async def wait(self, timeout: float) -> bool:
        ends = time.monotonic() + timeout
        query = "SELECT min(due) FROM requests WHERE queue = ? AND state IN ('delayed', 'claimed')"
        while True:
            with self._store.transaction() as db:
                [due] = db.execute(query, (self._name,)).fetchone()
            if self._store.count(self._changes) != self._seen or (due is not None and due <= now_ms()):
                return True
            if (left := ends - time.monotonic()) <= 0:
                return False
            await asyncio.sleep(min(LOOK, left))

    async def cancelled(self, timeout: float) -> Collection[str]:
        ends = time.monotonic() + timeout
        while True:
            fences = []
            with self._store.transaction() as db:
                for owner in self._owners:
                    query = "DELETE FROM cancellations WHERE queue = ? AND owner = ? RETURNING fence"
                    fences += [row["fence"] for row in db.execute(query, (self._name, owner)).fetchall()]
            if fences or (left := ends - time.monotonic()) <= 0:
                return fences
            await asyncio.sleep(min(LOOK, left))

    async def state(self, id: str, token: str | None = None) -> tuple[State, Result | None]:
        with self._store.transaction() as db:
            self._process_due(db, now_ms())
            state, number = self._find(db, id, token)
            row = db.execute("SELECT * FROM results WHERE number = ? AND NOT acked", (number,)).fetchone()
        return state, _result(row) if row else None

    async def wait_result(self, id: str, token: str | None = None, *, timeout: float) -> Result | None:
        ends = time.monotonic() + timeout
        while True:
            seen = self._store.count(self._results)
            _, result = await self.state(id, token)
            if result is not None or (left := ends - time.monotonic()) <= 0:
                return result
            await self._store.changed(self._results, seen, left)

    async def lease_results(self, limit: int, *, lease_ms: int = 300_000) -> Sequence[LeasedResult]:
        leased = []
        query = "SELECT * FROM results WHERE queue = ? AND NOT acked AND leased_until <= ? ORDER BY finished, number LIMIT ?"
        with self._store.transaction() as db:
            now = now_ms()
            for row in db.execute(query, (self._name, now, limit)).fetchall():
                fence = f"{row['number']}.{new_token()}"
                values = (fence, now + lease_ms, row["number"])
                db.execute("UPDATE results SET lease = ?, leased_until = ? WHERE number = ?", values)
                leased.append(LeasedResult(_result(row), fence))
        return leased

    async def ack_results(self, leased: Sequence[LeasedResult]) -> int:
        """What is acknowledged stays for two minutes without its payload: `finish` may be repeated."""
        update = "UPDATE results SET acked = 1, payload = NULL, expires = ? WHERE NOT acked AND number = ? AND lease = ?"
        with self._store.transaction() as db:
            expires = now_ms() + FINISH_REMEMBERED_MS
            places = [(expires, int(one.fence.partition(".")[0]), one.fence) for one in leased]
            return sum(db.execute(update, place).rowcount for place in places)

    async def forget(self, id: str, token: str) -> bool:
        update = "UPDATE results SET acked = 1, payload = NULL, expires = ? WHERE NOT acked AND queue = ? AND id = ? AND token = ?"
        with self._store.transaction() as db:
            return bool(db.execute(update, (now_ms() + FINISH_REMEMBERED_MS, self._name, id, token)).rowcount)

    async def dead_letters(self, limit: int) -> Sequence[DeadLetter]:
        query = "SELECT reason, raw, id, at FROM letters WHERE queue = ? ORDER BY number DESC LIMIT ?"
        with self._store.transaction() as db:
            return [DeadLetter(*row) for row in db.execute(query, (self._name, limit)).fetchall()]

    async def totals(self) -> Totals:
        query = "SELECT state, count(*) FROM requests WHERE queue = ? GROUP BY state"
        counters = [
            "submitted",
            "succeeded",
            "failed",
            "expired",
            "cancelled",
            "dropped",
            "retries",
            "redelivered",
            "dead_letters",
        ]
        with self._store.transaction() as db:
            now = {row[0]: row[1] for row in db.execute(query, (self._name,)).fetchall()}
            counted = {name: self._store.count(f"{name} {self._name}") for name in counters}
        pending = {"pending": sum(now.values())} | {name: now.get(name, 0) for name in ("claimed", "delayed")}
        return Totals(**counted, **pending)

    async def backlog(self, limit: int) -> Sequence[TenantBacklog]:
        with self._store.transaction() as db:
            rows = db.execute(BACKLOG, (self._name, limit)).fetchall()
        found: dict[str, TenantBacklog] = {}
        for tenant, waiting, deadline in rows:
            before = found.get(tenant, TenantBacklog(tenant, 0, deadline))
            found[tenant] = TenantBacklog(tenant, before.waiting + waiting, min(before.deadline_ms, deadline))
        return list(found.values())

    # Below: parts of a transaction.

    def _accept(self, db: sqlite3.Connection, now: int, request: Request) -> Request:
        _, number = self._find(db, request.id, request.token)
        if number:
            row = db.execute(
                "SELECT request, payload FROM requests JOIN bodies USING (number) WHERE number = ?", (number,)
            ).fetchone()
            return _decoded(row["request"], row["payload"]) if row else request
        if request.deadline_ms <= now:
            raise deadline_error(request, now)
        held = [
            tuple(db.execute(HELD + more, values).fetchone())
            for more, values in (("", (self._name,)), (" AND tenant = ?", (self._name, request.tenant)))
        ]
        if limit := exceeded_limit(self._rules.limits, held[0], held[1], len(request.payload)):
            raise full_error(limit, request.tenant, self._rules.limits)
        accepted = replace(request, created_ms=request.created_ms or now)
        number = self._insert(db, accepted)
        db.execute("INSERT INTO bodies VALUES (?, ?)", (number, accepted.payload))
        self._enqueue(db, db.execute("SELECT * FROM requests WHERE number = ?", (number,)).fetchone())
        return accepted

    def _insert(self, db: sqlite3.Connection, request: Request) -> int:
        self._store.add(f"submitted {self._name}")
        tier = request.tier if self._rules.strict_tiers else 0
        place = (request.tenant, tier, request.deadline_ms, len(request.payload), _encoded(request))
        number = db.execute(NEW, (self._name, request.id, request.token, *place)).lastrowid
        assert number is not None
        return number

    def _find(self, db: sqlite3.Connection, id: str, token: str | None) -> tuple[State, int]:
        row = db.execute(FIND, {"queue": self._name, "id": id, "token": token}).fetchone()
        return (State(row["state"]), row["number"]) if row else (State.UNKNOWN, 0)

    def _in_order(self, db: sqlite3.Connection, limit: int, skip: Collection[str]) -> list[sqlite3.Row]:
        """Tiers first; in a tier the tenant with the least virtual time (start-time fair queueing, cost 1 / weight)."""
        chosen: list[sqlite3.Row] = []
        turns: list[tuple[int, float, str, sqlite3.Row, Iterator[sqlite3.Row]]] = []
        for tier, tenant, at in db.execute(TURNS, (self._name,)).fetchall():
            if tenant not in skip:
                line: Iterator[sqlite3.Row] = iter(db.execute(NEXT, (self._name, tier, tenant)))
                turns.append((tier, at, tenant, next(line), line))
        heapq.heapify(turns)
        while turns and len(chosen) < limit:
            tier, at, tenant, row, line = heapq.heappop(turns)
            chosen.append(row)
            if (following := next(line, None)) is not None:
                heapq.heappush(turns, (tier, at + self._cost(tenant), tenant, following, line))
        return chosen

    def _charge(self, db: sqlite3.Connection, row: sqlite3.Row) -> float:
        cost = self._cost(row["tenant"])
        clock, at = self._turn(db, row["tier"], ""), self._turn(db, row["tier"], row["tenant"])
        self._set_turn(db, row["tier"], "", max(clock, at))
        self._set_turn(db, row["tier"], row["tenant"], at + cost)
        return cost

    def _enqueue(self, db: sqlite3.Connection, row: sqlite3.Row, credit: float = 0.0) -> None:
        """A tenant that comes back begins where the last one was served: being away saves no turns."""
        tier, tenant = row["tier"], row["tenant"]
        at = self._turn(db, tier, tenant)
        if db.execute(NEXT, (self._name, tier, tenant)).fetchone() is None:
            at = max(at, self._turn(db, tier, ""))
        self._set_turn(db, tier, tenant, at - credit)
        db.execute("UPDATE requests SET state = 'pending', due = 0 WHERE number = ?", (row["number"],))
        self._store.add(self._changes)

    def _turn(self, db: sqlite3.Connection, tier: int, tenant: str) -> float:
        """The virtual time of a tenant; of '', which no tenant is, that of the tier."""
        query = "SELECT at FROM turns WHERE queue = ? AND tier = ? AND tenant = ?"
        row = db.execute(query, (self._name, tier, tenant)).fetchone()
        return float(row["at"]) if row else 0.0

    def _set_turn(self, db: sqlite3.Connection, tier: int, tenant: str, at: float) -> None:
        db.execute("INSERT OR REPLACE INTO turns VALUES (?, ?, ?, ?)", (self._name, tier, tenant, at))

    def _cost(self, tenant: str) -> float:
        weights: Mapping[str, float] = self._rules.weights
        return 1.0 / weights.get(tenant, 1.0)

    def _process_due(self, db: sqlite3.Connection, now: int) -> int:
        latest = now + max(self._rules.lease_ms, LONGEST_LEASE_MS)  # later: the clock went back
        db.execute(CLAMP, (latest, self._name, latest))
        due = db.execute(DUE, (self._name, "delayed", now)).fetchall()
        for row in due:
            self._enqueue(db, row)
        lapsed = db.execute(DUE, (self._name, "claimed", now)).fetchall()
        for row in lapsed:
            self._lapse(db, now, row)
        late = db.execute(LATE, (self._name, now)).fetchall()
        for row in late:
            self._fail(db, now, row, ErrorCode.DEADLINE_EXCEEDED, EXPIRED)
        db.execute("DELETE FROM results WHERE queue = ? AND expires <= ?", (self._name, now))
        return len(due) + len(lapsed) + len(late)

    def _lapse(self, db: sqlite3.Connection, now: int, row: sqlite3.Row) -> None:
        values = (row["number"],)
        db.execute("UPDATE requests SET lapses = lapses + 1, fence = '' WHERE number = ?", values)
        if row["deadline"] > now and row["lapses"] + 1 >= self._rules.max_deliveries:
            self._give_up(db, now, row, POISON)
            self._fail(db, now, row, ErrorCode.INFERENCE_ERROR, POISON)
            return
        if row["deadline"] > now:
            self._store.add(f"redelivered {self._name}")
        self._enqueue(db, row)

    def _fail(
        self, db: sqlite3.Connection, now: int, row: sqlite3.Row, code: ErrorCode, message: str
    ) -> None:
        result = Result("", "", 0, error_payload(message), code, message, row["attempt"])
        self._finish(db, now, row, result, claim="")

    def _finish(
        self,
        db: sqlite3.Connection,
        now: int,
        row: sqlite3.Row,
        result: Result,
        *,
        claim: str | None = None,
    ) -> None:
        for table in ("requests", "bodies"):
            db.execute(f"DELETE FROM {table} WHERE number = ?", (row["number"],))
        ended = replace(result, id=row["id"], token=row["token"], finished_ms=now)
        self._publish(db, row["number"], ended, row["fence"] if claim is None else claim)

    def _publish(self, db: sqlite3.Connection, number: int, result: Result, claim: str) -> None:
        code = result.error_code and result.error_code.value
        said = (result.status_code, result.payload, code, result.error_message, result.attempts)
        times = (result.finished_ms, result.finished_ms + self._rules.result_ttl_ms)
        db.execute(RESULT, (number, self._name, result.id, result.token, *said, *times, claim))
        self._store.add(f"{counted_as(result)} {self._name}")
        self._store.add(self._results)

    def _give_up(self, db: sqlite3.Connection, now: int, row: sqlite3.Row, reason: str) -> None:
        query = "SELECT payload FROM bodies WHERE number = ?"
        [body] = db.execute(query, (row["number"],)).fetchone()
        self._add_letter(db, now, reason, body, row["id"])

    def _add_letter(self, db: sqlite3.Connection, now: int, reason: str, raw: bytes, id: str | None) -> None:
        values = (self._name, reason, raw[:RAW_KEPT], id, now)
        db.execute("INSERT INTO letters (queue, reason, raw, id, at) VALUES (?, ?, ?, ?, ?)", values)
        self._store.add(f"dead_letters {self._name}")
        db.execute(
            "DELETE FROM letters WHERE queue = ? AND number <= (SELECT number FROM letters WHERE queue = ? "
            "ORDER BY number DESC LIMIT 1 OFFSET ?)",
            (self._name, self._name, DEAD_LETTERS_KEPT),
        )


def _encoded(request: Request) -> str:
    return json.dumps({name: value for name, value in asdict(request).items() if name != "payload"})


def _decoded(text: str, payload: bytes) -> Request:
    return Request(**json.loads(text), payload=payload)


def _result(row: sqlite3.Row) -> Result:
    code = ErrorCode(row["code"]) if row["code"] else None
    said = (row["status"], row["payload"], code, row["message"], row["attempts"], row["finished"])
    return Result(row["id"], row["token"], *said)


def _number(claim: Claim) -> int:
    return int(claim.fence.partition(".")[0])


def _claimed(db: sqlite3.Connection, claim: Claim) -> sqlite3.Row | None:
    query = "SELECT * FROM requests WHERE number = ? AND state = 'claimed' AND fence = ?"
    row: sqlite3.Row | None = db.execute(query, (_number(claim), claim.fence)).fetchone()
    return row


def _was_returned(db: sqlite3.Connection, claim: Claim) -> bool:
    query = "SELECT 1 FROM requests WHERE number = ? AND state != 'claimed' AND fence = ?"
    return db.execute(query, (_number(claim), claim.fence)).fetchone() is not None
