"""Instances of one machine, or of several that share a disk: one JSON record each under a root directory."""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Self

import anyio
import anyio.to_thread
from watchfiles import Change, awatch

from discovery.directory import ComponentDirectory
from discovery.record import RECORD_SUFFIX, component_path, open_root, this_host
from discovery.source import ComponentKey, Report, Snapshot

_log = logging.getLogger(__name__)

_PROBE: Final = 0.25
"""Seconds between two probes of the owners' locks: a death raises no file event."""
_RESCAN: Final = 5.0
"""Seconds between two readings of the whole directory, for events that the kernel dropped."""
_NETWORK_PROBE: Final = 1.0
_NETWORK_FILESYSTEMS: Final = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "gpfs",
        "glusterfs",
        "lustre",
        "nfs",
        "nfs4",
        "orangefs",
        "pvfs2",
        "smb3",
        "smbfs",
        "virtiofs",
    ]
)


class FilesystemSource:
    """The truth is a directory. `root` None: the default one, which is made if it is missing; a root that was named
    must exist (`RootError`): a missing one means that a disk is not mounted or a word is misspelt.
    """

    def __init__(self, root: Path | None = None, *, host: str | None = None) -> None:
        self._root = root
        self._host = host or this_host()
        self._looks: dict[ComponentKey, Look] = {}
        self._threads: anyio.CapacityLimiter | None = None

    async def run(self, key: ComponentKey, report: Report) -> None:
        root = open_root(self._root)
        look = self._looks[key] = Look()
        try:
            while True:
                path = component_path(root, key)
                await self._report_until_gone(path, report, look)
                report.degraded(f"the directory {path} was removed; it is made again")
        finally:
            del self._looks[key]

    def suspect(self, key: ComponentKey, instance_id: str) -> None:
        """Probe the owners now."""
        if look := self._looks.get(key):
            look.probe_at = 0.0
            look.now.set()

    async def components(self) -> list[ComponentKey]:
        records = await anyio.to_thread.run_sync(
            lambda: list(open_root(self._root).glob(f"*/*/[!.]*{RECORD_SUFFIX}"))
        )
        return list({ComponentKey(path.parent.parent.name, path.parent.name) for path in records})

    async def aclose(self) -> None:
        """Nothing is held between runs."""

    async def _report_until_gone(self, path: Path, report: Report, look: "Look") -> None:
        directory = ComponentDirectory(path, self._host)
        try:
            if is_network_filesystem(path):
                await self._report(directory, report, look, lambda: None, pause=_NETWORK_PROBE)
            else:
                async with FileEvents(path, look.now) as events:
                    await self._report(directory, report, look, events.take, pause=_PROBE)
        finally:
            directory.close()

    async def _report(
        self,
        directory: ComponentDirectory,
        report: Report,
        look: "Look",
        take_changes: Callable[[], frozenset[str] | None],
        pause: float,
    ) -> None:
        """Scan when told, and every `pause` seconds; returns when the directory is gone."""
        last: Snapshot | None = None
        while True:
            look.now.clear()
            try:
                snapshot = await self._scan(directory, take_changes(), probe=look.take_probe(pause))
            except FileNotFoundError:
                return
            except OSError as error:
                report.degraded(f"{directory.path} cannot be read: {error.strerror}")
            else:
                if snapshot != last:
                    last = snapshot
                    report(snapshot)
            await look.wait()

    async def _scan(
        self, directory: ComponentDirectory, changed: frozenset[str] | None, *, probe: bool
    ) -> Snapshot:
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(8)
        scan = partial(directory.scan, time.monotonic(), changed, probe=probe)
        return await anyio.to_thread.run_sync(scan, limiter=self._threads)


class Look:
    """When to look: `now` is set when files changed; the owners are probed when `probe_at` (monotonic) has come."""

    def __init__(self) -> None:
        self.now = asyncio.Event()
        self.probe_at = 0.0

    def take_probe(self, pause: float) -> bool:
        """Whether it is time to probe; the next time is `pause` seconds later."""
        if time.monotonic() < self.probe_at:
            return False
        self.probe_at = time.monotonic() + pause
        return True

    async def wait(self) -> None:
        """Until there is something to look at."""
        try:
            async with asyncio.timeout(max(0.0, self.probe_at - time.monotonic())):
                await self.now.wait()
        except TimeoutError:
            pass


class FileEvents:
    """The names of the records that changed, by the kernel's word; `look` is set when there are any."""

    def __init__(self, path: Path, look: asyncio.Event) -> None:
        self._path = path
        self._look = look
        self._changed: set[str] = set()
        self._whole_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def take(self) -> frozenset[str] | None:
        """What to read anew: the files that changed; None, everything, at first, every few seconds, and always when
        there are no events to rely on.
        """
        changed = frozenset(self._changed)
        self._changed.clear()
        if self._task is not None and not self._task.done() and time.monotonic() < self._whole_at:
            return changed
        self._whole_at = time.monotonic() + _RESCAN
        return None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._collect(), name=f"file events {self._path}")
        try:
            await asyncio.sleep(0)  # its first step, up to the first wait, is what starts the kernel's watch
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _collect(self) -> None:
        try:
            async for changes in awatch(
                self._path, watch_filter=_of_record, debounce=50, step=5, recursive=False
            ):
                self._changed.update(Path(name).name for _, name in changes)
                self._look.set()
        except Exception as error:  # noqa: BLE001 -- no watch left in the kernel, or whatever: reading everything works
            _log.warning("no file events for %s (%s): it is read every %g s", self._path, error, _PROBE)


def _of_record(change: Change, path: str) -> bool:
    return path.endswith(RECORD_SUFFIX)


def is_network_filesystem(path: Path) -> bool:
    """Whether file events of other hosts cannot reach us: judged by the mount's type (Linux), False where unknown."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return False
    resolved = path.resolve()
    best, kind = "", ""
    for line in mounts:
        before, _, after = line.partition(" - ")
        point = before.split()[4].encode().decode("unicode_escape")
        if len(point) >= len(best) and resolved.is_relative_to(point):
            best, kind = point, after.split()[0]
    return kind in _NETWORK_FILESYSTEMS or kind.startswith("fuse.")
