"""Python processes that need not import our programs again: each is forked from one that did.

A command that begins with `WARM_PYTHON` starts as with `sys.executable`, by `subprocess` or by `asyncio`. The process is a
child of this one and has a pid, a working directory, an environment and pipes of its own; only its imports are there before
it begins, which take most of a second of a core. Tests of imports, of a start, or of the interpreter use `sys.executable`.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import platform
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
_MOST: Final = 1 << 20
_CLONE: Final = {"x86_64": 56, "aarch64": 220}
"""The system call's number (arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h)."""
_CLONE_PARENT: Final = 0x8000
_IMPORTED: Final = (
    "epp.process", "epp.server", "epp.ext_proc.exchange", "dispatcher.process", "dispatcher.server", "discovery.commands",
    "registry.service", "examples.simulator.worker",
)  # fmt: skip


class _Warm(str):
    """The path of the interpreter, told from another string of the same text."""

    __slots__ = ()


WARM_PYTHON: Final = _Warm(sys.executable)


class _Parent:
    """The process that has imported the programs; it ends with this one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ours: socket.socket | None = None
        self._is_refused = False

    def fork(
        self, arguments: Sequence[str], cwd: str | None, env: Mapping[str, str], files: Sequence[int]
    ) -> int | None:
        """The pid of a new child of this process; None where the system lets nobody fork for another, as a sandbox may."""
        if self._is_refused:
            return None
        with self._lock:
            if self._ours is None:
                self._ours = self._start()
            # a signal that is ignored stays so in a child; a shell's command in the background ignores this one
            ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            asked = json.dumps([list(arguments), cwd or os.getcwd(), dict(env), ignored]).encode()
            socket.send_fds(self._ours, [asked], files)
            pid = self._ours.recv(64)
        self._is_refused = not pid
        return int(pid) if pid else None

    def fits(self, env: Mapping[str, str]) -> bool:
        """Whether what is read at an import is the same: the interpreter's own variables, and time zone."""
        return all(env.get(name) == os.environ.get(name) for name in {*env, *os.environ} if _read_early(name))

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # the library of numpy's matrices would start threads, which no fork has
            env = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            nothing = subprocess.DEVNULL
            running = subprocess.Popen(
                command, cwd=ROOT, env=env, pass_fds=[theirs.fileno()], stdin=nothing, stdout=nothing
            )
        atexit.register(lambda: (ours.close(), running.wait()))
        return ours


def _read_early(name: str) -> bool:
    return name.startswith(("PYTHON", "PROMETHEUS_", "SSL_", "LC_")) or name in ("LANG", "TZ")


_parent = _Parent()
_execute_fresh = subprocess.Popen._execute_child  # type: ignore[attr-defined]


def _execute(self: Any, args: Any, *rest: Any) -> None:
    (
        *_, preexec_fn, close_fds, pass_fds, cwd, env, _, _, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, _, gid, gids, uid, umask, session, group,
    ) = rest  # fmt: skip
    environment = os.environ if env is None else env
    plain = (preexec_fn, tuple(pass_fds), shell, gid, gids, uid, umask, session) == (
        *(None, (), False),
        *(None, None, None, -1, False),
    )
    if not (
        plain
        and close_fds
        and group == -1
        and isinstance(args, (list, tuple))
        and isinstance(args[0], _Warm)
        and platform.machine() in _CLONE
        and _parent.fits(environment)
    ):
        return _execute_fresh(self, args, *rest)
    files = [own if at == -1 else at for own, at in enumerate((p2cread, c2pwrite, errwrite))]
    pid = _parent.fork([str(one) for one in args[1:]], cwd and os.fspath(cwd), environment, files)
    if pid is None:
        return _execute_fresh(self, args, *rest)
    self.pid = pid
    self._child_created = True
    self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
    return None


subprocess.Popen._execute_child = _execute  # type: ignore[attr-defined]


def _clone() -> int:
    """As `os.fork`, but the child is one of our parent's (clone(2), CLONE_PARENT), which waits for it."""
    ctypes.pythonapi.PyOS_BeforeFork()
    zeros = [ctypes.c_long(0)] * 4
    pid: int = ctypes.PyDLL(None).syscall(
        ctypes.c_long(_CLONE[platform.machine()]), ctypes.c_long(_CLONE_PARENT | signal.SIGCHLD), *zeros
    )
    (ctypes.pythonapi.PyOS_AfterFork_Parent if pid else ctypes.pythonapi.PyOS_AfterFork_Child)()
    return pid


def _serve(asked: socket.socket) -> list[str]:
    """Forks a child for each request; returns in each child, ready, the arguments of `python` that it was asked for."""
    assert len(os.listdir("/proc/self/task")) == 1, "a thread would be missing in each child"
    while True:
        message, files, _, _ = socket.recv_fds(asked, _MOST, 3)
        if not message:
            os._exit(0)
        if (pid := _clone()) < 0:
            os._exit(1)
        if pid:
            for file in files:
                os.close(file)
            asked.send(str(pid).encode())
            continue
        asked.close()
        arguments, cwd, env, ignored = json.loads(message)
        signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
        for own, file in enumerate(files):
            os.dup2(file, own)
        os.closerange(3, max(files) + 1)
        os.environ.clear()
        os.environ.update(env)
        os.chdir(cwd)
        return arguments


def _run(arguments: list[str]) -> None:
    """As the interpreter would; what it raises ends the process."""
    option, what, *rest = arguments
    sys.path[0] = os.getcwd() if option == "-m" else ""
    sys.argv = [what if option == "-m" else "-c", *rest]
    if option == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
        return
    module = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(what, "<string>", "exec"), vars(module))


if __name__ == "__main__":
    for _name in _IMPORTED:
        importlib.import_module(_name)
    gc.collect()
    gc.freeze()
    _run(_serve(socket.socket(fileno=int(sys.argv[1]))))
