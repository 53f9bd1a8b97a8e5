"""What users write against the packages is checked by their type checker: our pages' snippets, and misspellings."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SNIPPETS = [
    text
    for page in ("README.md", "docs/discovery.md", "docs/wire-contract.md")
    for text in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
]
WORKER_SERVER = """
from registry import InstanceHandle
class Server:
    async def wait_closed(self) -> None: ...
async def start_server(port: int, worker: InstanceHandle) -> Server:
    return Server()
"""
"""What README's worker calls `yours`."""
MISSPELT = """
import asyncio, registry, registry.blocking
from discovery import InstanceStatus
async def main() -> None:
    async with registry.open("memory://x").register_instance("a", "b") as worker:
        worker.set_ready("ready")
        worker.set_ready("not_ready", "loading")
        worker.set_ready(InstanceStatus.DRAINING)
        worker.set_ready("redy")
with registry.blocking.open("memory://x") as workers, workers.register_instance("a", "b") as worker:
    worker.set_ready("draining")
    worker.set_ready("drained")
"""
MISNAMED = """
import discovery, registry
from discovery import Instanse
from registry import Contract, InstanceHandle
registry.opne()
count: int = discovery.open()
"""
"""The packages import their names lazily, which type checkers must not take for leave to name anything."""

# the first look at all that is imported takes a minute on a busy machine
pytestmark = pytest.mark.timeout(600)


def checked(place: Path, **programs: str) -> list[str]:
    """Returns the output of `mypy --strict` for these programs, without paths."""
    paths = []
    for name, text in programs.items():
        paths.append(place / f"{name}.py")
        paths[-1].write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", *paths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return [line.replace(f"{place}/", "") for line in done.stdout.splitlines() if ": error: " in line]


def test_the_snippets_of_our_pages_pass_strictly(tmp_path: Path) -> None:
    programs = {f"snippet{number}": text for number, text in enumerate(SNIPPETS)}
    programs = {
        name: WORKER_SERVER + text if "start_server" in text else text for name, text in programs.items()
    }
    assert len(programs) >= 4
    assert checked(tmp_path, **programs) == []


def test_a_misspelt_status_is_an_error(tmp_path: Path) -> None:
    errors = checked(tmp_path, misspelt=MISSPELT)
    assert [re.findall(r"Literal\['(\w+)'\]", error)[0] for error in errors] == ["redy", "drained"]
    assert all("set_ready" in error for error in errors)


def test_a_misspelt_name_of_a_lazy_package_is_an_error_and_a_right_one_has_its_type(tmp_path: Path) -> None:
    instanse, opne, count = checked(tmp_path, misnamed=MISNAMED)
    assert '"Instanse"' in instanse
    assert '"opne"' in opne
    assert '"SourceDiscovery"' in count


@pytest.mark.parametrize("package", ["adsum", "discovery", "registry", "epp", "dispatcher"])
def test_every_package_says_that_it_is_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()
