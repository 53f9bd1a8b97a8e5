"""Finds a plugin type by its name: a built-in one, or one that an installed package declares."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from adsum.config.problems import ConfigError
from adsum.entry_points import PluginGroup, in_one_line
from epp.config.catalogue import PLUGINS
from epp.plugins.declaration import ParameterError, PluginContext, PluginDeclaration, Role
from epp.plugins.section import Section
from epp.scheduling.published_only import is_published_only

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
class PluginType:
    """`package`: name and version of the installed package that declares it, `acme 1.0`; empty: built in."""

    name: str
    declaration: PluginDeclaration
    package: str = ""

    def build(self, parameters: Section, context: PluginContext, place: str) -> Any:
        """Build a plugin; raises ConfigError. Code of others may raise anything, so all is caught."""
        try:
            plugin = self.declaration.build(parameters, context)
        except ConfigError:
            raise
        except ParameterError as error:
            raise ConfigError(f"{place}.parameters.{error.field}", in_one_line(error, kind=False)) from error
        except ValueError as error:
            raise ConfigError(f"{place}.parameters", in_one_line(error, kind=False)) from error
        except Exception as error:
            if not self.package:
                raise
            raise self._unusable(place, f"cannot be built: {in_one_line(error)}") from error
        if self.declaration.role in _MEMBERS and plugin is not parameters:  # a type without code
            self._check(plugin, place)
        return plugin

    def _check(self, plugin: object, place: str) -> None:
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

    def _unusable(self, place: str, problem: str) -> ConfigError:
        built_in = f"the built-in {self.name!r} {problem}"
        return ConfigError(
            f"{place}.type",
            str(GROUP.unusable(self.name, self.package, problem)) if self.package else built_in,
        )


def plugin_type(name: str) -> PluginType | None:
    """The type of that name, built-in ones first; None if there is none. Raises PluginError if it cannot be used."""
    if (built_in := PLUGINS.get(name)) is not None:
        return PluginType(name, built_in)
    found = GROUP.load(name)
    return None if found is None else _declared(found.name, found.package, found.value)


def _declared(name: str, package: str, declared: object) -> PluginType:
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
    return PluginType(name, declared, package)
