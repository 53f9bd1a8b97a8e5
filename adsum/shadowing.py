"""Refuses to import adsum's packages where a module of the user's has the name of one."""

from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

_INSTALLED: Final = Path(__file__).parents[1]


class ShadowedPackageError(ImportError):
    """A file of the user's is imported in place of a package of adsum; the text says which, and what to do."""


def check_not_shadowed(*packages: str) -> None:
    """Raises ShadowedPackageError. Python imports what stands first in `sys.path`, which begins with the script's folder."""
    for package in packages:
        found = PathFinder.find_spec(package)
        if found is None or found.origin is None:  # not installed, or a folder without `__init__.py`
            continue
        path = Path(found.origin)
        if path.stem != "__init__" or path.parents[1].resolve() != _INSTALLED.resolve():
            raise ShadowedPackageError(
                f"{path} has the name of the package {package!r} of adsum, and is imported in its place; "
                "rename it, or start the program in another folder"
            )
