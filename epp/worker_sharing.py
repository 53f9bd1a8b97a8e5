"""Has one of a picker's processes follow discovery and scrape the workers for all of them; another one takes over if it fails.

Who does is the process that runs for longest. Each writes into one page of shared memory when it started and when it was last
alive, so all see the same, without a message or a lock. One that is killed is missed when its connections break, one that stands
still after SILENT. Two may do it for a moment: that costs some GETs, and what they find out is the same.
"""

import asyncio
import logging
import mmap
import os
import struct
import time
from functools import partial
from pathlib import Path
from typing import Any, Final, Never

import msgspec

from adsum.tasks import ResourceOwner, background, first_of
from discovery import AdsumError
from epp.config.declared_flags import MOST_PROCESSES
from epp.config.sibling_processes import Siblings
from epp.endpoints.change_hooks import unheard
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Key
from epp.endpoints.worker_facts import Fact, FactCodec, WorkerFacts
from epp.worker_discovery import WorkerDiscovery
from epp.worker_scraping import WorkerScraping

log = logging.getLogger(__name__)

SILENT: Final = 0.5
"""Seconds without a sign of life after which a process is taken to stand still; its loop may be busy for a while."""
_LOOK: Final = 0.1
_TELL: Final = 0.01
"""Seconds for which facts are collected into one message."""
_AGAIN: Final = 1.0
"""Seconds between two attempts to follow a source that does not answer."""
_PART: Final = 256
"""Facts in one message of all that is known: others run between two of them."""
_MOST_MESSAGE: Final = 64 * 1024 * 1024
_MOST_UNREAD: Final = 16 * 1024 * 1024
"""Bytes that wait for one process: it is told all anew when it reads again."""
_LENGTH: Final = struct.Struct("!I")
_SLOT: Final = struct.Struct("=qq")
_FILE: Final = "alive"
_ALL_TOLD: Final[Fact] = ("told", ("", ""), ())


class SignsOfLife:
    """When each process began, and when it was last alive, by its place; in shared memory, times by the machine's clock."""

    def __init__(self, file: Path, place: int) -> None:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, MOST_PROCESSES * _SLOT.size)
            self._memory = mmap.mmap(descriptor, MOST_PROCESSES * _SLOT.size)
        finally:
            os.close(descriptor)
        self._place = place
        self._dead: set[tuple[int, int]] = set()
        """Lives whose connection broke, by place and when they began. # bounded: by the processes, see `first`."""
        self._since = self._beat_at = 0

    def begin(self) -> None:
        """From now on this one counts; after it stood still, as one that has just begun."""
        self._since = self._beat_at = time.monotonic_ns()
        self._write()

    def beat(self) -> None:
        now = time.monotonic_ns()
        if now - self._beat_at > SILENT * 1e9:
            self.begin()  # others have taken over
        self._beat_at = now
        self._write()

    def end(self) -> None:
        _SLOT.pack_into(self._memory, (self._place - 1) * _SLOT.size, 0, 0)
        self._memory.close()

    def first(self) -> int:
        """The place of the one that runs for longest."""
        now, alive = time.monotonic_ns(), [(self._since, self._place)]
        dead = set()
        for at in range(MOST_PROCESSES):
            since, beat_at = _SLOT.unpack_from(self._memory, at * _SLOT.size)
            if (at + 1, since) in self._dead:
                dead.add((at + 1, since))
            elif since and now - beat_at <= SILENT * 1e9:
                alive.append((since, at + 1))
        self._dead = dead
        return min(alive)[1]

    def lost(self, place: int) -> None:
        """Its connection broke: nobody waits for its next sign."""
        since, _ = _SLOT.unpack_from(self._memory, (place - 1) * _SLOT.size)
        self._dead.add((place, since))

    def _write(self) -> None:
        _SLOT.pack_into(self._memory, (self._place - 1) * _SLOT.size, self._since, self._beat_at)


