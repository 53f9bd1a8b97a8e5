"""`make demo`, as a stranger runs it: its own claims are the assertions."""

import asyncio
import socket
import sys


async def test_the_demo_claims_nothing_that_did_not_hold() -> None:
    code, output = await run("--port", "0")
    assert code == 0, output
    assert "✗" not in output
    assert output.count("✓") == 8


async def test_a_taken_port_is_said_and_nothing_is_started() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, output = await run("--port", str(port))
    assert code == 1
    assert f"port {port} on 127.0.0.1 cannot be had" in output
    assert "Traceback" not in output


async def run(*options: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.demo", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(55):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    return process.returncode or 0, output.decode()
