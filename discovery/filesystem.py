"""Instances of one machine, or of several that share a disk: one JSON record each under a root directory."""

import asyncio
import errno
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import anyio

from discovery.directory import ComponentDirectory
from discovery.file_events import FileEvents, is_network_filesystem
from discovery.record import RECORD_SUFFIX, RootError, component_path, open_root, this_host
from discovery.source import Candidate, ComponentKey, Report, Snapshot
from discovery.threads import in_thread

_PROBE: Final = 0.25
"""Seconds between two probes of the owners' locks: a death raises no file event."""
_NETWORK_PROBE: Final = 1.0
_THREADS: Final = 8


class FilesystemSource:
    """The truth is a directory. `root` None: the default one, which is made if it is missing; a root that was named
    must exist (`RootError`): a missing one means that a disk is not mounted or a word is misspelt.
    """

    def __init__(self, root: Path | None = None, *, host: str | None = None) -> None:
        self._root = root
        self._host = host or this_host()
        self._looks: dict[Look, ComponentKey] = {}
        self._threads = anyio.CapacityLimiter(_THREADS)

    async def run(self, key: ComponentKey, report: Report) -> None:
        look = Look()
        self._looks[look] = key
        try:
            while True:
                report.degraded(await self._report_until_lost(key, report, look))
                await asyncio.sleep(_PROBE)
        finally:
            del self._looks[look]

    def suspect(self, key: ComponentKey, instance_id: str) -> None:
        """Probe the owners now."""
        for look, wanted in self._looks.items():
            if wanted == key:
                look.probe_at = 0.0
                look.now.set()

    async def explain(self, key: ComponentKey) -> list[Candidate]:
        """The snapshot says all there is."""
        return []

    async def components(self) -> list[ComponentKey]:
        records = await in_thread(
            self._threads, lambda: list(open_root(self._root).glob(f"*/*/[!.]*{RECORD_SUFFIX}"))
        )
        return list({ComponentKey(path.parent.parent.name, path.parent.name) for path in records})

    async def aclose(self) -> None:
        """Nothing is held between runs."""

    async def _report_until_lost(self, key: ComponentKey, report: Report, look: "Look") -> str:
        """Returns why the directory cannot be followed just now. RootError if it never could."""
        try:
            path, is_remote = await in_thread(self._threads, self._prepare, key)
        except RootError as error:
            if not look.succeeded:
                raise
            return str(error)
        except OSError as error:
            return _why(error, self._root)
        directory = ComponentDirectory(path, self._host)
        try:
            if is_remote:
                return await self._report(directory, report, look, lambda: None, pause=_NETWORK_PROBE)
            async with FileEvents(path, look.now) as events:
                return await self._report(directory, report, look, events.take, pause=_PROBE)
        finally:
            directory.close()

    def _prepare(self, key: ComponentKey) -> tuple[Path, bool]:
        path = component_path(open_root(self._root), key)
        return path, is_network_filesystem(path)

    async def _report(
        self,
        directory: ComponentDirectory,
        report: Report,
        look: "Look",
        take_changes: Callable[[], frozenset[str] | None],
        pause: float,
    ) -> str:
        """Scan when told, and every `pause` seconds; returns when the directory is gone."""
        last: Snapshot | None = None
        failed = False
        while True:
            look.now.clear()
            changed, probe = take_changes(), look.take_probe(pause)
            try:
                snapshot = await self._scan(directory, None if failed else changed, probe=probe)
            except FileNotFoundError:
                return f"the directory {directory.path} was removed; it is made again"
            except OSError as error:
                failed = True
                report.degraded(_why(error, directory.path))
            else:
                if snapshot != last or failed:
                    report(snapshot)
                last, failed, look.succeeded = snapshot, False, True
            await look.wait()

    async def _scan(
        self, directory: ComponentDirectory, changed: frozenset[str] | None, *, probe: bool
    ) -> Snapshot:
        scan = partial(directory.scan, time.monotonic(), changed, probe=probe)
        return await in_thread(self._threads, scan)


class Look:
    """When to look: `now` is set when files changed; the owners are probed when `probe_at` (monotonic) has come.

    `succeeded`: a set was reported, so that whatever goes wrong from now on is waited out.
    """

    def __init__(self) -> None:
        self.now = asyncio.Event()
        self.probe_at = 0.0
        self.succeeded = False

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


def _why(error: OSError, path: Path | None) -> str:
    reason = f"{error.filename or path} cannot be read: {error.strerror or error}"
    match error.errno:
        case errno.EMFILE:
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            return f"{reason}; this process may have {limit} descriptors: raise that limit (ulimit -n)"
        case errno.ENFILE:
            return f"{reason}; no process of this machine gets more descriptors: raise fs.file-max"
    return reason
