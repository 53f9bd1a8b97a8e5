"""docs/how-to/docker-compose.md: its services start with arguments that the programs take."""

import shlex
import subprocess
import sys
from pathlib import Path

import yaml

from epp.config.flags import parse
from epp.envoy import flags as envoy_flags
from epp.envoy.config import render
from tests.shown_commands import ROOT, blocks

[TEXT] = [b.text for b in blocks(ROOT / "docs" / "how-to" / "docker-compose.md") if b.title == "compose.yaml"]
SERVICES = yaml.safe_load(TEXT)["services"]


def test_the_picker_takes_its_arguments() -> None:
    program, *arguments = SERVICES["picker"]["command"]
    assert program == "epp"
    settings, _, without_effect = parse(arguments)
    assert settings.discovery == "static://worker-a:8000,worker-b:8000"
    assert {"worker-a", "worker-b"} <= SERVICES.keys()
    assert not without_effect
    assert SERVICES["picker"]["ports"] == [f"127.0.0.1:{settings.metrics_port}:{settings.metrics_port}"]


def test_envoy_takes_the_configuration_that_is_printed_for_it(tmp_path: Path) -> None:
    [line] = SERVICES["envoy-config"]["command"]
    command, _, target = line.partition(" > ")
    adsum, program, name, *arguments = shlex.split(command)
    assert (adsum, program, name) == ("adsum", "epp", "envoy-config")
    assert target == SERVICES["envoy"]["command"][1]
    settings = envoy_flags.parse(arguments)
    assert settings.listen.host == "0.0.0.0"
    assert SERVICES["envoy"]["ports"] == [f"{settings.listen.port}:{settings.listen.port}"]
    (tmp_path / "envoy.yaml").write_text(render(settings))
    envoy = Path(sys.executable).with_name("envoy")
    check = [str(envoy), "--mode", "validate", "-c", str(tmp_path / "envoy.yaml")]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_envoy_is_the_one_of_the_chart() -> None:
    chart = yaml.safe_load((ROOT / "charts" / "gateway" / "values.yaml").read_text())
    assert SERVICES["envoy"]["image"] == chart["envoy"]["image"]
