"""The filesystem source: watches a component's directory, on one machine or on a disk that several share."""

import asyncio
import errno
import resource
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import anyio

from adsum.tasks import wait_at_most
from adsum.threads import in_thread
from discovery.filesystem.directory import ComponentDirectory
from discovery.filesystem.file_events import FileEvents, is_network_filesystem
from discovery.filesystem.record import RECORD_SUFFIX, boot_id
from discovery.filesystem.root import RootError, file_path, find_component, find_root
from discovery.source import ComponentKey, Report, Snapshot, Source

_PROBE_INTERVAL: Final = 0.25
"""Seconds between two probes of the locks: the kernel raises no file event when it releases one."""
_NETWORK_PROBE_INTERVAL: Final = 1.0
"""Without file events each probe reads the whole directory from the server."""
_RETRY_DELAY: Final = 0.02
"""Seconds before a directory that was removed is looked for again."""
_MAX_LISTED: Final = 10_000
"""Records that are looked at for the names of components."""
_THREADS: Final = 8
"""Directories read at once: a hanging network file system must not occupy the threads of the whole process."""


def open_filesystem(url: str) -> "FilesystemSource":
    return FilesystemSource(file_path(url))


class FilesystemSource(Source):
    """Membership is the records in a directory; writes nothing. `root` None: the default root.

    A named root must exist (`RootError`): if it does not, a disk is not mounted or the name is misspelt. A missing
    default root, or a missing directory below a root, is an empty set: no worker has created it yet.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._root = root
        self._host = boot_id()
        self._triggers: dict[ScanTrigger, ComponentKey] = {}
        self._threads = anyio.CapacityLimiter(_THREADS)

    async def run(self, key: ComponentKey, report: Report) -> None:
        trigger = ScanTrigger()
        self._triggers[trigger] = key
        try:
            while True:
                path, is_network = await self._wait_until_created(key, report, trigger)
                await self._report_until_gone(key, path, report, trigger, is_network=is_network)
                await asyncio.sleep(_RETRY_DELAY)
        finally:
            del self._triggers[trigger]

    def suspect(self, key: ComponentKey, instance_id: str) -> None:
        """Probe the locks now: a connection is often reset because its owner has died."""
        for trigger, wanted in self._triggers.items():
            if wanted == key:
                trigger.probe_at = 0.0
                trigger.wake.set()

    async def components(self) -> list[ComponentKey]:
        def find_records() -> list[Path]:
            root = find_root(self._root)
            return (
                [] if root is None else list(islice(root.path.glob(f"*/*/[!.]*{RECORD_SUFFIX}"), _MAX_LISTED))
            )

        records = await in_thread(self._threads, find_records)
        return list({ComponentKey(path.parent.parent.name, path.parent.name) for path in records})

    async def _wait_until_created(
        self, key: ComponentKey, report: Report, trigger: "ScanTrigger"
    ) -> tuple[Path, bool]:
        """The directory, and whether it is on a network file system; reports empty sets until it exists.

        Raises RootError if the root was never usable.
        """
        reported: str | None = None
        while True:
            trigger.wake.clear()
            found = await self._try_find(key, trigger)
            if isinstance(found, Path):
                return found, await in_thread(self._threads, is_network_filesystem, found)
            if found:
                report.degraded(found)
            elif found != reported:
                report(Snapshot(()))
                trigger.has_reported = True
            reported = found
            trigger.probe_at = time.monotonic() + _PROBE_INTERVAL
            await trigger.wait()

    async def _try_find(self, key: ComponentKey, trigger: "ScanTrigger") -> Path | str:
        """The directory, or why it cannot be looked for now, or "" if it does not exist yet."""
        try:
            return await in_thread(self._threads, self._find, key) or ""
        except RootError as error:
            if not trigger.has_reported:
                raise
            return str(error)
        except OSError as error:
            return _read_problem(error, self._root)

    def _find(self, key: ComponentKey) -> Path | None:
        root = find_root(self._root)
        component = None if root is None else find_component(root, key)
        return None if component is None else component.path

    async def _report_until_gone(
        self, key: ComponentKey, path: Path, report: Report, trigger: "ScanTrigger", *, is_network: bool
    ) -> None:
        directory = ComponentDirectory(path, self._host)
        trigger.probe_at = 0.0
        try:
            if is_network:
                scan = partial(self._scan, key, directory, lambda: None)
                await self._scan_until_gone(
                    scan, directory.path, report, trigger, interval=_NETWORK_PROBE_INTERVAL
                )
                return
            async with FileEvents(path, trigger.wake) as events:
                scan = partial(self._scan, key, directory, events.take_changes)
                await self._scan_until_gone(scan, directory.path, report, trigger, interval=_PROBE_INTERVAL)
        finally:
            directory.close()

    async def _scan_until_gone(
        self,
        scan: Callable[[bool, bool], Awaitable[Snapshot]],
        path: Path,
        report: Report,
        trigger: "ScanTrigger",
        interval: float,
    ) -> None:
        """Scan at each wake-up and every `interval` seconds; returns when the directory is gone."""
        last: Snapshot | None = None
        failed = False
        while True:
            trigger.wake.clear()
            try:
                snapshot = await scan(failed, trigger.begin_probe(interval))
            except FileNotFoundError:
                return
            except (OSError, RootError) as error:
                failed = True
                report.degraded(_read_problem(error, path) if isinstance(error, OSError) else str(error))
            else:
                if snapshot != last or failed:
                    report(snapshot)
                last, failed, trigger.has_reported = snapshot, False, True
            await trigger.wait()

    async def _scan(
        self,
        key: ComponentKey,
        directory: ComponentDirectory,
        take_changes: Callable[[], frozenset[str] | None],
        everything: bool,
        probe: bool,
    ) -> Snapshot:
        """Raises FileNotFoundError when the directory is gone. A full scan checks the permissions again, too."""
        changed = None if everything else take_changes()

        def scan() -> Snapshot:
            if changed is None and self._find(key) is None:
                raise FileNotFoundError
            return directory.scan(time.monotonic(), changed, probe=probe)

        return await in_thread(self._threads, scan)


class ScanTrigger:
    """When to scan: `wake` is set when files changed; the locks are probed at `probe_at` (monotonic).

    `has_reported`: a set was reported, so that later errors degrade the watch instead of ending it.
    """

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.probe_at = 0.0
        self.has_reported = False

    def begin_probe(self, interval: float) -> bool:
        """Whether a probe is due; if so, the next is `interval` seconds later."""
        if time.monotonic() < self.probe_at:
            return False
        self.probe_at = time.monotonic() + interval
        return True

    async def wait(self) -> None:
        """Wait until a file changed or a probe is due."""
        await wait_at_most(max(0.0, self.probe_at - time.monotonic()), self.wake)


def _read_problem(error: OSError, path: Path | None) -> str:
    reason = f"{error.filename or path} cannot be read: {error.strerror or error}"
    match error.errno:
        case errno.EMFILE:
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            return f"{reason}; this process may have {limit} descriptors: raise that limit (ulimit -n)"
        case errno.ENFILE:
            return f"{reason}; no process of this machine gets more descriptors: raise fs.file-max"
    return reason
