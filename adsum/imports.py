"""How adsum's packages are imported: public names on first access (PEP 562), and never a file of the user's in place of one."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final


def lazy_imports(
    package: str, exports: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """The package's `__getattr__`, `__dir__` and `__all__`. `exports`: the public names by the module that defines them.

    Assign them in the `else` of `if TYPE_CHECKING:`, which has the same names as imports: a type checker that saw
    `__getattr__` would accept any name. Submodules of `exports` become attributes too, as after an import.
    """
    module_of = {name: module for module, names in exports.items() for name in names}
    own_modules = [
        module.removeprefix(f"{package}.") for module in exports if module.startswith(f"{package}.")
    ]
    submodules = {path.partition(".")[0] for path in own_modules}

    def get_attribute(name: str) -> object:
        if name in module_of:
            value = getattr(import_module(module_of[name]), name)
        elif name in submodules:
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)  # later accesses find it without this function
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return get_attribute, list_names, sorted(module_of)


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
