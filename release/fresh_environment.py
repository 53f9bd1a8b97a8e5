"""Installs an archive where nothing else is, and tries what it brings."""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from release.first_steps import take
from release.shell import ReleaseError, run

_EXTRAS: Final = "[demo,eds,etcd,kubernetes,kv,otel,tokenizers]"
_PROGRAMS: Final = ("discovery", "registry", "epp", "dispatcher")
_TYPED: Final = "import dispatcher, discovery, epp, registry; print(discovery.__file__)"
_COMPILED: Final = "from epp.scheduling import director; print(director.__file__.endswith('.so'))"


def try_out(archive: Path) -> Iterator[str]:
    """Return what was found, a line each. Raises ReleaseError if it does not install, or a program does not start."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run([_python_of(archive), "-m", "venv", str(folder / "venv")])
        python = str(folder / "venv/bin/python")
        run([python, "-m", "pip", "install", "--quiet", f"{archive}{_EXTRAS}"], cwd=folder)
        yield "installs " + run([str(folder / "venv/bin/adsum"), "--version"], cwd=folder).strip()
        for program in _PROGRAMS:
            run([str(folder / "venv/bin/adsum"), program, "--help"], cwd=folder)
        yield f"starts {', '.join(_PROGRAMS)}"
        if str(folder) not in run([python, "-c", _TYPED], cwd=folder):
            raise ReleaseError(f"{archive.name}: the packages were imported from elsewhere")
        compiled = run([python, "-c", _COMPILED], cwd=folder).strip() == "True"
        if compiled is not (_tag(archive) is not None):
            raise ReleaseError(f"{archive.name}: its name does not say whether the picker is compiled")
        yield "has the compiled picker" if compiled else "is for every machine"
        steps = folder / "steps"
        steps.mkdir()
        yield take(folder / "venv/bin", steps)


def _python_of(archive: Path) -> str:
    tag = _tag(archive)
    return f"python3.{tag}" if tag else "python3"


def _tag(archive: Path) -> str | None:
    """The minor version of the Python that a compiled wheel is for."""
    found = re.search(r"-cp3(\d+)-", archive.name)
    return found[1] if found else None
