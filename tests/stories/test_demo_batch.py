"""`make demo-batch`: whatever happens, nothing of it is left. Its claims are held by tests/system."""

import asyncio
import signal
import socket
from pathlib import Path

from tests.eventually import eventually
from tests.stories.demo_batch import PLOT, demo, ended, left


async def test_a_taken_port_is_said_and_nothing_is_started(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with demo(tmp_path, "--port", str(port)) as process:
            code, output = await ended(process)
    assert code == 1
    assert f"cannot listen on port {port} of 127.0.0.1" in output
    assert f"make demo-batch ARGS='--port {port + 1}'" in output
    assert "Traceback" not in output
    assert [path.name for path in tmp_path.iterdir()] == [PLOT.parent.name]


async def test_stopped_in_the_middle_it_leaves_nothing(tmp_path: Path) -> None:
    async with demo(tmp_path, "--port", "0", "--alone", "0") as process:
        assert process.stdout is not None
        async with asyncio.timeout(120):
            while b"are submitted" not in await process.stdout.readline():
                assert process.returncode is None
        await eventually(lambda: any("dispatcher submit" in command for command in left(tmp_path)))
        process.send_signal(signal.SIGINT)
        code, output = await ended(process)
    assert code == 130, output
    assert "Traceback" not in output
    assert not left(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [PLOT.parent.name]
