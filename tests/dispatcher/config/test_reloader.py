"""The dispatcher's configuration file, read again."""

import os
import time
from pathlib import Path

import pytest

from adsum.config.problems import ConfigError
from adsum.tasks import background
from dispatcher.broker.contract.queue import QueueError
from dispatcher.config.config_file import Config
from dispatcher.config.reloader import ConfigReloader, load
from tests.eventually import eventually

VALID = """
broker: redis://127.0.0.1:6379/0
targets: [{name: m, url: "http://127.0.0.1:9"}]
queues: [{name: q, target: m, gate: {type: constant}}]
"""


class Server:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.accepted: list[bool] = []

    async def reconfigure(self, config: Config) -> None:
        raise AssertionError("the configuration did not change")

    def set_config_in_force(self, in_force: bool) -> None:
        self.accepted.append(in_force)


class Failing(Server):
    """Refuses one target; notes the targets of what it takes."""

    def __init__(self, refused: str, error: Exception) -> None:
        super().__init__()
        self.applied: list[str] = []
        self._refused = refused
        self._error = error

    async def reconfigure(self, config: Config) -> None:
        name = config.targets[0].name
        if name == self._refused:
            raise self._error
        self.applied.append(name)


async def test_a_named_pipe_in_place_of_the_file_stops_no_dispatcher(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(VALID)
    server = Server()
    reloader = ConfigReloader(path, load(path), server)
    path.unlink()
    os.mkfifo(path)
    async with background(reloader.run(), "reloader"):
        reloader.trigger()
        await eventually(lambda: server.accepted[-1:] == [False])
        assert "is a named pipe; expected a regular file" in caplog.text
        path.unlink()
        path.write_text(VALID)
        reloader.trigger()
        await eventually(lambda: server.accepted[-1:] == [True])


@pytest.mark.parametrize("error", [QueueError("away"), TypeError("of a plugin"), ValueError("of a broker")])
async def test_what_comes_after_a_failure_is_applied_also_what_was_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(VALID)
    server = Failing("n", error)
    reloader = ConfigReloader(path, load(path), server)
    async with background(reloader.run(), "reloader"):
        path.write_text(VALID.replace("name: m", "name: n").replace("target: m", "target: n"))
        reloader.trigger()
        await eventually(lambda: server.accepted[-1:] == [False])
        assert f"the old one stays in force: {error}"[:-1] in caplog.text.replace(
            f"{type(error).__name__}: ", ""
        )
        path.write_text(VALID)
        reloader.trigger()
        await eventually(lambda: server.accepted[-1:] == [True])
    assert server.applied == ["m"]


async def test_an_unchanged_file_is_not_parsed_again(tmp_path: Path) -> None:
    """Refused or not: 1 MiB takes the time of many requests."""
    path = tmp_path / "config.yaml"
    path.write_text(VALID)
    server = Server()
    reloader = ConfigReloader(path, load(path), server)
    large = VALID.replace("queues: [", "queues: [" + "{name: x, target: y, gate: {type: z}}," * 3_000)
    path.write_text(large)

    async def read_again() -> float:
        """The processor seconds that it took."""
        before, seen = time.process_time(), len(server.accepted)
        reloader.trigger()
        await eventually(lambda: len(server.accepted) > seen)
        return time.process_time() - before

    async with background(reloader.run(), "reloader"):
        first = await read_again()
        second = await read_again()
    assert second < first / 4


def test_a_file_without_an_end(tmp_path: Path) -> None:
    endless = tmp_path / "config.yaml"
    endless.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="is larger than 1048576 bytes"):
        load(endless)
