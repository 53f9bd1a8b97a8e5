"""Finds plugins of installed packages by their entry points, and loads one when its name is used.

https://packaging.python.org/en/latest/specifications/entry-points/
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_MAX_CAUSE: Final = 300


class PluginError(ValueError):
    """A plugin of an installed package cannot be used; the text names the package and says what to do."""


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """`package`: distribution and version, as `acme 1.0`. `value`: what the entry point refers to."""

    name: str
    package: str
    value: Any


@dataclass(frozen=True, slots=True)
class PluginGroup:
    """One entry point group. `group`: such as `adsum.sources`; `what`: such as "URL scheme", for errors. `built_in`: names
    that adsum itself has.

    The installed packages are scanned on the first call, because that takes 10 to 200 ms.
    """

    group: str
    what: str
    built_in: Collection[str]

    def packages(self) -> Mapping[str, str]:
        """The packages that declare each plugin, sorted by name. Raises PluginError for the name of a built-in plugin."""
        declared_by_name = self._declared_plugins()
        return {name: _joined(declared_by_name[name]) for name in sorted(declared_by_name)}

    def load(self, name: str) -> InstalledPlugin | None:
        """Import a plugin; None if no package declares it. Raises PluginError if two do, or if the import fails."""
        declared = self._declared_plugins().get(name, ())
        if not declared:
            return None
        if len(declared) > 1:
            raise PluginError(
                f"two installed packages declare the {self.what} {name!r}: {_joined(declared)}; uninstall one of them, "
                f"or rename its entry point in the group {self.group}"
            )
        (entry_point,) = declared
        try:
            value = entry_point.load()
        except (Exception, SystemExit) as error:
            problem = f"cannot be loaded from {entry_point.value}: {in_one_line(error)}"
            raise self.unusable(name, _package(entry_point), problem) from error
        return InstalledPlugin(name, _package(entry_point), value)

    def open(self, scheme: str, url: str, *, expected: str, members: Sequence[str]) -> Any | None:
        """Return what the plugin opens from a URL; None if no package declares the scheme.

        `expected`: the protocol of the plugin, for errors. `members`: the attributes that the result must have; empty: it
        must be callable. Raises ValueError for a URL that the plugin rejects, PluginError for a fault of the plugin.
        """
        found = self.load(scheme)
        if found is None:
            return None
        if not callable(found.value):
            problem = f"is a {type(found.value).__name__}; expected a function like {expected}"
            raise self.unusable(scheme, found.package, problem)
        try:
            opened = found.value(url)
        except ValueError:
            raise
        except Exception as error:
            problem = f"cannot be opened: {in_one_line(error)}"
            raise self.unusable(scheme, found.package, problem) from error
        missing = [member for member in members or ("__call__",) if not hasattr(opened, member)]
        if missing:
            problem = f"opened a {type(opened).__name__} without {', '.join(missing)}; expected what {expected} says"
            raise self.unusable(scheme, found.package, problem)
        return opened

    def unusable(self, name: str, package: str, problem: str) -> PluginError:
        """The error for a plugin that cannot be used; `problem` completes the sentence."""
        return PluginError(
            f"the {self.what} {name!r} of the installed package {package} {problem}; mend, update or uninstall that package"
        )

    def _declared_plugins(self) -> Mapping[str, tuple["EntryPoint", ...]]:
        declared_by_name = _declared_plugins(self.group, tuple(sys.path))
        for name in sorted(declared_by_name.keys() & set(self.built_in)):
            raise PluginError(
                f"the installed package {_joined(declared_by_name[name])} declares the {self.what} {name!r}, which adsum has itself; "
                f"rename its entry point in the group {self.group}, or uninstall the package"
            )
        return declared_by_name


def in_one_line(error: BaseException, *, kind: bool = True) -> str:
    """The error's type and text on one line, cut to a length that fits a log line."""
    # bounded: a message of an installed package
    problem = " ".join((f"{type(error).__name__}: {error}" if kind else str(error)).split())
    return problem if len(problem) <= _MAX_CAUSE else f"{problem[:_MAX_CAUSE]}..."


@lru_cache(maxsize=8)
# bounded: 8 groups, of what is installed on this machine
def _declared_plugins(group: str, path: tuple[str, ...]) -> Mapping[str, tuple["EntryPoint", ...]]:
    """The entry points of a group by name, of the packages on `path`. Cached, because configurations are reloaded."""
    from importlib.metadata import entry_points  # slow to import, and most programs never need it

    declared_by_name: dict[str, tuple[EntryPoint, ...]] = {}
    try:
        for found in entry_points(group=group):
            declared_by_name[found.name] = (*declared_by_name.get(found.name, ()), found)
    except Exception as error:
        raise PluginError(
            f"the entry points of the installed packages cannot be read: {in_one_line(error)}; "
            "python -m pip check says which package is broken"
        ) from error
    return declared_by_name


def _package(entry_point: "EntryPoint") -> str:
    distribution = entry_point.dist
    return "(unknown)" if distribution is None else f"{distribution.name} {distribution.version}"


def _joined(declared: Collection["EntryPoint"]) -> str:
    return " and ".join(sorted(map(_package, declared)))