class WorkerSharing(ResourceOwner):
    """An async context manager; once entered, the workers are known, from discovery or from a sibling. `codec`: of facts."""

    def __init__(
        self,
        siblings: Siblings,
        datastore: Datastore,
        codec: FactCodec,
        workers: WorkerDiscovery,
        scraping: WorkerScraping,
    ) -> None:
        self._siblings = siblings
        self._datastore = datastore
        self._codec = codec
        self._workers, self._scraping = workers, scraping
        self._facts = WorkerFacts(datastore, workers.on_event)
        self._signs = SignsOfLife(siblings.folder / _FILE, siblings.place)
        self._ready = asyncio.Event()
        self._changed = asyncio.Event()
        """Set when another process may be the first."""
        self._from = siblings.place
        self._hearers: set[asyncio.StreamWriter] = set()
        # bounded: by what is found out within _TELL
        self._untold: list[Fact] = []
        self._upstream: asyncio.StreamWriter | None = None

    def describe(self) -> dict[str, Any]:
        """For /status: which process follows and scrapes the workers."""
        return {"scraped_by": self._from}

    async def _open(self) -> None:
        self._stack.callback(self._signs.end)
        # asyncio removes the socket of a life before this one
        path = self._siblings.workers_path(self._siblings.place)
        server = await asyncio.start_unix_server(self._serve, path)
        self._stack.callback(server.close)
        self._stack.callback(self._stop_telling)
        self._signs.begin()
        self._start(self._beat())
        self._start(self._run())
        self._stack.callback(lambda: setattr(self._datastore, "on_fact", unheard))
        ready = asyncio.create_task(self._ready.wait())
        try:
            # whichever fails at the start says why
            await first_of(ready, self.wait_for_failure())
        finally:
            ready.cancel()

    async def _beat(self) -> Never:
        while True:
            self._signs.beat()
            if self._signs.first() != self._from:
                self._changed.set()
            await asyncio.sleep(_LOOK)

    async def _run(self) -> Never:
        while True:
            self._changed.clear()
            self._from = self._signs.first()
            if self._from == self._siblings.place:
                await self._find_out()
            else:
                await first_of(self._hear_from(self._from), self._changed.wait())
                await asyncio.sleep(_TELL)

    # The one that finds out

    async def _find_out(self) -> None:
        """Until another one runs for longer."""
        if self._ready.is_set():
            log.info("this process follows and scrapes the workers from now on")
        self._facts.tell = self._tell
        self._datastore.on_suspect.clear()
        try:
            async with self._scraping, background(self._tell_overdue()):
                await first_of(self._follow(), self._changed.wait(), self._scraping.wait_for_failure())
        finally:
            self._facts.tell = None
            self._stop_telling()

    async def _follow(self) -> None:
        while True:
            try:
                async with self._workers:
                    self._ready.set()
                    await self._workers.wait_for_failure()
            except (AdsumError, OSError) as error:
                if not self._ready.is_set():
                    raise
                log.warning("the workers cannot be followed: %s; those that are known stay", error)
            await asyncio.sleep(_AGAIN)

    def _tell(self, fact: Fact) -> None:
        if not self._hearers:
            return
        if not self._untold:
            asyncio.get_running_loop().call_later(_TELL, self._flush)
        self._untold.append(fact)

    def _flush(self) -> None:
        facts, self._untold = self._untold, []
        if facts:
            message = self._message(facts)
            for one in list(self._hearers):
                self._send(one, message)

    async def _tell_overdue(self) -> Never:
        while True:
            for fact in self._facts.overdue(time.monotonic()):
                self._tell(fact)
            await asyncio.sleep(2.0 * _TELL)

    def _message(self, facts: list[Fact]) -> bytes:
        data = self._codec.encode(facts)
        return _LENGTH.pack(len(data)) + data

    def _send(self, writer: asyncio.StreamWriter, message: bytes) -> None:
        if writer.transport.get_write_buffer_size() > _MOST_UNREAD:
            self._hearers.discard(writer)
            writer.transport.abort()
        else:
            writer.write(message)

    def _stop_telling(self) -> None:
        for one in list(self._hearers):
            one.close()
        self._hearers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One sibling hears, and says what Envoy could not reach."""
        try:
            if self._facts.tell is None or not self._ready.is_set():
                return
            await self._tell_all(writer)
            while True:
                for _, key, _ in await self._read(reader):
                    self._suspected(key)
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            self._hearers.discard(writer)
            writer.close()

    async def _tell_all(self, writer: asyncio.StreamWriter) -> None:
        """In parts, each as it is when it is sent, at the sibling's pace: what is found out meanwhile is told in between."""
        self._flush()
        self._hearers.add(writer)
        part: list[Fact] = []
        for facts in self._facts.snapshot():
            part += facts
            if len(part) >= _PART:
                self._send(writer, self._message(part))
                part = []
                await writer.drain()
                await asyncio.sleep(0)
                if writer not in self._hearers:
                    return
                self._flush()  # what follows is newer
        self._send(writer, self._message([*part, _ALL_TOLD]))

    def _suspected(self, key: Key) -> None:
        endpoint = self._datastore.find(key)
        if endpoint is not None:
            self._datastore.suspect(endpoint)
            # also if nobody finds out here: it is avoided there until this says otherwise
            self._tell(("set_lost", key, (self._datastore.is_lost(endpoint),)))

    # The others

    async def _hear_from(self, place: int) -> None:
        """Until its connection breaks."""
        try:
            reader, writer = await asyncio.open_unix_connection(self._siblings.workers_path(place))
        except ConnectionRefusedError:  # its socket is there, and it is not
            self._signs.lost(place)
            return
        except OSError:
            return  # it has just begun
        self._upstream = writer
        try:
            await self._hear(reader)
        except (OSError, asyncio.IncompleteReadError) as error:
            log.debug("process %d tells no more of the workers: %s", place, error)
        finally:
            self._upstream = None
            writer.close()

    async def _hear(self, reader: asyncio.StreamReader) -> Never:
        # bounded: by the workers
        told: set[Key] | None = set()
        while True:
            for fact in await self._read(reader):
                method, key, _ = fact
                if fact == _ALL_TOLD and told is not None:
                    self._facts.retain(told)
                    told = None
                    self._ready.set()
                    continue
                if told is not None and method == "apply":
                    told.add(key)
                self._facts.apply(fact)
                self._watch_suspicion(method, key)

    async def _read(self, reader: asyncio.StreamReader) -> list[Fact]:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > _MOST_MESSAGE:
            raise OSError(f"a message of {length} bytes")
        try:
            return self._codec.decode(await reader.readexactly(length))
        except (msgspec.MsgspecError, ValueError, TypeError, LookupError) as error:
            raise OSError(f"what is no message of a sibling: {error}") from error

    def _watch_suspicion(self, method: str, key: Key) -> None:
        if method in ("apply", "set_lost"):
            self._datastore.on_suspect[key] = partial(self._suspect, key)
        elif method == "remove":
            self._datastore.on_suspect.pop(key, None)

    def _suspect(self, key: Key) -> None:
        if self._upstream is not None:
            self._send(self._upstream, self._message([("suspect", key, ())]))
