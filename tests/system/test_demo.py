"""`make demo`, as a stranger runs it: its own claims are the assertions."""

import asyncio
import os
import re
import signal
import sys


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


async def test_prompts_are_computed_elsewhere_and_no_request_fails_with_a_prefill_worker() -> None:
    code, output = await run("--disaggregated", "--port", "0")
    assert code == 0, output
    assert "Traceback" not in output
    assert "✗" not in output
    assert output.count("✓") == 8


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
