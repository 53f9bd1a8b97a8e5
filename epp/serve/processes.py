"""Runs a picker as several processes: listens on its ports, starts the processes, hands them the connections, and drains them."""

import asyncio
import fcntl
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from adsum.addresses import split_authority
from adsum.command_line import FAILED, print_error
from adsum.errors import AdsumError
from adsum.logs import print_ready, write_log
from adsum.serving.handing import HandedPort
from adsum.serving.sockets import listening_sockets, raise_descriptor_limit
from adsum.tasks import cancel_and_wait
from epp.config.log_flags import LogSettings
from epp.config.settings import Settings
from epp.config.sibling_processes import HandedFrom, describe
from epp.serve.group import supervise
from epp.serve.part import Part, PartError

log = logging.getLogger("epp")

_LEAVE: Final = 10.0
"""Seconds more than --drain-timeout until a process that still runs is killed."""
_PREFIX: Final = "adsum-epp-"
_LOCK: Final = "lock"
_LONGEST_FOLDER: Final = 90
"""Characters: the path of a Unix socket has at most 107."""


def run(settings: Settings, log_settings: LogSettings, given: Sequence[str]) -> int:
    """Returns the exit code; `given`: the arguments, which each process gets."""
    # until the loop handles it, so that none ends a picker that starts
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise_descriptor_limit()
    write_log(log_settings.level, log_settings.form())
    try:
        with ExitStack() as stack:
            folder = stack.enter_context(private_folder())
            ports = open_ports(settings)
            for port in ports.values():
                stack.callback(port.close)
            return asyncio.run(_run(ProcessGroup(settings, given, folder, ports)))
    except PartError as error:
        return error.code  # the process has said why
    except (AdsumError, OSError) as error:
        return print_error(error, FAILED)
    except KeyboardInterrupt:
        return 130


async def _run(group: "ProcessGroup") -> int:
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, group.reread_config)
    return await supervise(group)


@contextmanager
def private_folder() -> Iterator[Path]:
    """For the Unix sockets between the processes. In a container without another writable folder: in its shared memory.

    It is locked while this process lives; those of pickers that were killed are removed.
    """
    try:
        folder = tempfile.mkdtemp(prefix=_PREFIX)
        if len(folder) > _LONGEST_FOLDER:
            shutil.rmtree(folder)
            folder = tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp")  # mkdtemp makes it private
    except OSError:
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir="/dev/shm")  # the same
    made = Path(folder)
    try:
        for other in made.parent.glob(_PREFIX + "*"):
            _remove_left(other)
        with (made / "new").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (made / "new").rename(made / _LOCK)  # it is seen only when it is locked
            yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _remove_left(folder: Path) -> None:
    """Remove the folder of a picker that does not live any more; those of other users stay."""
    with suppress(OSError):
        if folder.lstat().st_uid != os.geteuid():  # what is in it could be a FIFO, at which `open` waits
            return
        with (folder / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def open_ports(settings: Settings) -> dict[str, HandedPort]:
    """Listens on all ports of a picker. Connections of the pages all go to one process. Raises ListenError."""
    asked = {
        "grpc": (settings.host, settings.grpc_port, "--grpc-port"),
        "health": (settings.host, settings.grpc_health_port, "--grpc-health-port"),
        "metrics": (settings.metrics_address or settings.host, settings.metrics_port, "--metrics-port"),
    }
    if settings.debug_address is not None:
        asked["debug"] = (*split_authority(settings.debug_address, min_port=0), "--debug-address")
    with ExitStack() as opened:
        ports: dict[str, HandedPort] = {}
        for name, (host, port, flag) in asked.items():
            listening = listening_sockets(host, port, flag)
            ports[name] = HandedPort(listening, to_oldest=name in ("metrics", "debug"))
            opened.callback(ports[name].close)
        opened.pop_all()
    return ports


class _PickerProcess(Part):
    """One of the processes. Each life of it inherits new ends of all ports."""

    starts = None  # the others go on, and a process that cannot start may wait for what they do without

    def __init__(self, place: int, command: Sequence[str], group: "ProcessGroup") -> None:
        super().__init__(f"process {place}", command)
        self._place = place
        self._group = group

    def _inherited(self) -> tuple[Mapping[str, str], Sequence[int]]:
        return self._group.invite(self._place)


class ProcessGroup:
    """The processes of one picker; all start at the same time."""

    def __init__(
        self, settings: Settings, given: Sequence[str], folder: Path, ports: Mapping[str, HandedPort]
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._ports = ports
        command = [sys.executable, "-m", "epp", *given]
        self._processes = [_PickerProcess(place, command, self) for place in range(1, settings.processes + 1)]

    def invite(self, place: int) -> tuple[Mapping[str, str], Sequence[int]]:
        """The environment and the descriptors of a process that is about to start."""
        handed: dict[str, HandedFrom] = {}
        for name, port in self._ports.items():
            handed[name] = HandedFrom(port.join(place).detach(), *port.name)
        environment = describe(place, self._settings.processes, self._folder, handed)
        return environment, [one.descriptor for one in handed.values()]

    def reread_config(self) -> None:
        for one in self._processes:
            one.send(signal.SIGHUP)

    async def serve(self) -> None:
        """Lasts until a process fails at its first start: raises PartError then."""
        for port in self._ports.values():
            port.start()
        await asyncio.gather(*[one.start() for one in self._processes])
        # bounded: a line of our own process
        print_ready(self._processes[0].said.split())
        keeping = [asyncio.create_task(one.keep_running(), name=one.name) for one in self._processes]
        try:
            await asyncio.gather(*keeping)
        finally:
            await cancel_and_wait(*keeping)

    async def drain(self) -> bool:
        patience = self._settings.drain_timeout + _LEAVE
        await asyncio.gather(*[one.terminate(patience) for one in self._processes])
        return True

    async def kill(self) -> None:
        await asyncio.gather(*[one.kill() for one in self._processes])
