"""The dispatcher's configuration file, read again."""

import os
from pathlib import Path

import pytest

from dispatcher.config.config_file import Config
from dispatcher.config.reloader import ConfigReloader, load
from runtime.tasks import background
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
