"""Registers one instance by a record that discovery reads and a lock that proves that its owner lives."""

import asyncio
import logging
import os
import random
import threading
import time
from collections.abc import Iterable
from concurrent.futures import wait
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from typing import Final, Protocol

import anyio

from adsum.tasks import BackgroundTasks
from adsum.threads import StartedThread, in_thread, start_thread, wait_for_exit
from discovery import AdsumError, RegistrationError
from discovery.filesystem.directory import SILENT_AFTER, ComponentDirectory
from discovery.filesystem.record import (
    HEARTBEAT,
    LOCK_SUFFIX,
    RECORD_SUFFIX,
    Record,
    boot_id,
    is_held,
    open_lock,
    read_record,
)
from discovery.filesystem.root import CheckedDirectory, file_path
from discovery.instance import Instance, InstanceStatus, find_same_address
from discovery.record import encode_record, record_of
from discovery.source import ComponentKey
from registry.filesystem import files
from registry.filesystem.cleanup import Cleanup
from registry.registration import Announcement, MembershipRegistry

log = logging.getLogger(__name__)

_PATIENCE: Final = 0.1
"""Seconds for which `update` waits for the disk, and so the worker's event loop."""
_MAX_NAMED: Final = 3
"""Instances at the same address that one log line names."""


class WriteRecord(Protocol):
    """Writes a record as `registry.filesystem.files.write_record` does."""

    def __call__(self, directory: Path, record: Record, *, mode: int) -> None: ...


def open_filesystem_registry(url: str, announcement: Announcement) -> MembershipRegistry:
    """Raises ValueError for an invalid URL."""
    root = file_path(url)
    return MembershipRegistry(lambda: FilesystemMembership(root), announcement)


