"""`make dist`: the archives install where nothing else is, and the programs start from them."""

import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.system.building import ROOT

PACKAGES = {"adsum", "runtime", "discovery", "registry", "epp", "dispatcher"}


@pytest.fixture(scope="module")
def dist() -> Path:
    done = subprocess.run(
        ["make", "dist"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "has the compiled picker" in done.stdout
    return ROOT / "dist"


@pytest.mark.timeout(900)
def test_a_wheel_has_the_packages_and_nothing_else(dist: Path) -> None:
    wheels = list(dist.glob("*.whl"))
    assert len(wheels) >= 2
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as packed:
            names = {name.split("/")[0] for name in packed.namelist()}
        assert {name for name in names if not name.endswith((".dist-info", ".so"))} == PACKAGES
        assert "epp/py.typed" in zipfile.ZipFile(wheel).namelist()


@pytest.mark.timeout(900)
def test_the_source_archive_has_what_the_tests_need(dist: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        paths = {name.partition("/")[2] for name in packed.getnames()}
    for needed in (
        "Makefile",
        "pyproject.toml",
        "charts/epp/Chart.yaml",
        "tests/epp/__init__.py",
        "docs/picker.md",
    ):
        assert needed in paths or (ROOT / needed).exists() is False
    assert not [path for path in paths if path.startswith((".venv", ".build", "dist/"))]
