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


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What one `mypy --strict` says of all these programs, by program."""
    place = tmp_path_factory.mktemp("programs")
    programs = {f"snippet{number}": text for number, text in enumerate(SNIPPETS)}
    programs = {
        name: WORKER_SERVER + text if "start_server" in text else text for name, text in programs.items()
    } | {"misspelt": MISSPELT, "misnamed": MISNAMED}
    paths = [place / f"{name}.py" for name in programs]
    for path in paths:
        path.write_text(programs[path.stem])
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", *paths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    # mypy's cache keeps errors with the path of the run that found them
    said = [line for line in done.stdout.splitlines() if ": error: " in line]
    return {name: [line for line in said if f"/{name}.py:" in line] for name in programs}


def test_the_snippets_of_our_pages_pass_strictly(errors: dict[str, list[str]]) -> None:
    assert len(SNIPPETS) >= 4
    assert [errors[f"snippet{number}"] for number in range(len(SNIPPETS))] == [[]] * len(SNIPPETS)


def test_a_misspelt_status_is_an_error(errors: dict[str, list[str]]) -> None:
    misspelt = errors["misspelt"]
    assert [re.findall(r"Literal\['(\w+)'\]", error)[0] for error in misspelt] == ["redy", "drained"]
    assert all("set_ready" in error for error in misspelt)


def test_a_misspelt_name_of_a_lazy_package_is_an_error_and_a_right_one_has_its_type(
    errors: dict[str, list[str]],
) -> None:
    instanse, opne, count = errors["misnamed"]
    assert '"Instanse"' in instanse
    assert '"opne"' in opne
    assert '"SourceDiscovery"' in count


@pytest.mark.parametrize("package", ["adsum", "discovery", "registry", "epp", "dispatcher"])
def test_every_package_says_that_it_is_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()
