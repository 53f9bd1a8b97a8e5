"""Membership in a table of an SQLite file, for workers and readers on one machine: acme-table:///path/to/file.db"""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from discovery.extension import Candidate, ComponentKey, Instance, InstanceStatus, Report, Snapshot, Source
from registry.extension import Membership, RegistrationError

log = logging.getLogger(__name__)

BEAT = 1.0
"""Seconds between two signs of life of a worker."""
SILENCE = 5.0
"""Seconds without a sign of life after which a worker counts as dead."""
LOOK = 0.1
"""Seconds between two looks of a reader."""

TABLE = """CREATE TABLE IF NOT EXISTS workers (
    namespace TEXT, component TEXT, id TEXT, incarnation TEXT, address TEXT, port INTEGER, status TEXT, seen REAL,
    PRIMARY KEY (namespace, component, id))"""
WRITE = """INSERT INTO workers VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (namespace, component, id) DO UPDATE
    SET incarnation = excluded.incarnation, address = excluded.address, port = excluded.port,
        status = excluded.status, seen = excluded.seen
    WHERE incarnation = excluded.incarnation OR seen < ?"""
SEEN = "UPDATE workers SET seen = ? WHERE namespace = ? AND component = ? AND id = ? AND incarnation = ?"
DELETE = "DELETE FROM workers WHERE namespace = ? AND component = ? AND id = ? AND incarnation = ?"
SELECT = """SELECT id, incarnation, address, port, status FROM workers
    WHERE namespace = ? AND component = ? AND seen >= ?"""
COMPONENTS = "SELECT DISTINCT namespace, component FROM workers WHERE seen >= ?"


def path_of(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc or parts.path in ("", "/"):
        raise ValueError(f"{url!r} names no file; expected acme-table:///path/to/file.db")
    return Path(unquote(parts.path))


class TableSource(Source):
    """The truth is the table. It looks there ten times a second."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def run(self, key: ComponentKey, report: Report) -> None:
        told: Snapshot | None = None
        while True:
            try:
                snapshot = await asyncio.to_thread(self._snapshot, key)
            except sqlite3.Error as error:
                report.degraded(f"{self._path} cannot be read: {error}")
                told = None
            else:
                if snapshot != told:
                    report(snapshot)
                told = snapshot
            await asyncio.sleep(LOOK)

    def suspect(self, key: ComponentKey, instance_id: str) -> None:
        """The next look comes soon enough."""

    async def explain(self, key: ComponentKey) -> list[Candidate]:
        return []  # the snapshot says all there is

    async def components(self) -> list[ComponentKey]:
        rows = await asyncio.to_thread(self._rows, COMPONENTS, time.time() - SILENCE)
        return [ComponentKey(namespace, component) for namespace, component in rows]

    async def aclose(self) -> None:
        """No connection is kept."""

    def _snapshot(self, key: ComponentKey) -> Snapshot:
        candidates = []
        for id_, incarnation, address, port, status in self._rows(SELECT, *key, time.time() - SILENCE):
            instance = Instance(id_, *key, address, port, incarnation, InstanceStatus(status))
            candidates.append(Candidate(id_, instance))
        return Snapshot(candidates)

    def _rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        if not self._path.exists():
            return []  # no worker has made it yet
        with closing(sqlite3.connect(self._path)) as database:
            return database.execute(statement, values).fetchall()


class TableMembership(Membership):
    """One row of the table, and a task that keeps it alive."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._instance: Instance | None = None
        self._beating: asyncio.Task[None] | None = None

    async def join(self, instance: Instance) -> Instance:
        await asyncio.to_thread(self._write, instance)
        self._instance = instance
        self._beating = asyncio.create_task(self._beat(instance))
        return instance

    def update(self, instance: Instance) -> None:
        self._write(instance)

    async def leave(self) -> None:
        if self._beating is not None and self._instance is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])
            instance, self._instance = self._instance, None
            await asyncio.to_thread(self._execute, DELETE, *_identity(instance))

    async def _beat(self, instance: Instance) -> None:
        while True:
            await asyncio.sleep(BEAT)
            try:
                await asyncio.to_thread(self._execute, SEEN, time.time(), *_identity(instance))
            except RegistrationError as error:
                log.warning("%s; readers take this worker for dead after %g seconds", error, SILENCE)

    def _write(self, instance: Instance) -> None:
        now = time.time()
        place = (instance.address, instance.port, instance.status.value)
        if not self._execute(WRITE, *_identity(instance), *place, now, now - SILENCE):
            raise RegistrationError(f"the instance id {instance.id!r} is taken in {self._path}")

    def _execute(self, statement: str, *values: object) -> int:
        """The number of rows that changed."""
        try:
            with closing(sqlite3.connect(self._path)) as database, database:
                database.execute(TABLE)
                return database.execute(statement, values).rowcount
        except sqlite3.Error as error:
            raise RegistrationError(f"{self._path} cannot be written: {error}") from error


def _identity(instance: Instance) -> tuple[str, str, str, str]:
    return instance.namespace, instance.component, instance.id, instance.incarnation


def open_source(url: str) -> TableSource:
    return TableSource(path_of(url))


def open_membership(url: str) -> Callable[[], TableMembership]:
    path = path_of(url)
    return lambda: TableMembership(path)
