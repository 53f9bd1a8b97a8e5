"""The plugins of one configuration by name: builds each once and checks that references fit their roles."""

import difflib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from epp.config.catalogue import PLUGINS, PluginType, Role
from epp.config.document import PluginSpec, Section, read_section
from epp.config.go_plugins import GO_ONLY
from epp.config.installed import GROUP, BuildContext, InstalledPluginType, plugin_type
from epp.scheduling.plugin import DataProducer
from runtime.config.problems import ConfigError, Problems, config_error, did_you_mean
from runtime.entry_points import PluginError

P = TypeVar("P", bound=Section)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plugin:
    """One plugin of the file; `built`: a filter, a scorer, ..., or the parameters if its type has no code.

    `needs`: the producers by name that it got while it was built. `place`: in the file, of the plugin or of the reference
    that brought it.
    """

    name: str
    type: str
    kind: PluginType
    parameters: Section
    built: Any
    place: str
    needs: Mapping[str, Any] = field(default_factory=dict)

    def has(self, role: Role) -> bool:
        return role in self.kind.roles


@dataclass(frozen=True, slots=True)
class _Connected:
    parts: tuple[object, ...]
    built: Any


class Plugins:
    """The plugins of a file by name; adds the problems of each to `problems`.

    `before`: those of the configuration in force. A plugin whose name, type and parameters are the same is the same object,
    with what it has learnt.
    """

    def __init__(
        self, specs: list[PluginSpec], rng: random.Random, problems: Problems, before: "Plugins | None" = None
    ) -> None:
        self._rng = rng
        self._kept: Mapping[tuple[str, str], Plugin] = {} if before is None else before._made
        self._made: dict[tuple[str, str], Plugin] = {}
        """By name and type, also those that the file does not list."""
        self._kept_connected: Mapping[str, _Connected] = {} if before is None else before._connected
        self._connected: dict[str, _Connected] = {}
        self._named: dict[str, Plugin] = {}
        self._broken: set[str] = set()
        for index, spec in sorted(enumerate(specs), key=lambda one: not _is_installed_producer(one[1])):
            place = f"plugins[{index}]"
            name = spec.name or spec.type
            if name in self._named or name in self._broken:
                problems.add(f"{place}.name", f"{name!r} is already the name of another plugin")
            plugin = problems.of(partial(self._build, spec, place))
            if plugin is None:
                self._broken.add(name)
            else:
                self._named.setdefault(name, plugin)
        if len(handlers := list(self.names(Role.HANDLER))) > 1:
            problems.add("plugins", f"only one profile handler is possible, found {', '.join(handlers)}")

    def resolve(self, name: str, place: str, *roles: Role, default: bool = False) -> Plugin:
        """The plugin that a reference names; raises ConfigError if there is none or it has none of `roles`.

        With `default`, the name of a built-in type that the file does not list is a plugin of that type.
        """
        if not name:
            raise config_error(())  # its own problem is reported already
        self.check_not_broken(name)
        plugin = self._named.get(name)
        if plugin is None and default and name in PLUGINS:
            plugin = self._build(PluginSpec(type=name), place)
        if plugin is None:
            types = [type_ for type_, kind in PLUGINS.items() if default and kind.roles.intersection(roles)]
            suggestion = did_you_mean(name, (*self._named, *types))
            raise ConfigError(place, f"no plugin is named {name[:60]!r}; {suggestion}")
        if not any(plugin.has(role) for role in roles):
            wanted = " or ".join((roles[0].with_article, *(role.value for role in roles[1:])))
            raise ConfigError(place, f"{name!r} cannot be used here, expected {wanted}")
        return plugin

    def check_not_broken(self, name: str) -> None:
        """Raises ConfigError without a problem if the plugin of that name has problems of its own, reported already."""
        if name in self._broken:
            raise config_error(())

    @property
    def any_broken(self) -> bool:
        """Whether a plugin of the file could not be built: it may be the one that something seems to lack."""
        return bool(self._broken)

    def first(self, parameters: type[P]) -> P | None:
        """The parameters of the first plugin whose parameters are of that class."""
        found = (plugin.parameters for plugin in self._named.values())
        return next((one for one in found if isinstance(one, parameters)), None)

    def first_name(self, parameters: type[Section]) -> str | None:
        """The name of the first plugin whose parameters are of that class."""
        named = self._named.items()
        return next((name for name, plugin in named if isinstance(plugin.parameters, parameters)), None)

    def names(self, *roles: Role) -> Iterator[str]:
        """The names of all plugins with one of `roles`."""
        return (name for name, plugin in self._named.items() if any(plugin.has(role) for role in roles))

    def installed_producers(self) -> list[DataProducer]:
        """The producers of installed packages that the file lists or that its plugins asked for."""
        named = self._named.values()
        return [
            one.built for one in named if one.has(Role.PRODUCER) and isinstance(one.kind, InstalledPluginType)
        ]

    def _build(self, spec: PluginSpec, place: str) -> Plugin:
        if not spec.type:
            raise config_error(())  # reported when the file was read
        try:
            kind = plugin_type(spec.type)
            unknown = _unknown_type(spec.type) if kind is None else ""
        except PluginError as error:
            raise ConfigError(f"{place}.type", str(error)) from error
        if kind is None:
            raise ConfigError(f"{place}.type", unknown)
        parameters = read_section(kind.parameters, spec.parameters, f"{place}.parameters")
        key = spec.name or spec.type, spec.type
        plugin = self._kept_plugin(key, kind, parameters, place)
        if plugin is None and isinstance(kind, InstalledPluginType):
            plugin = self._build_installed(key[0], kind, parameters, place)
        if plugin is None:
            plugin = Plugin(key[0], spec.type, kind, parameters, kind.build(parameters, self._rng), place)
        self._made[key] = plugin
        return plugin

    def _build_installed(
        self, name: str, kind: InstalledPluginType, parameters: Section, place: str
    ) -> Plugin:
        needs: dict[str, Any] = {}

        def find(name: str) -> Any:
            needs[name] = self._producer(f"{place}.parameters", name)
            return needs[name]

        built = kind.build_plugin(parameters, BuildContext(self._rng, find), place)
        return Plugin(name, kind.name, kind, parameters, built, place, needs)

    def _kept_plugin(
        self, key: tuple[str, str], kind: PluginType, parameters: Section, place: str
    ) -> Plugin | None:
        """The plugin in force, if it would be built alike."""
        kept = self._kept.get(key)
        if kept is None or kept.parameters != parameters or not _is_same_kind(kept.kind, kind):
            return None
        needs = kept.needs.items()
        same = all(self._producer(f"{place}.parameters", name) is built for name, built in needs)
        return replace(kept, place=place) if same else None

    def connected(self, name: str, parts: Sequence[object], build: Callable[[], T]) -> T:
        """What `build` makes of `parts`: other plugins, parameters. The object in force, if its parts were equal.

        For what learns from requests; anything else can be built anew.
        """
        found = self._connected.get(name) or self._kept_connected.get(name)
        if found is None or found.parts != tuple(parts):
            found = _Connected(tuple(parts), build())
        self._connected[name] = found
        built: T = found.built
        return built

    def forget_kept(self) -> None:
        """Let go of the plugins in force that this file does not keep."""
        self._kept, self._kept_connected = {}, {}

    def _producer(self, place: str, name: str) -> Any:
        """The producer that a plugin of an installed package asks for; one that the file does not list is built once."""
        self.check_not_broken(name)
        if name not in self._named:
            self._named[name] = self._unlisted_producer(name, place)
        return self.resolve(name, place, Role.PRODUCER).built

    def _unlisted_producer(self, name: str, place: str) -> Plugin:
        if plugin_type(name) is None:
            known = (*self.names(Role.PRODUCER), *GROUP.packages())
            raise ConfigError(place, f"no data producer is named {name[:60]!r}; {did_you_mean(name, known)}")
        return self._build(PluginSpec(type=name), place)


def _is_same_kind(one: PluginType, other: PluginType) -> bool:
    """A type of an installed package is declared anew by each configuration."""
    if isinstance(one, InstalledPluginType) and isinstance(other, InstalledPluginType):
        return one.declaration is other.declaration
    return one is other


def _is_installed_producer(spec: PluginSpec) -> bool:
    """Whether to build it first: other plugins of its package ask for it while they are built, in any order of the file."""
    try:
        kind = plugin_type(spec.type) if spec.type else None
    except PluginError:
        return False  # reported when it is built
    return isinstance(kind, InstalledPluginType) and Role.PRODUCER in kind.roles


def _unknown_type(name: str) -> str:
    if (instead := GO_ONLY.get(name)) is not None:
        return f"{name!r} is a plugin of the Go picker that adsum does not have; {instead}"
    known = (*PLUGINS, *GROUP.packages())
    near = difflib.get_close_matches(name[:100], (*known, *GO_ONLY), n=1)
    problem = f"{name[:60]!r} is not a plugin type; {did_you_mean(name, near or known)}"
    if near and near[0] in GO_ONLY:
        return f"{problem} That is a plugin of the Go picker that adsum does not have; {GO_ONLY[near[0]]}"
    return problem
