"""A process of `tests/warm_python.py` is what a fresh interpreter would be, but for the modules that are there already."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.warm_python import WARM_PYTHON

SEEN = """
import json, os, signal, sys, threading
handlers = {n: str(signal.getsignal(n)).partition(" at ")[0] for n in (1, 2, 3, 10, 13, 15, 17)}
print(json.dumps({
    "argv": sys.argv, "cwd": os.getcwd(), "path": sys.path, "environment": dict(os.environ), "handlers": handlers,
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), "files": sorted(os.listdir("/proc/self/fd")),
    "threads": threading.active_count(), "parent": os.getppid(), "group": os.getpgid(0), "session": os.getsid(0),
    "buffered": [sys.stdout.line_buffering, sys.stdout.encoding, sys.stderr.errors, sys.stdin.read()],
    "main": sorted(set(vars(sys.modules["__main__"])) & {"json", "handlers", "__name__"}), "logs": "adsum.logs" in sys.modules,
}))
"""


def seen(python: str, folder: Path) -> dict[str, Any]:
    command = [python, "-c", SEEN, "one", "ö two"]
    env = os.environ | {"ADSUM_TOKEN": "a", "ODD": "\udc80"}
    done = subprocess.run(command, cwd=folder, env=env, input="text", capture_output=True, text=True)
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("interrupt", [signal.SIG_IGN, signal.default_int_handler])
def test_it_sees_what_a_fresh_interpreter_sees(tmp_path: Path, interrupt: "signal._HANDLER") -> None:
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        warm, fresh = seen(WARM_PYTHON, tmp_path), seen(sys.executable, tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (warm.pop("logs"), fresh.pop("logs")) == (True, False)
    assert warm == fresh
    assert warm["parent"] == os.getpid()


@pytest.mark.parametrize(
    ("program", "code", "last"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('gone')", 1, "gone"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        ("import atexit, sys; atexit.register(lambda: print('end', file=sys.stderr))", 0, "end"),
    ],
)
def test_it_ends_as_a_fresh_interpreter_does(program: str, code: int, last: str) -> None:
    for python in (WARM_PYTHON, sys.executable):
        done = subprocess.run([python, "-c", program], capture_output=True, text=True)
        assert (done.returncode, (done.stderr.splitlines() or [""])[-1]) == (code, last)


def test_no_two_draw_the_same_numbers() -> None:
    draw = "import random, ssl, uuid; print(random.random(), ssl.RAND_bytes(8).hex(), uuid.uuid4())"
    drawn = [subprocess.check_output([WARM_PYTHON, "-c", draw]).split() for _ in range(3)]
    assert [len(set(column)) for column in zip(*drawn, strict=True)] == [3, 3, 3]
