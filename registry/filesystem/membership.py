"""Membership by a file: the record that discovery reads, and the lock that proves that its owner lives."""

import asyncio
import logging
import os
import random
import threading
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path

import anyio

from discovery import AdsumError, RegistrationError
from discovery.filesystem.directory import SILENT_AFTER, ComponentDirectory
from discovery.filesystem.flock import is_held, open_lock
from discovery.filesystem.record import HEARTBEAT, LOCK_SUFFIX, RECORD_SUFFIX, Record, boot_id, read_record
from discovery.filesystem.root import CheckedDirectory
from discovery.instance import Instance, InstanceStatus
from discovery.same_address import find_same_address
from discovery.source import ComponentKey
from registry.filesystem.cleanup import Cleanup
from registry.filesystem.directories import file_mode, make_component
from registry.filesystem.locks import PATIENCE, HeldLock, component_locked
from registry.filesystem.record_file import aside_path, encode_record, write_record
from runtime.tasks import BackgroundTasks
from runtime.threads import in_thread

log = logging.getLogger(__name__)

_NAMED = 3
"""Others at our address that the log names."""


class FilesystemMembership:
    """One instance's record and lock under `root` (None: the default one). `host` is who this machine is."""

    def __init__(self, root: Path | None = None, *, host: str | None = None) -> None:
        self._root = root
        self._host = host or boot_id()
        self._thread = anyio.CapacityLimiter(1)
        self._writing = threading.Lock()
        self._left = threading.Event()
        self._level = CheckedDirectory(Path(), 0, 0, 0o700)
        self._cleanup: Cleanup | None = None
        self._cleanup_at = 0.0
        self._record: Record | None = None
        self._lock: HeldLock | None = None
        self._heartbeat = BackgroundTasks()

    async def join(self, instance: Instance) -> Instance:
        """Take the id and write the record. RegistrationError if the id is taken or the root cannot be used.

        Cancelled, nothing is left behind, and this membership is over.
        """
        try:
            await in_thread(self._thread, self._open, instance)
            await self._outlast_other_host(instance.id)
            await in_thread(self._thread, self._join, instance, stop=self._left.set)
        except RegistrationError:
            raise
        except (AdsumError, ValueError) as error:
            raise RegistrationError(str(error)) from error
        except OSError as error:
            raise RegistrationError(
                f"{instance.id} cannot be registered in {self._directory}: {error.strerror or error}"
            ) from error
        self._heartbeat.start(self._beat(instance.id), f"heartbeat {instance.id}")
        return instance

    def update(self, instance: Instance) -> None:
        """Write the record anew. RegistrationError if that fails; the old one stays."""
        with self._writing:
            if self._record is None:
                raise RegistrationError(f"{instance.id} is not registered any more")
            record = self._record_of(instance, self._record.counter)
            try:
                self._write(record)
            except OSError as error:
                raise RegistrationError(
                    f"the record of {instance.id} cannot be written: {error.strerror}"
                ) from error
            self._record = record

    async def leave(self) -> None:
        """Remove the record, then the lock. Idempotent."""
        self._left.set()
        await self._heartbeat.aclose()
        await in_thread(self._thread, self._leave)

    async def _outlast_other_host(self, instance_id: str) -> None:
        """Another host's lock proves nothing here: an id is free once its counter stood still long enough."""
        first: int | None = None
        deadline = time.monotonic() + SILENT_AFTER
        while time.monotonic() < deadline:
            try:
                record = await in_thread(self._thread, read_record, self._record_path(instance_id))
            except (FileNotFoundError, ValueError):
                return
            if record.host == self._host:
                return
            if first is not None and record.counter != first:
                raise RegistrationError(
                    f"the instance id {instance_id!r} is held by a living process on another host: "
                    "choose another id, or none and one is made"
                )
            if first is None:
                log.info(
                    "waiting up to %g s: the id %r was another host's, and may still be",
                    SILENT_AFTER,
                    instance_id,
                )
            first = record.counter
            await asyncio.sleep(HEARTBEAT / 4)

    def _open(self, instance: Instance) -> None:
        encode_record(self._record_of(instance, 0))
        key = ComponentKey(instance.namespace, instance.component)
        self._level = make_component(self._root, key)

    def _join(self, instance: Instance) -> None:
        with self._locked(), self._writing:
            if self._left.is_set():
                raise RegistrationError(f"{instance.id} left before it was registered")
            self._refuse_if_held(instance.id)
            record = self._record_of(instance, 0)
            self._claim(record)
            self._record = record

    def _refuse_if_held(self, instance_id: str) -> None:
        with suppress(FileNotFoundError):
            descriptor = open_lock(self._lock_path(instance_id))
            try:
                if is_held(descriptor):
                    raise RegistrationError(
                        f"the instance id {instance_id!r} is held by a living process in {self._directory}: "
                        "choose another id, or none and one is made"
                    )
            finally:
                os.close(descriptor)

    def _claim(self, record: Record) -> None:
        """Lock a file aside, then put it in place: the lock is visible only when it is held."""
        aside, path = aside_path(self._directory, record.instance_id), self._lock_path(record.instance_id)
        lock = HeldLock(aside, mode=file_mode(self._level))
        try:
            self._record_path(record.instance_id).unlink(
                missing_ok=True
            )  # a dead owner's, never under our lock
            aside.rename(path)
            self._write(record)
        except BaseException:
            for name in (aside, path):
                with suppress(OSError):
                    if lock.is_at(name):
                        name.unlink()
            lock.release()
            raise
        if self._lock is not None:
            self._lock.release()
        self._lock = lock

    def _leave(self) -> None:
        with self._writing:
            record, self._record = self._record, None
            lock, self._lock = self._lock, None
            if record is None or lock is None:
                return
            path = self._lock_path(record.instance_id)
            with suppress(OSError):  # a root that went away took the record with it
                if lock.is_at(path):
                    self._record_path(record.instance_id).unlink(missing_ok=True)
                    path.unlink(missing_ok=True)
            lock.release()

    async def _beat(self, instance_id: str) -> None:
        """A full or absent disk, an id that somebody took: the next beat tries again; each is told once."""
        told: str | None = None
        with suppress(OSError):
            await in_thread(self._thread, self._look_around)
        while True:
            with suppress(OSError):  # the heartbeat tells what is wrong with the directory
                await in_thread(self._thread, self._clean)
            await asyncio.sleep(HEARTBEAT)
            try:
                await in_thread(self._thread, self._count)
                trouble, level = None, logging.INFO
            except RegistrationError as error:
                trouble, level = f"its files were removed, and {error}", logging.ERROR
            except (AdsumError, OSError, ValueError) as error:
                cause = error.strerror if isinstance(error, OSError) else None
                trouble, level = f"its heartbeat cannot be written: {cause or error}", logging.WARNING
            if trouble != told:
                log.log(level, "%s: %s", instance_id, trouble or "its heartbeat is written again")
            told = trouble

    def _count(self) -> None:
        """Another heartbeat for other hosts; and if somebody removed our files, announce this instance again."""
        with self._writing:
            if self._record is None or self._lock is None or self._left.is_set():
                return
            self._record = self._record.model_copy(update={"counter": self._record.counter + 1})
            if self._lock.is_at(self._lock_path(self._record.instance_id)):
                self._write(self._record)
                return
            key = ComponentKey(self._record.namespace, self._record.component)
            self._level = make_component(self._root, key)
            with self._locked(patience=0):
                self._refuse_if_held(self._record.instance_id)
                self._claim(self._record)

    def _look_around(self) -> None:
        if (record := self._record) is None:
            return
        with closing(ComponentDirectory(self._directory, self._host)) as directory:
            found = directory.scan(time.monotonic()).known.values()
        warn_of_neighbours(record.instance(), found)

    def _clean(self) -> None:
        if self._left.is_set() or time.monotonic() < self._cleanup_at:
            return
        if self._cleanup is None:
            self._cleanup = Cleanup(self._directory, self._host, self._left.is_set)
        pause = self._cleanup.look(time.monotonic())
        self._cleanup_at = time.monotonic() + random.uniform(0.5, 1.5) * pause

    def _locked(self, *, patience: float = PATIENCE) -> AbstractContextManager[None]:
        mode = file_mode(self._level, for_all_writers=True)
        return component_locked(self._directory, mode=mode, patience=patience, given_up=self._left.is_set)

    def _write(self, record: Record) -> None:
        write_record(self._directory, record, mode=file_mode(self._level))

    @property
    def _directory(self) -> Path:
        return self._level.path

    def _record_of(self, instance: Instance, counter: int) -> Record:
        return Record(
            instance_id=instance.id,
            namespace=instance.namespace,
            component=instance.component,
            incarnation=instance.incarnation,
            host=self._host,
            address=instance.address,
            port=instance.port,
            status=instance.status,
            labels=dict(instance.labels),
            counter=counter,
        )

    def _record_path(self, instance_id: str) -> Path:
        return self._directory / f"{instance_id}{RECORD_SUFFIX}"

    def _lock_path(self, instance_id: str) -> Path:
        return self._directory / f"{instance_id}{LOCK_SUFFIX}"


def warn_of_neighbours(instance: Instance, others: Iterable[Instance]) -> None:
    """Say it, if any of `others`, who live, is at the instance's address and not on its way out."""
    living = [one for one in others if one.id != instance.id and one.status is not InstanceStatus.DRAINING]
    found = find_same_address([instance, *living]).get(instance.id)
    if not found:
        return
    named = ", ".join(found[:_NAMED]) + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")
    log.warning(
        "%s serves the same address as %s (%s): one server is registered %d times, and counted so. Several processes "
        "that share a port (uvicorn --workers) register once: run one process for each port, or register the server "
        "from outside (python -m registry --server URL)",
        instance.id,
        named,
        instance.authority,
        len(found) + 1,
    )
