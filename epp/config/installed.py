"""Finds the plugin types of installed packages, when a configuration names one that is not built in."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from epp.config.catalogue import PLUGINS, PluginType, Role
from epp.config.declaration import PluginDeclaration
from epp.config.document import Section
from epp.scheduling.published_only import is_published_only
from runtime.config.problems import ConfigError
from runtime.entry_points import PluginGroup, in_one_line

P = TypeVar("P")

GROUP: Final = PluginGroup("adsum.plugins", "plugin type", PLUGINS.keys())

_MEMBERS: Final[Mapping[Role, tuple[str, ...]]] = {
    Role.FILTER: ("filter",),
    Role.SCORER: ("score", "published_only"),
    Role.PICKER: ("pick",),
    Role.HANDLER: ("check", "pick", "result"),
    Role.FAIRNESS: ("selector",),
    Role.ORDERING: ("rank",),
    Role.USAGE_LIMIT: ("ceilings", "per_request"),
    Role.PRODUCER: ("prepare", "picked", "served", "failed", "sized", "forget", "retain"),
}
"""The roles that a package can add plugins for, and the members of their Protocols, which `epp.extension` has."""


@dataclass(frozen=True, slots=True)
class BuildContext:
    """A PluginContext. `find` builds the producer of a name; raises ConfigError."""

    rng: random.Random
    find: Callable[[str], Any]

    def producer(self, name: str, expected: type[P]) -> P:
        found = self.find(name)
        if not isinstance(found, expected):
            problem = f"{name!r} is a {type(found).__name__}, expected a {expected.__name__}"
            raise ValueError(problem)  # noqa: TRY004  # a mistake in the file, not in the plugin
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledPluginType(PluginType):
    """A type that an installed package declares; `package`: its name and version, `acme 1.0`."""

    name: str
    package: str
    declaration: PluginDeclaration

    def build_plugin(self, parameters: Section, context: BuildContext, place: str) -> Any:
        """Build the plugin and check its members; raises ConfigError. Code of others may raise anything, so all is caught."""
        try:
            plugin = self.declaration.build(parameters, context)
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(f"{place}.parameters", in_one_line(error, kind=False)) from error
        except Exception as error:
            raise self._unusable(place, f"cannot be built: {in_one_line(error)}") from error
        role = self.declaration.role
        if missing := [member for member in _MEMBERS[role] if not hasattr(plugin, member)]:
            problem = (
                f"built a {type(plugin).__name__} without {', '.join(missing)}; expected {role.with_article}"
            )
            raise self._unusable(place, problem)
        if role is Role.SCORER:
            try:
                is_published_only(plugin)
            except ValueError as error:
                raise self._unusable(place, f"cannot be used: {error}") from error
        return plugin

    def _unusable(self, place: str, problem: str) -> ConfigError:
        return ConfigError(f"{place}.type", str(GROUP.unusable(self.name, self.package, problem)))


def plugin_type(name: str) -> PluginType | None:
    """The type of that name, built-in ones first; None if there is none. Raises PluginError if it cannot be used."""
    if (built_in := PLUGINS.get(name)) is not None:
        return built_in
    found = GROUP.load(name)
    return None if found is None else _declared(found.name, found.package, found.value)


def _declared(name: str, package: str, declared: object) -> InstalledPluginType:
    if not isinstance(declared, PluginDeclaration):
        problem = f"is a {type(declared).__name__}; expected an epp.extension.PluginDeclaration"
        raise GROUP.unusable(name, package, problem)
    if declared.role not in _MEMBERS:
        roles = ", ".join(f"Role.{role.name}" for role in _MEMBERS)
        raise GROUP.unusable(name, package, f"has the role {declared.role!r:.60}; expected one of {roles}")
    parameters: object = declared.parameters
    if not (isinstance(parameters, type) and issubclass(parameters, Section)):
        problem = f"has the parameters {parameters!r:.60}; expected a subclass of epp.extension.Section"
        raise GROUP.unusable(name, package, problem)
    return InstalledPluginType(
        frozenset({declared.role}),
        parameters,
        lambda given, rng: given,  # built where its producers are known: epp.config.plugins
        scraped=declared.role is Role.SCORER and declared.reads_metrics,
        name=name,
        package=package,
        declaration=declared,
    )
