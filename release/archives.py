"""Builds the source archive, the wheel for every machine, and a wheel with the compiled picker for each Python that is there."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from release.shell import run

ROOT: Final = Path(__file__).parents[1]
DIST: Final = ROOT / "dist"
_PYTHONS: Final = tuple(f"python3.{minor}" for minor in range(11, 20))
_CAN_COMPILE: Final = (
    "import pathlib, sys, sysconfig, venv;"
    "sys.exit(not (pathlib.Path(sysconfig.get_path('include')) / 'Python.h').is_file())"
)


def build() -> list[Path]:
    """The archives, in the order in which they were built. Older ones in `DIST` are removed. Raises ReleaseError."""
    DIST.mkdir(exist_ok=True)
    for older in [*DIST.glob("adsum-*.whl"), *DIST.glob("adsum-*.tar.gz")]:
        older.unlink()
    run([sys.executable, "-m", "build", "--outdir", str(DIST)], cwd=ROOT)  # the wheel from the source archive
    built = [next(DIST.glob("*.tar.gz")), next(DIST.glob("*-none-any.whl"))]
    for python in pythons():
        before = set(DIST.iterdir())
        run(["make", "wheel", f"PYTHON={python}"], cwd=ROOT)
        built += sorted(set(DIST.iterdir()) - before)
    return built


def pythons() -> Iterator[str]:
    """Find the Pythons on the path that have headers to compile against."""
    for name in _PYTHONS:
        path = shutil.which(name)
        if (
            path is not None
            and subprocess.run([path, "-c", _CAN_COMPILE], stderr=subprocess.DEVNULL, check=False).returncode
            == 0
        ):
            yield path
