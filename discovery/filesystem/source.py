"""Instances of one machine, or of several that share a disk: one JSON record each under a root directory."""

import asyncio
import errno
import resource
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

import anyio

from discovery.filesystem.directory import ComponentDirectory
from discovery.filesystem.file_events import FileEvents, is_network_filesystem
from discovery.filesystem.record import RECORD_SUFFIX, this_host
from discovery.filesystem.root import RootError, find_component, find_root
from discovery.source import Candidate, ComponentKey, Report, Snapshot
from runtime.threads import in_thread

_PROBE: Final = 0.25
"""Seconds between two probes of the owners' locks: a death raises no file event."""
_NETWORK_PROBE: Final = 1.0
_PAUSE: Final = 0.02
"""Seconds after which a directory is looked for that went away, or came and went."""
_THREADS: Final = 8


class FilesystemSource:
    """The truth is a directory, which is only read. `root` None: the default one. A root that was named must exist
    (`RootError`): a missing one means that a disk is not mounted or a word is misspelt. What is missing below the root,
    and a default root, is what nobody has made yet: an empty set.
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
                path, is_remote = await self._until_made(key, report, look)
                await self._report_until_gone(key, path, report, look, is_remote=is_remote)
                await asyncio.sleep(_PAUSE)
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
        def look() -> list[Path]:
            root = find_root(self._root)
            return [] if root is None else list(root.path.glob(f"*/*/[!.]*{RECORD_SUFFIX}"))

        records = await in_thread(self._threads, look)
        return list({ComponentKey(path.parent.parent.name, path.parent.name) for path in records})

    async def aclose(self) -> None:
        """Nothing is held between runs."""

    async def _until_made(self, key: ComponentKey, report: Report, look: "Look") -> tuple[Path, bool]:
        """Where the directory is and whether other hosts' file events do not reach us; empty sets are reported until
        it is there. RootError if it could never be looked for.
        """
        told: str | None = None
        while True:
            look.now.clear()
            found = await self._seek(key, look)
            if isinstance(found, Path):
                return found, await in_thread(self._threads, is_network_filesystem, found)
            if found:
                report.degraded(found)
            elif found != told:
                report(Snapshot(()))
                look.succeeded = True
            told = found
            look.probe_at = time.monotonic() + _PROBE
            await look.wait()

    async def _seek(self, key: ComponentKey, look: "Look") -> Path | str:
        """Where the directory is, why that cannot be known just now, or "" where nobody has made it yet."""
        try:
            return await in_thread(self._threads, self._find, key) or ""
        except RootError as error:
            if not look.succeeded:
                raise
            return str(error)
        except OSError as error:
            return _why(error, self._root)

    def _find(self, key: ComponentKey) -> Path | None:
        root = find_root(self._root)
        component = None if root is None else find_component(root, key)
        return None if component is None else component.path

    async def _report_until_gone(
        self, key: ComponentKey, path: Path, report: Report, look: "Look", *, is_remote: bool
    ) -> None:
        directory = ComponentDirectory(path, self._host)
        look.probe_at = 0.0
        try:
            if is_remote:
                scan = partial(self._scan, key, directory, lambda: None)
                await self._report(scan, directory.path, report, look, pause=_NETWORK_PROBE)
                return
            async with FileEvents(path, look.now) as events:
                scan = partial(self._scan, key, directory, events.take)
                await self._report(scan, directory.path, report, look, pause=_PROBE)
        finally:
            directory.close()

    async def _report(
        self,
        scan: Callable[[bool, bool], Awaitable[Snapshot]],
        path: Path,
        report: Report,
        look: "Look",
        pause: float,
    ) -> None:
        """Scan when told, and every `pause` seconds; returns when the directory is gone."""
        last: Snapshot | None = None
        failed = False
        while True:
            look.now.clear()
            try:
                snapshot = await scan(failed, look.take_probe(pause))
            except FileNotFoundError:
                return
            except (OSError, RootError) as error:
                failed = True
                report.degraded(_why(error, path) if isinstance(error, OSError) else str(error))
            else:
                if snapshot != last or failed:
                    report(snapshot)
                last, failed, look.succeeded = snapshot, False, True
            await look.wait()

    async def _scan(
        self,
        key: ComponentKey,
        directory: ComponentDirectory,
        take_changes: Callable[[], frozenset[str] | None],
        everything: bool,
        probe: bool,
    ) -> Snapshot:
        """FileNotFoundError when the directory is gone; a look at everything looks at who may write there too."""
        changed = None if everything else take_changes()

        def scan() -> Snapshot:
            if changed is None and self._find(key) is None:
                raise FileNotFoundError
            return directory.scan(time.monotonic(), changed, probe=probe)

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
