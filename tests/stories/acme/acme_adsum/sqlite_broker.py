"""A broker in an SQLite file, for processes of one machine: acme-sqlite:///path/to/file.db"""

import json
import sqlite3
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from acme_adsum.sqlite_queue import SqliteQueue
from acme_adsum.sqlite_store import SqliteStore, now_ms
from dispatcher.extension import (
    Broker,
    Grant,
    Ledger,
    LedgerState,
    Queue,
    QueueError,
    QueueRules,
    Quota,
    QuotaMode,
    Quotas,
    Reading,
    Refusal,
    Reservation,
    TargetLedger,
    checked_name,
    checked_rules,
    new_token,
)

Part = TypeVar("Part")

LEASE_MS = 3_000
"""Of a reservation without a heartbeat."""


class SqliteLedger(Ledger):
    """The ledger of a target is one JSON value, replaced in a transaction."""

    def __init__(self, store: SqliteStore, target: str) -> None:
        self._store, self._target, self._released = store, target, f"released {target}"
        self._began: dict[str, int] = {}

    @property
    def lease_ms(self) -> int:
        return LEASE_MS

    async def now_ms(self) -> int:
        return now_ms()

    async def state(self) -> LedgerState:
        with self._ledger() as (ledger, now):
            return LedgerState(now, ledger.in_flight)

    async def reserve(self, reading: Reading, units: int) -> Reservation | Refusal:
        with self._ledger() as (ledger, now):
            answer = ledger.reserve(now, reading, units, new_token())
            if isinstance(answer, Refusal):
                return replace(answer, seen=self._store.count(self._released))
            self._began[answer.id] = now
            return answer

    async def heartbeat(self, reservations: list[Reservation]) -> None:
        with self._ledger() as (ledger, now):
            for reservation in reservations:
                # One that was released while its heartbeat was on the way must not be counted again.
                if (began := self._began.get(reservation.id)) is not None:
                    ledger.heartbeat(now, reservation, began)

    async def release(self, reservation: Reservation, *, accepted: bool) -> None:
        self._began.pop(reservation.id, None)
        with self._ledger() as (ledger, _):
            if ledger.release(reservation.id, accepted=accepted):
                self._store.add(self._released)

    async def report_overload(self, retry_after_ms: int = 0) -> None:
        with self._ledger() as (ledger, now):
            ledger.report_overload(now, retry_after_ms)

    async def wait(self, timeout: float, *, seen: int = -1) -> None:
        known = self._store.count(self._released) if seen == -1 else seen
        await self._store.changed(self._released, known, timeout)

    @contextmanager
    def _ledger(self) -> Iterator[tuple[TargetLedger, int]]:
        with self._store.transaction() as db:
            row = db.execute("SELECT ledger FROM ledgers WHERE target = ?", (self._target,)).fetchone()
            ledger = TargetLedger.load(LEASE_MS, json.loads(row[0])) if row else TargetLedger(LEASE_MS)
            now = now_ms()
            if ledger.drop_lapsed(now):
                self._store.add(self._released)
            yield ledger, now
            values = (self._target, json.dumps(ledger.dump()))
            db.execute("INSERT OR REPLACE INTO ledgers VALUES (?, ?)", values)


class SqliteQuotas(Quotas):
    """One row for each grant, with the time when it ends."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    async def now_ms(self) -> int:
        return now_ms()

    async def acquire(self, key: str, quota: Quota) -> Grant | Refusal:
        with self._store.transaction() as db:
            now = now_ms()
            db.execute("DELETE FROM grants WHERE ends <= ?", (now,))
            query = "SELECT count(*), min(ends) FROM grants WHERE key = ? AND mode = ?"
            used, ends = db.execute(query, (key, quota.mode)).fetchone()
            if used >= quota.limit:
                return Refusal(f"the quota of {key} is used up", ends, self._store.count("grants"))
            grant = Grant(key, new_token(), quota)
            _keep(db, grant, now)
            return grant

    async def heartbeat(self, grants: Collection[Grant]) -> None:
        with self._store.transaction() as db:
            now = now_ms()
            for grant in grants:
                if grant.quota.mode is QuotaMode.CONCURRENCY:
                    _keep(db, grant, now)

    async def release(self, grant: Grant, *, used: bool) -> None:
        if grant.quota.mode is QuotaMode.RATE and used:
            return
        with self._store.transaction() as db:
            values = (grant.key, grant.quota.mode, grant.id)
            if db.execute("DELETE FROM grants WHERE key = ? AND mode = ? AND id = ?", values).rowcount:
                self._store.add("grants")

    async def wait(self, timeout: float, *, seen: int = -1) -> None:
        await self._store.changed("grants", self._store.count("grants") if seen == -1 else seen, timeout)


def _keep(db: sqlite3.Connection, grant: Grant, now: int) -> None:
    rate = grant.quota.mode is QuotaMode.RATE
    ends = now + (grant.quota.window_ms if rate else grant.quota.lease_ms)
    db.execute(
        "INSERT OR REPLACE INTO grants VALUES (?, ?, ?, ?)", (grant.key, grant.quota.mode, grant.id, ends)
    )


class SqliteBroker(Broker):
    """One connection to the file, for all that is opened here."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    async def now_ms(self) -> int:
        return now_ms()

    async def ping(self) -> bool:
        try:
            self._store.count("")
        except QueueError:
            return False
        return True

    def queue(self, name: str, rules: QueueRules) -> AbstractAsyncContextManager[Queue]:
        return _entered(SqliteQueue(self._store, checked_name(name), checked_rules(name, rules)))

    def ledger(self, target: str) -> AbstractAsyncContextManager[Ledger]:
        return _entered(SqliteLedger(self._store, target))

    def quotas(self) -> AbstractAsyncContextManager[Quotas]:
        return _entered(SqliteQuotas(self._store))


@asynccontextmanager
async def _entered(part: Part) -> AsyncIterator[Part]:
    """Nothing is opened: all parts use the broker's connection."""
    yield part


@asynccontextmanager
async def _opened(path: Path) -> AsyncIterator[Broker]:
    store = SqliteStore(path)
    try:
        yield SqliteBroker(store)
    finally:
        store.close()


def open_broker(url: str) -> AbstractAsyncContextManager[Broker]:
    parts = urlsplit(url)
    if parts.netloc or parts.path in ("", "/"):
        raise ValueError("it names no file; expected acme-sqlite:///path/to/file.db")
    return _opened(Path(unquote(parts.path)))
