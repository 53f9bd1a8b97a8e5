"""What `make dist` packs: built here by the same backend, without a network; `make dist` itself installs them with all they need."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from release.first_steps import take

ROOT = Path(__file__).parents[2]
PACKAGES = {"adsum", "discovery", "registry", "epp", "dispatcher"}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder), "-t", "sdist", "-t", "wheel"]
    subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return folder


def test_the_wheel_has_the_packages_and_nothing_else(dist: Path) -> None:
    (wheel,) = dist.glob("*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == PACKAGES
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assert not [name for name in names if name.endswith((".so", ".pyc"))]
    pages = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("static/*.[chjs]*")
    }
    assert {"adsum/web/static/style.css", "adsum/web/static/frame.html"} <= pages
    assert pages <= set(names)


def test_its_page_on_an_index_needs_no_file_of_the_checkout(dist: Path) -> None:
    (wheel,) = dist.glob("*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(packed.read(name))
    assert metadata["Author"]
    page = metadata.get_payload()
    assert page.startswith("# adsum\n")
    assert not re.findall(r"\]\((?!https?://)[^)]*\)", page)


def test_programs_start_from_the_wheel_alone(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path)

    def said(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout

    for program in ("discovery", "registry", "epp", "dispatcher"):
        assert said("-c", f"import {program}; print({program}.__file__)").startswith(str(tmp_path))
        assert said("-m", "adsum", program, "--help").startswith(f"usage: python -m adsum {program}")


def test_the_source_archive_has_what_the_tests_need(dist: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        paths = {name.partition("/")[2] for name in packed.getnames()}
    assert {
        "Makefile",
        "pyproject.toml",
        "charts/epp/Chart.yaml",
        "tests/epp/conftest.py",
        "docs/how-to/vllm.md",
        "docs/picker.md",
        "docs/site.css",
        "mkdocs.yml",
        "release/site/hooks.py",
        "tests/system/stand_ins/vllm",
    } <= paths
    assert not [path for path in paths if path.startswith((".venv", ".build", "dist/"))]


def test_the_first_steps_of_the_readme(tmp_path: Path) -> None:
    """As `make dist` takes them in each fresh environment; here in the one of the tests."""
    assert "a routed request" in take(Path(sys.executable).parent, tmp_path)
