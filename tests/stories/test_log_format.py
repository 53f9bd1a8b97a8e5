"""With `--log-format json` every line that a program prints is a JSON object: its log, its ready line, the error that ends it."""

import json
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from epp.__main__ import main
from tests.dispatcher.dispatching import document
from tests.free_port import free_port
from tests.in_process import run_here
from tests.warm_python import WARM_PYTHON

JSON = ("--log-format", "json")
PORTS = (
    "--grpc-port=0",
    "--grpc-health-port=0",
    "--metrics-port=0",
    "--host=127.0.0.1",
    "--secure-serving=false",
)


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [WARM_PYTHON, "-m", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def programs(folder: Path) -> dict[str, Sequence[str]]:
    """Each program that runs until it is told to end, with what it needs to start."""
    (folder / "dispatcher.yaml").write_text(document("http://127.0.0.1:9"))
    root = folder / "root"
    root.mkdir(mode=0o700, exist_ok=True)
    source = ("--discovery", f"file://{root}")
    return {
        "epp": (*PORTS, *source),
        "dispatcher": ("--config", str(folder / "dispatcher.yaml")),
        "discovery serve": ("dynamo", "vllm", *source, "--listen", "127.0.0.1:0"),
        "discovery eds": ("dynamo", "vllm", *source, "--out", str(folder / "a file with spaces.json")),
    }


@pytest.mark.parametrize("program", ["epp", "dispatcher", "discovery serve", "discovery eds"])
def test_the_log_and_the_ready_line_are_json(program: str, tmp_path: Path) -> None:
    with started(*program.split(), *programs(tmp_path)[program], *JSON) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        said, logged = process.communicate(timeout=150)
        assert process.returncode == 0
    assert (ready["level"], ready["msg"]) == ("info", "ready")
    addresses = {name: text for name, text in ready.items() if name not in ("level", "ts", "logger", "msg")}
    assert addresses
    assert all(text.endswith(".json") or ":" in text or text == "batch" for text in addresses.values())
    assert not said
    for line in logged.splitlines():
        assert {"level", "ts", "logger", "msg"} <= json.loads(line).keys()


def test_the_sidecars_log_is_json(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir(mode=0o700)
    server = f"http://127.0.0.1:{free_port()}"
    given = (
        "--namespace=dynamo",
        "--component=vllm",
        f"--server={server}",
        f"--discovery=file://{tmp_path / 'root'}",
    )
    with started("registry", *given, *JSON) as process:
        assert process.stderr is not None
        assert "dynamo/vllm" in json.loads(process.stderr.readline())["msg"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("epp", "--log-format=json", "--no-such-flag"), 2, "unknown argument --no-such-flag"),
        (("epp", "--zap-encoder", "json", "--no-such-flag"), 2, "unknown argument --no-such-flag"),
        (("epp", *JSON, "--config-text=plugins: [{type: nonsense}]", *PORTS, "--endpoint=127.0.0.1:9"), 2, "nonsense"),
        (("dispatcher", "--config", "/nowhere.yaml", *JSON), 2, "/nowhere.yaml: cannot be read"),
        (("dispatcher", *JSON), 2, "--config"),
        (("registry", *JSON), 2, "--namespace"),
        (("discovery", "eds", "a", "b", *JSON), 2, "eds needs --out FILE"),
        (("discovery", "serve", *JSON), 2, "namespace"),
    ],
)  # fmt: skip
def test_an_error_at_the_start_is_json(arguments: tuple[str, ...], code: int, words: str) -> None:
    program, *rest = arguments
    said = run_here(import_module(f"{program}.__main__").main, *rest)
    (line,) = [one for one in map(json.loads, said.stderr.splitlines()) if one["level"] == "error"]
    assert (said.returncode, line["level"], line["logger"]) == (code, "error", "error")
    assert words in line["msg"]
    assert not line["msg"].startswith("error:")


def test_two_flags_that_name_different_forms() -> None:
    said = run_here(main, "--log-format=text", "--zap-encoder=json")
    assert said.returncode == 2
    assert "--log-format and --zap-encoder name different forms of the log" in said.stderr
