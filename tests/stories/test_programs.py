"""Every program of ours says which version it is, and which extra it lacks."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.mark.parametrize("program", ["registry", "discovery", "epp", "dispatcher"])
def test_every_program_says_its_version(program: str) -> None:
    said = subprocess.run([sys.executable, "-m", program, "--version"], capture_output=True, text=True)
    assert (said.returncode, said.stdout, said.stderr) == (0, f"adsum {VERSION}\n", "")


_WITHOUT = """
import runpy, sys
sys.modules[{module!r}] = None
sys.argv = [{program!r}, *{arguments!r}]
runpy.run_module({program!r}, run_name="__main__")
"""


@pytest.mark.parametrize(
    ("program", "module", "arguments", "extra"),
    [
        ("epp", "numpy", ["--endpoint", "127.0.0.1:9"], "epp"),
        ("dispatcher", "yaml", ["--config", "x.yaml"], "dispatcher"),
    ],
)
def test_a_library_that_is_missing_is_to_be_had_from_a_checkout_or_a_wheel(
    program: str, module: str, arguments: list[str], extra: str
) -> None:
    """No index has a project named adsum: `pip install 'adsum[epp]'` would find nothing, or another one's."""
    code = _WITHOUT.format(program=program, module=module, arguments=arguments)
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.returncode == 1, said.stderr
    assert f"the module '{module}' is not installed" in said.stderr
    assert f"pip install '.[{extra}]'" in said.stderr
    assert "'adsum[" not in said.stderr
