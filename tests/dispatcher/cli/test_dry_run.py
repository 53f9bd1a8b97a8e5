"""`--dry-run` says why a gate of an installed package is closed, though it reads no metric."""

from pathlib import Path

import pytest

from dispatcher.cli.dry_run import dry_run
from dispatcher.config.config_file import read_config
from tests.installed_package import install, see

MODULE = """\
from contextlib import asynccontextmanager
from dispatcher.extension import Changes, GateDeclaration, RefusedError, Scope


class NightGate:
    def __init__(self, given, context):
        self.changes = Changes()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_): ...

    def budget(self):
        return 0.0

    @asynccontextmanager
    async def admit(self, candidate):
        raise RefusedError("closed until 22:00", Scope.QUEUE, lambda: self.changes.wait(60.0, self.changes.count))
        yield


class BrokenGate(NightGate):
    def admit(self, candidate):
        raise KeyError("clock")


NIGHT = GateDeclaration(build=NightGate)
BROKEN = GateDeclaration(build=BrokenGate)
"""


@pytest.mark.parametrize(
    ("gate", "said"),
    [("acme-night", "closed until 22:00"), ("acme-broken", "the gate failed: KeyError: 'clock'")],
)
async def test_a_closed_gate_says_why_though_nothing_waits(
    gate: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points = {"acme-night": "acme:NIGHT", "acme-broken": "acme:BROKEN"}
    see(monkeypatch, install(tmp_path, "acme", {"adsum.gates": points}, module=MODULE))
    text = (
        "broker: memory://dry\ntargets: [{name: pool, url: http://127.0.0.1:9}]\n"
        f"queues: [{{name: batch, target: pool, gate: {{type: {gate}}}}}, {{name: idle, target: pool, gate: {{type: constant}}}}]"
    )
    assert await dry_run(read_config(text, {})) == []
    batch, idle = capsys.readouterr().out.split("queue idle")
    assert batch.splitlines()[2:] == ["  nothing waits", f"  would not send a request: {said}"]
    assert idle.splitlines()[2:] == ["  nothing waits"]
