"""`python -m release.compiled_wheel`: builds a wheel whose picker has a compiled hot path, from a copy of the project (docs/picker.md).

From a copy, because mypyc leaves its extension modules beside the sources, and Python imports those instead.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_BUILT: Final = ROOT / ".build" / f"compiled-{sys.version_info.major}.{sys.version_info.minor}"
TREE: Final = _BUILT / "tree"
"""A copy of the project in which `epp` is compiled: start programs there."""
_LEFT_OUT: Final = shutil.ignore_patterns(".*", "__pycache__", "dist")
_SOURCES: Final = ("pyproject.toml", "epp/**/*.py", "epp/**/*.pyi", "discovery/**/*.py", "adsum/**/*.py")


class CompileError(Exception):
    """The wheel cannot be built; the text says what to install, or shows the compiler's errors."""


def build() -> Path:
    """Builds TREE again, with the compiled modules in it; raises CompileError."""
    built = wheel()
    _copy()
    with zipfile.ZipFile(built) as packed:
        packed.extractall(TREE)
    return TREE


def wheel() -> Path:
    """Returns a wheel for this Python and this machine; builds it, which takes minutes, if a source changed. Raises CompileError."""
    stamp, made_of = _BUILT / "made-of", _digest()
    if not stamp.is_file() or stamp.read_text() != made_of:
        shutil.rmtree(_BUILT, ignore_errors=True)
        _copy()
        _compile()
        stamp.write_text(made_of)
    return next(_BUILT.glob("*.whl"))


def _copy() -> None:
    shutil.rmtree(TREE, ignore_errors=True)
    shutil.copytree(ROOT, TREE, ignore=_LEFT_OUT)


def _compile() -> None:
    _check_compiler()
    print("compiling the picker, two or three minutes ...", file=sys.stderr, flush=True)
    done = subprocess.run(  # noqa: PLW1510  # what pip said is told
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(_BUILT), "."],
        cwd=TREE,
        env=os.environ | {"HATCH_BUILD_HOOK_ENABLE_MYPYC": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        log = _BUILT / "pip.log"
        log.write_text(done.stdout)
        faults = [line.strip()[:200] for line in done.stdout.splitlines() if "error:" in line]
        told = "\n".join(faults[:5])
        raise CompileError(f"the picker does not compile; all that pip said is in {log}, of it:\n{told}")


def _check_compiler() -> None:
    compiler = os.environ.get("CC") or str(sysconfig.get_config_var("CC") or "cc")
    if shutil.which(compiler.split()[0]) is None:
        raise CompileError(f"there is no C compiler {compiler.split()[0]!r}: install gcc, or name one in CC")
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        raise CompileError(f"there is no Python.h in {headers}: install Python's headers (python3-dev)")


def _digest() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted(path for pattern in _SOURCES for path in ROOT.glob(pattern)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for older in folder.glob(f"adsum-*-cp{sys.version_info.major}{sys.version_info.minor}-*.whl"):
        older.unlink()
    try:
        print(shutil.copy(wheel(), folder))
    except CompileError as fault:
        sys.exit(f"error: {fault}")
