"""Runs a real etcd as a process that can be killed, frozen, and started again with the same data and ports."""

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from discovery.errors import DiscoveryError
from discovery.etcd.client import EtcdClient, EtcdTimings
from discovery.etcd.connection import RANGE
from discovery.etcd.messages.etcd_pb2 import KeyValue, RangeRequest
from discovery.etcd.url import EtcdSettings, EtcdTls
from tests.eventually import eventually
from tests.free_port import free_port
from tests.system.building import BINARIES

_STOP: Final = 90.0


class EtcdProcess:
    """One member; an async context manager. `tls`: of its clients, whose flags are among `arguments`. `peers`: all members
    of its cluster, by name and peer URL."""

    def __init__(
        self, *arguments: str, name: str = "default", tls: EtcdTls | None = None, peers: str | None = None
    ) -> None:
        self.name = name
        self.port = free_port()
        self.peer_url = f"http://127.0.0.1:{free_port()}"
        self.folder = Path(tempfile.mkdtemp(prefix="etcd"))
        self._tls = tls
        self.peers = peers
        self._arguments: Sequence[str] = arguments
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def member(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """For discovery and registry, without a prefix."""
        return f"etcd://{self.member}"

    def launch(self) -> None:
        """Returns at once."""
        client = f"{'http' if self._tls is None else 'https'}://{self.member}"
        flags = {
            "name": self.name,
            "data-dir": str(self.folder / "data"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": self.peer_url,
            "initial-advertise-peer-urls": self.peer_url,
            "initial-cluster": self.peers or f"{self.name}={self.peer_url}",
            "log-level": "error",
        }
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(BINARIES / "etcd"),
                    *(f"--{flag}={value}" for flag, value in flags.items()),
                    "--unsafe-no-fsync",
                    *self._arguments,
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=os.environ | {"GOMAXPROCS": "2"},
            )

    async def start(self) -> None:
        """Returns once it serves."""
        self.launch()
        await self.wait_serving()

    async def wait_serving(self) -> None:
        async def answers() -> bool:
            try:
                await self.keys()
            except DiscoveryError:
                assert self._process is not None
                assert self._process.poll() is None, (self.folder / "log").read_text()[-3000:]
                return False
            return True

        await eventually(answers)

    async def keys(self) -> dict[str, KeyValue]:
        """All that it stores."""
        async with an_etcd_client(EtcdSettings((self.member,), tls=self._tls)) as client:
            answer = await client.call(RANGE, RangeRequest(key=b"\0", range_end=b"\0"))
        return {stored.key.decode(): stored for stored in answer.kvs}

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Sends SIGKILL and waits for its exit."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait(_STOP)
        assert process.stdin is not None
        process.stdin.close()

    def forget(self) -> None:
        """What it stored, once it is killed."""
        shutil.rmtree(self.folder / "data")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@asynccontextmanager
async def an_etcd_client(settings: EtcdSettings) -> AsyncIterator[EtcdClient]:
    client = EtcdClient(settings, EtcdTimings(call=60.0))
    try:
        yield client
    finally:
        await client.aclose()
