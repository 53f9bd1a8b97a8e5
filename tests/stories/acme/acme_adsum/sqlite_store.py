"""The SQLite file of a broker: its tables, transactions, and counters of changes that other processes poll."""

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dispatcher.extension import QueueError

LOOK = 0.02
"""Seconds between two looks for a change of another process."""
BUSY = 5.0
"""Seconds for which a transaction waits for that of another process."""

TABLES = """
CREATE TABLE IF NOT EXISTS requests (
    number INTEGER PRIMARY KEY AUTOINCREMENT, queue TEXT, id TEXT, token TEXT, tenant TEXT, tier INTEGER,
    deadline INTEGER, size INTEGER, request TEXT, state TEXT, due INTEGER DEFAULT 0, fence TEXT DEFAULT '',
    owner TEXT DEFAULT '', delivery INTEGER DEFAULT 0, attempt INTEGER DEFAULT 0, lapses INTEGER DEFAULT 0,
    failures INTEGER DEFAULT 0, disconnects INTEGER DEFAULT 0, cost REAL DEFAULT 0, UNIQUE (queue, id, token));
CREATE INDEX IF NOT EXISTS by_turn ON requests (queue, state, tier, tenant, deadline, number);
CREATE INDEX IF NOT EXISTS by_due ON requests (queue, state, due);
CREATE TABLE IF NOT EXISTS bodies (number INTEGER PRIMARY KEY, payload BLOB);
CREATE TABLE IF NOT EXISTS results (
    number INTEGER PRIMARY KEY, queue TEXT, id TEXT, token TEXT, status INTEGER, payload BLOB, code TEXT,
    message TEXT, attempts INTEGER, finished INTEGER, expires INTEGER, claim TEXT, lease TEXT DEFAULT '',
    leased_until INTEGER DEFAULT 0, acked INTEGER DEFAULT 0);
CREATE INDEX IF NOT EXISTS by_id ON results (queue, id, token);
CREATE INDEX IF NOT EXISTS by_lease ON results (queue, acked, leased_until, finished);
CREATE INDEX IF NOT EXISTS by_end ON results (queue, expires);
CREATE TABLE IF NOT EXISTS keys (
    queue TEXT, tenant TEXT, key TEXT, digest TEXT, request TEXT, expires INTEGER, PRIMARY KEY (queue, tenant, key));
CREATE TABLE IF NOT EXISTS letters (
    number INTEGER PRIMARY KEY AUTOINCREMENT, queue TEXT, reason TEXT, raw BLOB, id TEXT, at INTEGER);
CREATE TABLE IF NOT EXISTS cancellations (queue TEXT, owner TEXT, fence TEXT, at INTEGER);
CREATE TABLE IF NOT EXISTS turns (queue TEXT, tier INTEGER, tenant TEXT, at REAL, PRIMARY KEY (queue, tier, tenant));
CREATE TABLE IF NOT EXISTS counts (name TEXT PRIMARY KEY, count INTEGER);
CREATE TABLE IF NOT EXISTS ledgers (target TEXT PRIMARY KEY, ledger TEXT);
CREATE TABLE IF NOT EXISTS grants (key TEXT, mode TEXT, id TEXT, ends INTEGER, PRIMARY KEY (key, mode, id));
"""


def now_ms() -> int:
    """The broker's clock: the one of the machine."""
    return time.time_ns() // 1_000_000


class SqliteStore:
    """One connection. It blocks the event loop for the time of a transaction; a server's client must not."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._db = sqlite3.connect(path, timeout=BUSY, isolation_level=None)
            self._db.row_factory = sqlite3.Row
            # Whoever is killed loses nothing. A machine that loses power may lose the last commits: FULL prevents that.
            self._db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;" + TABLES)
        except sqlite3.Error as error:
            raise QueueError(f"{path} cannot be opened: {error}") from error

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing; raises QueueError. The time is read inside, or it may be older than what is there."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise QueueError(f"{self._path} cannot be read or written: {error}; nothing was done") from error

    def count(self, name: str) -> int:
        try:
            row = self._db.execute("SELECT count FROM counts WHERE name = ?", (name,)).fetchone()
        except sqlite3.Error as error:
            raise QueueError(f"{self._path} cannot be read: {error}") from error
        return int(row[0]) if row else 0

    def add(self, name: str) -> None:
        """Counts in the running transaction."""
        self._db.execute(
            "INSERT INTO counts VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET count = count + 1", (name,)
        )

    async def changed(self, name: str, seen: int, timeout: float) -> None:
        """Returns when the count is not `seen`, at most after `timeout` seconds."""
        ends = time.monotonic() + timeout
        while self.count(name) == seen and (left := ends - time.monotonic()) > 0:
            await asyncio.sleep(min(LOOK, left))
