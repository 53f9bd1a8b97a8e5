"""The picker with its hot path compiled: its tests, in a copy of the project where `epp` is machine code."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest

from release.compiled_wheel import TREE
from tests.system.building import ROOT

_FEWEST: Final = 2_000
"""Tests that there are at least."""
_LEFT_OUT: Final = (
    # What takes long and runs no compiled code, or only what the others run too: flags and files are read by what stays
    # Python, as programs start and what they print; the others have a picker killed behind Envoy, EDS, and peers too.
    *("config/test_security_flags.py", "config/test_worker_source.py", "serve", "telemetry/test_metrics_auth.py"),
    *("envoy/test_config.py", "envoy/test_eds.py", "envoy/test_failures.py", "peers/test_peers.py"),
    *("decisions/test_decision_commands.py", "scheduling/kv_events/test_batches.py", "scheduling/test_routing_workloads.py"),
    *("scheduling/kv_events/test_cache_index.py", "scheduling/kv_events/test_event_stream.py", "test_chart_schema.py"),
    *("test_docs.py", "test_many_connections.py", "test_process_flags.py", "test_validate.py", "test_wire_messages.py"),
)  # fmt: skip
_HANGS: Final = 3600
"""Seconds after which all tests together hang: each has a bound of its own, and a busy machine is slow."""


def _listed() -> list[str]:
    """What pyproject.toml has compiled, as files."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    include: list[str] = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"]["include"]
    return [path.removeprefix("/") for path in include]


def test_what_is_listed_is_compiled_and_nothing_else() -> None:
    built = [path for package in ("epp", "adsum") for path in TREE.glob(f"{package}/**/*.so")]
    machine_code = {str(path.relative_to(TREE)).split(".")[0] for path in built}
    assert machine_code == {path.removesuffix(".py") for path in _listed()}


@pytest.mark.parametrize("path", _listed())
def test_nothing_of_it_is_a_coroutine(path: str) -> None:
    """mypyc 2.4 ends one with three arguments to `throw`, which warns from Python 3.12 on."""
    assert "async def" not in (ROOT / path).read_text()


def test_what_it_says_is_byte_for_byte_what_the_sources_say() -> None:
    assert _said_to_broken_input(TREE) == _said_to_broken_input(ROOT)


def _said_to_broken_input(project: Path) -> str:
    """The digest of all answers to one seed's frames and messages, whole and broken."""
    fuzz = [sys.executable, "-m", "benchmarks.fuzz_wire", "50000", "20261121"]
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    done = subprocess.run(fuzz, cwd=project, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return next(line for line in done.stdout.splitlines() if line.startswith("said "))


@pytest.mark.timeout(_HANGS)
def test_the_tests_of_the_picker_pass_compiled(tmp_path: Path) -> None:
    """h2spec, h2load and streams given up at every stage too; where those look for what was built, the copy has a link."""
    built = TREE / ".build"
    built.symlink_to(ROOT / ".build")
    report = tmp_path / "report.xml"
    system = [f"tests/system/test_{name}.py" for name in ("h2spec", "h2load", "aborted_streams")]
    options = ["-q", "--strict-markers", f"--junit-xml={report}", "--numprocesses=4", "--dist=loadfile"]
    assert all((ROOT / "tests" / "epp" / name).exists() for name in _LEFT_OUT)
    options += ["--no-loadscope-reorder", *(f"--ignore=tests/epp/{name}" for name in _LEFT_OUT)]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, "tests/epp", *system],
            cwd=TREE,
            env=os.environ | {"SSL_CERT_FILE": "/dev/null"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    finally:
        built.unlink()
    assert done.returncode == 0, done.stdout[-8000:]
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    assert int(suite.get("tests", 0)) >= _FEWEST
    assert suite.get("skipped") == "0"
