"""`make demo-batch`, shorter: its own claims are the assertions; whatever happens, nothing of it is left."""

import asyncio
import os
import signal
import socket
import sys
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

Eventually = Callable[..., Awaitable[float]]
WITHIN = 100.0
PLOT = Path("plots", "demo.svg")


@asynccontextmanager
async def demo(temporary: Path, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Running, all its files below `temporary`; killed in the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.demo_batch", "--plot", str(temporary / PLOT), *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ | {"TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str]:
    async with asyncio.timeout(WITHIN):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


def left(temporary: Path) -> list[str]:
    """Command lines of the processes that were started for it and still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:  # it ended just now
            continue
        if str(temporary).encode() in command:
            found.append(command.replace(b"\0", b" ").decode())
    return found


@pytest.mark.timeout(120)
async def test_the_demo_claims_nothing_that_did_not_hold(tmp_path: Path) -> None:
    async with demo(tmp_path, "--port", "0", "--requests", "300", "--alone", "2") as process:
        code, output = await ended(process)
    assert code == 0, output
    assert "✗" not in output
    assert output.count("✓") == 6
    assert "300 answers to 300 requests, 0 without, 0 with two" in output
    assert "without batch" in output
    assert "with batch" in output
    ET.parse(tmp_path / PLOT)
    assert not left(tmp_path)


async def test_a_taken_port_is_said_and_nothing_is_started(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with demo(tmp_path, "--port", str(port)) as process:
            code, output = await ended(process)
    assert code == 1
    assert f"port {port} on 127.0.0.1 cannot be had" in output
    assert f"make demo-batch ARGS='--port {port + 1}'" in output
    assert "Traceback" not in output
    assert [path.name for path in tmp_path.iterdir()] == [PLOT.parent.name]


async def test_stopped_in_the_middle_it_leaves_nothing(tmp_path: Path, eventually: Eventually) -> None:
    async with demo(tmp_path, "--port", "0", "--alone", "0") as process:
        assert process.stdout is not None
        async with asyncio.timeout(40):
            while b"are submitted" not in await process.stdout.readline():
                assert process.returncode is None
        await eventually(lambda: any("dispatcher submit" in command for command in left(tmp_path)), within=20)
        process.send_signal(signal.SIGINT)
        code, output = await ended(process)
    assert code == 130, output
    assert "Traceback" not in output
    assert not left(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [PLOT.parent.name]
