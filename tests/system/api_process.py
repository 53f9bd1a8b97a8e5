"""Runs a real API server as a process that can be killed and started again with the same data and port."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.system.building import BINARIES

_STOP: Final = 90.0


class ApiProcess:
    """A context manager. `listen`: where it listens; `advertise`: the address that clients use and its certificate
    names. `inside`: a command that runs another one elsewhere, in a network namespace. `arguments`: of kube-apiserver.
    """

    def __init__(
        self,
        *,
        listen: str = "127.0.0.1",
        advertise: str | None = None,
        inside: Sequence[str] = (),
        arguments: Sequence[str] = (),
    ) -> None:
        self.address = advertise or listen
        self.port = 0
        self.folder = Path(tempfile.mkdtemp(prefix="api"))  # short: etcd's sockets live there
        self._listen = listen
        self._inside = list(inside)
        self._arguments = list(arguments)
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.port}"

    @property
    def authority(self) -> Path:
        """The certificate that clients trust."""
        return self.folder / "data" / "pki" / "apiserver.crt"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "data" / "kubeconfig"

    @property
    def token(self) -> str:
        """The administrator's bearer token."""
        return (self.folder / "data" / "tokens.csv").read_text().partition(",")[0]

    def start(self) -> float:
        """Returns once it serves and its controller runs, with the seconds that it took; blocking."""
        started = time.monotonic()
        command = [
            *self._inside,
            str(BINARIES / "apiserver"),
            *("--data-dir", str(self.folder / "data")),
            *("--listen", self._listen, "--advertise", self.address, "--secure-port", str(self.port)),
            *("--", *self._arguments),
        ]
        log = (self.folder / "log").open("a")
        with log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | {"GOMAXPROCS": "2"},
            )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said.startswith("ready"):
            self.kill()
            tail = (self.folder / "log").read_text()[-3000:]
            raise AssertionError(f"the API server did not start:\n{tail}")
        self.port = int(said.rpartition(":")[2])
        return time.monotonic() - started

    def kill(self) -> None:
        """Sends SIGKILL and waits for its exit."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Sends SIGTERM and waits for its exit."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(_STOP)
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
