"""The README's first steps in a fresh environment: a worker, who is there, a picker, a real Envoy, a request."""

import json
import os
import random
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from release.shell import ReleaseError, run

_HERE: Final = Path(__file__).parent
_README: Final = _HERE.parent / "README.md"
_PATIENCE: Final = 120.0
"""Seconds that a step may take."""
_NAMES: Final = ("--namespace", "dynamo", "--component", "decode")
_ASKED: Final = {"model": "Qwen3-32B", "messages": [{"role": "user", "content": "Hello"}]}


def take(programs: Path, folder: Path) -> str:
    """Take the first steps, and return a line that says what was done. `programs`: the environment's `bin`; `folder`: an empty one. Raises ReleaseError."""
    root = folder / "workers"
    root.mkdir(mode=0o700)
    environment = {"ADSUM_ROOT": str(root), "PATH": f"{programs}:{os.environ['PATH']}"}
    served, listening = _free_port(), _free_port()
    with ExitStack() as running:
        worker = [programs / "python", _HERE / "readme_worker.py", _README, served]
        running.enter_context(_process(worker, folder, environment))
        _until(lambda: f"http://127.0.0.1:{served}" in _list(programs, folder, environment))
        ports = ("--host", "127.0.0.1", "--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0")
        picker = [programs / "adsum", "epp", *_NAMES, *ports]
        said = running.enter_context(_process(picker, folder, environment))
        grpc = dict(pair.split("=") for pair in _line(said, "ready ").split()[1:])["grpc"]
        ours = ("--epp", grpc, "--listen-port", str(listening), "--admin-port", "0")
        config = run([str(programs / "adsum"), "epp", "envoy-config", *ours], cwd=folder)
        (folder / "envoy.yaml").write_text(config)
        envoy = [programs / "envoy", "-c", folder / "envoy.yaml", "--use-dynamic-base-id", "-l", "warning"]
        running.enter_context(_process(envoy, folder, environment))
        _until(lambda: _answers(f"http://127.0.0.1:{listening}/v1/chat/completions"))
    return "takes the README's first steps: a worker, the picker, Envoy, a routed request"


def _list(programs: Path, folder: Path, environment: dict[str, str]) -> str:
    command = [str(programs / "adsum"), "discovery", "list", "dynamo", "decode", "--metadata"]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    return done.stdout


def _answers(url: str) -> bool:
    request = urllib.request.Request(  # noqa: S310  # an address of this machine
        url, json.dumps(_ASKED).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            return bool(json.load(answer)["choices"][0]["message"]["content"] == "Hello")
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def _process(command: list[object], folder: Path, environment: dict[str, str]) -> Iterator[Path]:
    """Yields the file with what it says."""
    log = folder / f"{len(list(folder.glob('*.log')))}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=folder,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield log
    except ReleaseError as fault:
        raise ReleaseError(f"{fault}\n{log.read_text()[-2000:]}") from fault
    finally:
        process.kill()
        process.wait()


def _line(log: Path, beginning: str) -> str:
    found: list[str] = []

    def is_there() -> bool:
        found[:] = [line for line in log.read_text().splitlines() if line.startswith(beginning)]
        return bool(found)

    _until(is_there)
    return found[0]


def _until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + _PATIENCE
    while not holds():
        if time.monotonic() > ends:
            raise ReleaseError("a step of the README did not come to its end")
        time.sleep(0.2)


def _free_port() -> int:
    """Returns a port below Linux's ephemeral range, so that no connection takes it before the program does."""
    while True:
        port = random.randrange(10_000, 32_768)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
