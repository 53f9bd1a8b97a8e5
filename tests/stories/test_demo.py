"""`make demo`, as a stranger runs it: its own claims are the assertions."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(200)
async def test_the_demo_claims_nothing_that_did_not_hold_and_is_kept_until_ctrl_c() -> None:
    """And what is killed meanwhile, by the command that it prints, is seen."""
    code, output = await run("--port", "0", "--keep", until="worker-4 gone", kills="worker-4")
    assert code == 0, output
    assert "Traceback" not in output
    assert "✗" not in output
    assert output.count("✓") == 10
    assert re.search(r"http://127\.0\.0\.1:\d+/ +# in a browser", output)
    assert set(re.findall(r"kill -9 \d+ +# (\S+)", output)) in (
        {"worker-3", "worker-4"},
        {"worker-1", "worker-4"},
    )


@pytest.mark.timeout(200)
async def test_prompts_are_computed_elsewhere_and_no_request_fails_with_a_prefill_worker() -> None:
    code, output = await run("--disaggregated", "--port", "0")
    assert code == 0, output
    assert "Traceback" not in output
    assert "✗" not in output
    assert output.count("✓") == 8


async def test_a_taken_port_is_said_and_nothing_is_started() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, output = await run("--port", str(port))
    assert code == 1
    assert f"cannot listen on port {port} of 127.0.0.1" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("word", "installed"),
    [
        ("demo", [".[demo]", "demo"]),
        ("demo-batch", [".[demo]", "demo"]),
        ("docs", [".[demo]", "demo", "docs"]),
        ("test", [".[demo]", "demo", ".[demo,etcd,kubernetes,kv,otel,tokenizers]", "dev"]),
    ],
)
def test_each_word_of_make_installs_what_it_needs(word: str, installed: list[str]) -> None:
    """In a fresh checkout: --always-make says that nothing is there yet, --dry-run that nothing is done."""
    said = subprocess.run(
        ["make", "--always-make", "--dry-run", word], cwd=ROOT, capture_output=True, text=True
    )
    assert re.findall(r"(?:--editable '|--group )([^' \n]+)", said.stdout) == installed, said.stderr


async def run(*options: str, until: str | None = None, kills: str | None = None) -> tuple[int, str]:
    """The exit code and all that it said; Ctrl-C comes after the line that has `until` in it.

    `kills`: the worker that is killed as soon as a line says how.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.demo", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    lines = []
    try:
        async with asyncio.timeout(180):
            while line := (await process.stdout.readline()).decode():
                lines.append(line)
                if kills is not None and (told := re.search(rf"kill -9 (\d+) +# {kills}$", line.rstrip())):
                    os.kill(int(told[1]), signal.SIGKILL)
                if until is not None and until in line:
                    process.send_signal(signal.SIGINT)
            await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    return process.returncode or 0, "".join(lines)
