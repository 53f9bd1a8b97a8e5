"""The plugins of one configuration by name: each is built once, and a reference is checked against what it is for."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from epp.catalogue import GO_ONLY, PLUGINS, PluginType, Role
from epp.config_document import ConfigError, PluginSpec, Section, read_section

P = TypeVar("P", bound=Section)


@dataclass(frozen=True, slots=True)
class Plugin:
    """One plugin of the file; `built` is a filter, a scorer, ..., or the parameters of a structural one."""

    kind: PluginType
    parameters: Section
    built: Any

    def has(self, role: Role) -> bool:
        return role in self.kind.roles


class Plugins:
    """The plugins of a file by name; what is wrong with one of them, or with a reference to one, is a ConfigError."""

    def __init__(self, specs: list[PluginSpec], rng: random.Random) -> None:
        self._rng = rng
        self._named: dict[str, Plugin] = {}
        for index, spec in enumerate(specs):
            place = f"plugins[{index}]"
            name = spec.name or spec.type
            plugin = self._build(spec, place)
            if name in self._named:
                raise ConfigError(f"{place}.name", f"{name!r} is already the name of another plugin")
            self._named[name] = plugin
        if len(handlers := [name for name, plugin in self._named.items() if plugin.has(Role.HANDLER)]) > 1:
            raise ConfigError("plugins", f"only one profile handler is possible, found {', '.join(handlers)}")

    def resolve(self, name: str, place: str, *roles: Role, default: bool = False) -> Plugin:
        """The plugin that a reference names; with `default`, one that is not listed stands for its type."""
        plugin = self._named.get(name)
        if plugin is None and default and name in PLUGINS:
            plugin = self._build(PluginSpec(type=name), place)
        if plugin is None:
            raise ConfigError(place, f"no plugin is named {name!r}; named here: {listed(self._named)}")
        if not any(plugin.has(role) for role in roles):
            wanted = " or ".join(role.value for role in roles)
            raise ConfigError(place, f"{name!r} cannot be used here, expected a {wanted}")
        return plugin

    def first(self, parameters: type[P]) -> P | None:
        """The parameters of the first plugin that has such ones."""
        found = (plugin.parameters for plugin in self._named.values())
        return next((one for one in found if isinstance(one, parameters)), None)

    def first_name(self, parameters: type[Section]) -> str | None:
        """The name of the first plugin that has such parameters."""
        named = self._named.items()
        return next((name for name, plugin in named if isinstance(plugin.parameters, parameters)), None)

    def names(self, *roles: Role) -> Iterator[str]:
        """The names of all plugins that have one of those roles."""
        return (name for name, plugin in self._named.items() if any(plugin.has(role) for role in roles))

    def _build(self, spec: PluginSpec, place: str) -> Plugin:
        kind = PLUGINS.get(spec.type)
        if kind is None:
            known = "a plugin of the Go picker that is not built here yet"
            what = known if spec.type in GO_ONLY else "no known plugin type"
            raise ConfigError(f"{place}.type", f"{spec.type!r} is {what}; there are: {listed(PLUGINS)}")
        parameters = read_section(kind.parameters, spec.parameters, f"{place}.parameters")
        return Plugin(kind, parameters, kind.build(parameters, self._rng))


def listed(names: Iterable[str]) -> str:
    """For the text of an error."""
    return ", ".join(sorted(names)) or "none"
