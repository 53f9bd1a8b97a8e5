"""The words of make for a fresh checkout, and a demo that cannot start. What it claims is held by tests/system."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_a_taken_port_is_said_and_nothing_is_started() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "examples.demo", "--port", str(port)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 1
    assert f"cannot listen on port {port} of 127.0.0.1" in done.stdout
    assert "Traceback" not in done.stdout


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
