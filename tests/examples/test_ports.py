"""Ports for programs that listen later are not given twice, in any process of the machine."""

import socket
import subprocess
import sys

import pytest

from examples import ports
from tests.free_port import free_port

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody hears of another's ports")


def test_a_port_whose_program_does_not_listen_yet_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = free_port()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free: int = probe.getsockname()[1]
    drawn = iter([taken, free])
    monkeypatch.setattr("random.randrange", lambda *_: next(drawn))
    assert ports.free_port() == free
    asked = f"from examples.ports import reserve; raise SystemExit(reserve({taken}))"
    assert subprocess.run([sys.executable, "-c", asked]).returncode == 0, "in another process too"


def test_few_are_kept() -> None:
    first = free_port()
    for _ in range(40):
        ports.free_port()
    assert ports.reserve(first)