class FilesystemMembership:
    """One instance's record and lock under `root` (None: the default root).

    `_record` is what the disk should have, but for the counter. `update` changes it at once and lets a thread write it; every
    heartbeat writes it again. So the disk gets the last status, in whichever order the threads come to write.
    """

    def __init__(self, root: Path | None = None, *, write: WriteRecord = files.write_record) -> None:
        self._root = root
        self._host = boot_id()
        self._thread = anyio.CapacityLimiter(1)
        self._writing = threading.Lock()
        self._leaving = threading.Event()
        self._component = CheckedDirectory(Path(), 0, 0, 0o700)
        self._cleanup: Cleanup | None = None
        self._cleanup_at = 0.0
        self._write_record = write
        self._record: Record | None = None
        self._counter = 0
        self._update: StartedThread | None = None
        self._lock: files.HeldLock | None = None
        self._heartbeat = BackgroundTasks()

    async def join(self, instance: Instance) -> Instance:
        """Claim the id and write the record. RegistrationError if the id is taken or the root is not usable.

        If it is cancelled, no file stays behind, and this membership cannot join again.
        """
        try:
            await in_thread(self._thread, self._prepare, instance)
            await self._wait_for_other_host(instance.id)
            await in_thread(self._thread, self._write_record_locked, instance, stop=self._leaving.set)
        except RegistrationError:
            raise
        except (AdsumError, ValueError) as error:
            raise RegistrationError(str(error)) from error
        except OSError as error:
            raise RegistrationError(
                f"{instance.id} cannot be registered in {self._directory}: {error.strerror or error}"
            ) from error
        self._heartbeat.start(self._heartbeat_loop(instance.id), f"heartbeat {instance.id}")
        return instance

    def update(self, instance: Instance) -> None:
        """Rewrite the record. RegistrationError if that fails; the old record then stays.

        A disk that takes longer than _PATIENCE is not waited for: what fails then is logged, and repeated by the heartbeat.
        """
        before = self._record
        if before is None:
            raise RegistrationError(f"{instance.id} has left; register it again")
        record = self._record_of(instance)
        encode_record(record)
        self._record = record
        if self._update is not None and not self._update.work.done():
            return  # the disk is slow, as the log says
        try:
            self._write_soon(record)
        except OSError as error:
            self._record = before
            raise RegistrationError(
                f"the record of {instance.id} cannot be written: {error.strerror}"
            ) from error

    async def leave(self) -> None:
        """Remove the record, then the lock. Idempotent."""
        self._leaving.set()
        await self._heartbeat.aclose()
        if self._update is not None:
            await wait_for_exit(self._update)
        await in_thread(self._thread, self._remove_record)

    def _write_soon(self, record: Record) -> None:
        """Write what `_record` is, in a thread. Raises what that raises within _PATIENCE."""
        try:
            self._update = start_thread(self._write_current)
        except RuntimeError:  # since Python 3.12 no thread starts during interpreter shutdown
            return self._write_current()
        done, _ = wait([self._update.work], _PATIENCE)
        for work in done:
            return work.result()
        log.warning(
            "%s: its status is not written yet, the disk has not answered for %g s; it is written once it does",
            record.instance_id,
            _PATIENCE,
        )
        return None

    def _write_current(self) -> None:
        with self._writing:
            if self._record is not None:
                self._write(self._record)

    async def _wait_for_other_host(self, instance_id: str) -> None:
        """Wait until an id that another host's record holds is free: until its counter is unchanged for SILENT_AFTER.

        That host's lock proves nothing: locks on its own disk or over NFS may be invisible here.
        """
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
                    "waiting up to %g s: another host's record holds the id %r, and its worker may be alive",
                    SILENT_AFTER,
                    instance_id,
                )
            first = record.counter
            await asyncio.sleep(HEARTBEAT / 4)

    def _prepare(self, instance: Instance) -> None:
        encode_record(self._record_of(instance))
        key = ComponentKey(instance.namespace, instance.component)
        self._component = files.create_component_directory(self._root, key)

    def _write_record_locked(self, instance: Instance) -> None:
        with self._locked(), self._writing:
            if self._leaving.is_set():
                raise RegistrationError(f"{instance.id} left before it was registered")
            self._refuse_if_held(instance.id)
            record = self._record_of(instance)
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
        """Lock a temporary file, then rename it: under its final name the lock is always held, so no reader sees a
        living worker without a lock.
        """
        temporary, path = (
            files.temporary_path(self._directory, record.instance_id),
            self._lock_path(record.instance_id),
        )
        lock = files.HeldLock(temporary, mode=files.file_mode(self._component))
        try:
            # a dead owner's record goes first, or our lock would make it look alive
            self._record_path(record.instance_id).unlink(missing_ok=True)
            temporary.rename(path)
            self._write(record)
        except BaseException:
            for name in (temporary, path):
                with suppress(OSError):
                    if lock.is_at(name):
                        name.unlink()
            lock.release()
            raise
        if self._lock is not None:
            self._lock.release()
        self._lock = lock

    def _remove_record(self) -> None:
        with self._writing:
            record, self._record = self._record, None
            lock, self._lock = self._lock, None
            if record is None or lock is None:
                return
            path = self._lock_path(record.instance_id)
            with suppress(OSError):  # if the root is gone, so is the record
                if lock.is_at(path):
                    self._record_path(record.instance_id).unlink(missing_ok=True)
                    path.unlink(missing_ok=True)
            lock.release()

    async def _heartbeat_loop(self, instance_id: str) -> None:
        """Write the heartbeat and run the cleanup until cancelled. A failure is retried and logged once."""
        reported: str | None = None
        with suppress(OSError):
            await in_thread(self._thread, self._warn_of_duplicates)
        while True:
            with suppress(OSError):  # the heartbeat logs what is wrong with the directory
                await in_thread(self._thread, self._clean_up)
            await asyncio.sleep(HEARTBEAT)
            try:
                await in_thread(self._thread, self._write_heartbeat)
                problem, level = None, logging.INFO
            except RegistrationError as error:
                problem, level = f"its files were removed, and {error}", logging.ERROR
            except (AdsumError, OSError, ValueError) as error:
                cause = error.strerror if isinstance(error, OSError) else None
                problem, level = f"its heartbeat cannot be written: {cause or error}", logging.WARNING
            if problem != reported:
                log.log(level, "%s: %s", instance_id, problem or "its heartbeat is written again")
            reported = problem

    def _write_heartbeat(self) -> None:
        """Increase the counter, by which other hosts see that we live. If our files were removed, register again."""
        with self._writing:
            if self._record is None or self._lock is None or self._leaving.is_set():
                return
            self._counter += 1
            if self._lock.is_at(self._lock_path(self._record.instance_id)):
                self._write(self._record)
                return
            key = ComponentKey(self._record.namespace, self._record.component)
            self._component = files.create_component_directory(self._root, key)
            with self._locked(timeout=0):
                self._refuse_if_held(self._record.instance_id)
                self._claim(self._record)

    def _warn_of_duplicates(self) -> None:
        if (record := self._record) is None:
            return
        with closing(ComponentDirectory(self._directory, self._host)) as directory:
            found = directory.scan(time.monotonic()).known.values()
        warn_of_shared_address(record.instance(), found)

    def _clean_up(self) -> None:
        if self._leaving.is_set() or time.monotonic() < self._cleanup_at:
            return
        if self._cleanup is None:
            self._cleanup = Cleanup(self._directory, self._host, self._leaving.is_set)
        pause = self._cleanup.run(time.monotonic())
        self._cleanup_at = time.monotonic() + random.uniform(0.5, 1.5) * pause

    def _locked(self, *, timeout: float = files.LOCK_TIMEOUT) -> AbstractContextManager[None]:
        mode = files.file_mode(self._component, for_all_writers=True)
        return files.component_lock(
            self._directory, mode=mode, timeout=timeout, is_cancelled=self._leaving.is_set
        )

    def _write(self, record: Record) -> None:
        record = record.model_copy(update={"counter": self._counter})
        self._write_record(self._directory, record, mode=files.file_mode(self._component))

    @property
    def _directory(self) -> Path:
        return self._component.path

    def _record_of(self, instance: Instance) -> Record:
        return Record(**dict(record_of(instance)), host=self._host)

    def _record_path(self, instance_id: str) -> Path:
        return self._directory / f"{instance_id}{RECORD_SUFFIX}"

    def _lock_path(self, instance_id: str) -> Path:
        return self._directory / f"{instance_id}{LOCK_SUFFIX}"


def warn_of_shared_address(instance: Instance, others: Iterable[Instance]) -> None:
    """Log a warning if another instance that lives and does not drain has the same address."""
    living = [one for one in others if one.id != instance.id and one.status is not InstanceStatus.DRAINING]
    found = find_same_address([instance, *living]).get(instance.id)
    if not found:
        return
    named = ", ".join(found[:_MAX_NAMED]) + (
        f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
    )
    log.warning(
        "%s serves the same address as %s (%s): one server is registered %d times, and counted so. Several processes "
        "that share a port (uvicorn --workers) register once: run one process for each port, or register the server "
        "from outside (adsum registry --server URL)",
        instance.id,
        named,
        instance.authority,
        len(found) + 1,
    )
