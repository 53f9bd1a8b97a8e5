"""A package whose names are imported when somebody asks for them (PEP 562): importing the package itself costs nothing."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def lazy_imports(
    package: str, exports: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The package's `__getattr__` and `__dir__`; `exports`: the names that each module has for it.

    Type checkers read the same imports under `if TYPE_CHECKING:`; `__getattr__` belongs into its `else`, or they would
    take any name for one of the package's. As after those imports, the modules too are there without an import.
    """
    homes = {name: module for module, names in exports.items() for name in names}
    inside = [module.removeprefix(f"{package}.") for module in exports if module.startswith(f"{package}.")]
    modules = {path.partition(".")[0] for path in inside}

    def find(name: str) -> object:
        if name in homes:
            value = getattr(import_module(homes[name]), name)
        elif name in modules:
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)  # the next time it is found there
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return find, names
