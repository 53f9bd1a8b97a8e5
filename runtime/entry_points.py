"""Plugins of installed packages, found by entry points and loaded when their name is used.

https://packaging.python.org/en/latest/specifications/entry-points/
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_LONGEST_CAUSE: Final = 300


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
    """One entry point group: `group` as `adsum.sources`, `what` as "URL scheme". `built_in`: names that adsum has itself.

    The installed packages are looked at on the first call, not before: that takes 10 to 200 ms.
    """

    group: str
    what: str
    built_in: Collection[str]

    def packages(self) -> Mapping[str, str]:
        """By the name of each plugin, in order: the packages that declare it. PluginError for the name of a built-in."""
        claims = self._claims()
        return {name: _joined(claims[name]) for name in sorted(claims)}

    def load(self, name: str) -> InstalledPlugin | None:
        """None where no package declares it; PluginError where two do, or where it cannot be imported."""
        declared = self._claims().get(name, ())
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
            said = f"cannot be loaded from {entry_point.value}: {in_one_line(error)}"
            raise self.unusable(name, _package(entry_point), said) from error
        return InstalledPlugin(name, _package(entry_point), value)

    def open(self, scheme: str, url: str, *, expected: str, members: Sequence[str]) -> Any | None:
        """What the plugin makes of a URL; None where no package declares that scheme.

        `expected`: the kind of function that it should be, for errors. `members`: what the result must have, none: it is a
        function itself. ValueError for a URL that the plugin refuses, PluginError for a fault of the plugin.
        """
        found = self.load(scheme)
        if found is None:
            return None
        if not callable(found.value):
            said = f"is a {type(found.value).__name__}; expected a function like {expected}"
            raise self.unusable(scheme, found.package, said)
        try:
            opened = found.value(url)
        except ValueError:
            raise
        except Exception as error:
            said = f"cannot be opened: {in_one_line(error)}"
            raise self.unusable(scheme, found.package, said) from error
        missing = [member for member in members or ("__call__",) if not hasattr(opened, member)]
        if missing:
            said = f"opened a {type(opened).__name__} without {', '.join(missing)}; expected what {expected} says"
            raise self.unusable(scheme, found.package, said)
        return opened

    def unusable(self, name: str, package: str, said: str) -> PluginError:
        """`said`: what is wrong with it."""
        return PluginError(
            f"the {self.what} {name!r} of the installed package {package} {said}; mend, update or uninstall that package"
        )

    def _claims(self) -> Mapping[str, tuple["EntryPoint", ...]]:
        claims = _claims(self.group, tuple(sys.path))
        for name in sorted(claims.keys() & set(self.built_in)):
            raise PluginError(
                f"the installed package {_joined(claims[name])} declares the {self.what} {name!r}, which adsum has itself; "
                f"rename its entry point in the group {self.group}, or uninstall the package"
            )
        return claims


def in_one_line(error: BaseException, *, kind: bool = True) -> str:
    """The kind of error and what it says, cut to a length that a log line can hold."""
    said = " ".join((f"{type(error).__name__}: {error}" if kind else str(error)).split())
    return said if len(said) <= _LONGEST_CAUSE else f"{said[:_LONGEST_CAUSE]}..."


@lru_cache(maxsize=8)
def _claims(group: str, path: tuple[str, ...]) -> Mapping[str, tuple["EntryPoint", ...]]:
    """The entry points of a group by name, of what is installed on `path`. A configuration is read again and again."""
    from importlib.metadata import entry_points  # it takes longer to import than most programs need to start

    claims: dict[str, tuple[EntryPoint, ...]] = {}
    try:
        for found in entry_points(group=group):
            claims[found.name] = (*claims.get(found.name, ()), found)
    except Exception as error:
        raise PluginError(
            f"the entry points of the installed packages cannot be read: {in_one_line(error)}; "
            "python -m pip check says which package is broken"
        ) from error
    return claims


def _package(entry_point: "EntryPoint") -> str:
    distribution = entry_point.dist
    return "(unknown)" if distribution is None else f"{distribution.name} {distribution.version}"


def _joined(declared: Collection["EntryPoint"]) -> str:
    return " and ".join(sorted(map(_package, declared)))
