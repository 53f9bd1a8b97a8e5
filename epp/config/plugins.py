"""The plugins of one configuration by name: builds each once, where it is first used, and checks that references fit their roles."""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from adsum.config.problems import ConfigError, Problems, config_error, did_you_mean
from adsum.entry_points import PluginError
from epp.config.catalogue import PLUGINS, unknown_type
from epp.config.data_layer import CORE_METRICS_EXTRACTOR
from epp.config.document import PluginSpec, read_section
from epp.config.installed import GROUP, PluginType, plugin_type
from epp.endpoints.worker_metrics import WorkerMetric
from epp.ext_proc.exchange_settings import ResponseHeaders
from epp.plugins.declaration import ParameterError, PluginDeclaration, Role
from epp.plugins.section import Section
from epp.scheduling.plugin import DataProducer

P = TypeVar("P")
S = TypeVar("S", bound=Section)
R = TypeVar("R")


class _Use(NamedTuple):
    """One call of a plugin to its context, and the result."""

    method: Callable[..., Any]
    """A method of `Plugins`."""
    arguments: tuple[Any, ...]
    result: Any


@dataclass(slots=True, eq=False)
class Plugin:
    """One plugin of the file. `place`: in the file, of the plugin or of the reference that brought it.

    `built`, once it is used: a filter, a scorer, ..., or the parameters if its type has no code. `uses`: what it got while it
    was built. `followers` learn of every request; `response_headers` set headers of each answer.
    """

    name: str
    kind: PluginType
    parameters: Section
    place: str
    is_built: bool = False
    built: Any = None
    uses: list[_Use] = field(default_factory=list)
    followers: list[DataProducer] = field(default_factory=list)
    response_headers: list[ResponseHeaders] = field(default_factory=list)

    @property
    def type(self) -> str:
        return self.kind.name

    @property
    def package(self) -> str:
        return self.kind.package

    def has(self, role: Role) -> bool:
        return role in self.kind.declaration.roles

    def take_over(self, kept: "Plugin") -> None:
        """Be the same object as before, with what it has learnt."""
        self.built, self.uses = kept.built, kept.uses
        self.followers, self.response_headers = kept.followers, kept.response_headers


class _Shared(NamedTuple):
    kind: Any
    part: object
    built: Any


class Plugins:
    """The plugins of a file by name; adds the problems of each to `problems`.

    `before`: those of the configuration in force. A plugin whose name, type, parameters and uses are the same is the same
    object, with what it has learnt. `profiles` and `attributes`, the numbers that `customMetrics` names, are set before
    anything is built.
    """

    def __init__(
        self,
        specs: list[PluginSpec],
        rng: random.Random,
        problems: Problems,
        before: "Plugins | None" = None,
        processes: int = 1,
    ) -> None:
        self.rng = rng
        self.processes = processes
        self.profiles: tuple[str, ...] = ()
        self.attributes: Mapping[str, WorkerMetric] = {}
        self._problems = problems
        self._kept: Mapping[tuple[str, str], Plugin] = {} if before is None else before._built
        self._kept_shared: Sequence[_Shared] = () if before is None else tuple(before._shared)
        self._built: dict[tuple[str, str], Plugin] = {}
        """By name and type, in the order in which they were first used."""
        self._building: list[Plugin] = []
        self._shared: list[_Shared] = []
        self._named: dict[str, Plugin] = {}
        self._unlisted: dict[str, Plugin] = {}
        """Plugins that the file does not list, and others need."""
        self._broken: set[str] = set()
        for index, spec in enumerate(specs):
            place = f"plugins[{index}]"
            name = spec.name or spec.type
            if name in self._named or name in self._broken:
                problems.add(f"{place}.name", f"{name!r} is already the name of another plugin")
            plugin = problems.of(partial(self._read, spec, place))
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
            plugin = self._unlisted_plugin(name, place)
        if plugin is None:
            types = [type_ for type_, one in PLUGINS.items() if default and one.roles.intersection(roles)]
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

    def first_parameters(self, parameters: type[S]) -> S | None:
        """The parameters of the first plugin whose parameters are of that class."""
        found = (plugin.parameters for plugin in self._named.values())
        return next((one for one in found if isinstance(one, parameters)), None)

    def names(self, *roles: Role) -> Iterator[str]:
        """The names of all plugins with one of `roles`."""
        return (name for name, plugin in self._named.items() if any(plugin.has(role) for role in roles))

    def of_role(self, role: Role) -> list[Any]:
        """Returns the file's plugins with that role, as `build_listed` built them, in their order."""
        return [one.built for one in self._named.values() if one.has(role) and one.is_built]

    def warnings(self) -> Iterator[str]:
        """Yields the warnings of the file's plugins about each other."""
        for plugin in self._named.values():
            yield from plugin.kind.declaration.warnings(plugin.parameters, Context(self, plugin))

    def flow_control_limits(self) -> Iterable[str]:
        """Returns, of each type in the file that flow control limits, how."""
        kinds = [plugin.kind for plugin in self._named.values() if plugin.kind.declaration.flow_control_limit]
        return dict.fromkeys([f"{kind.name} {kind.declaration.flow_control_limit}" for kind in kinds])

    def unread_warnings(self, producers: Iterable[object]) -> Iterable[str]:
        """Returns the plugins that have no effect, since they are none of `producers`, which run."""
        running = {id(one) for one in producers}
        for plugin in self._named.values():
            if (problem := plugin.kind.declaration.unread_warning) and id(plugin.built) not in running:
                yield f"{plugin.name} {problem}"

    def build_listed(self) -> None:
        """Build what works by being listed, and all of installed packages, so that their faults are found."""
        listed = (Role.SCREENER, Role.ADMITTER, Role.PRODUCER, Role.REQUEST_HEADERS, Role.RESPONSE_HEADERS)
        for plugin in list(self._named.values()):
            if plugin.package or any(plugin.has(role) for role in listed):
                self._problems.of(partial(self.build, plugin))

    def build(self, plugin: Plugin) -> Any:
        """Build the plugin (a filter, a scorer, ...) unless it is built; raises ConfigError."""
        if plugin.is_built:
            return plugin.built
        self.check_not_broken(plugin.name)
        if plugin in self._building:
            raise ConfigError(
                plugin.place, f"{plugin.name!r} needs itself: plugins name each other in a circle"
            )
        self._building.append(plugin)
        try:
            kept = self._kept.get((plugin.name, plugin.type))
            if kept is not None and self._would_be_same(plugin, kept):
                plugin.take_over(kept)
            else:
                plugin.built = plugin.kind.build(plugin.parameters, Context(self, plugin), plugin.place)
        except ConfigError:
            self._broken.add(plugin.name)
            raise
        finally:
            self._building.remove(plugin)
        plugin.is_built = True
        self._check_single(plugin)
        self._built[plugin.name, plugin.type] = plugin
        return plugin.built

    def forget_kept(self) -> None:
        """Let go of the plugins in force that this file does not keep."""
        self._kept, self._kept_shared = {}, ()

    def followers(self, *, without: Role | None = None) -> list[DataProducer]:
        """All that learn of every request: what the used plugins, but those of a role, let follow."""
        used = self._built.values()
        found = [
            one for plugin in used if without is None or not plugin.has(without) for one in plugin.followers
        ]
        return list(dict.fromkeys(found))

    def response_headers(self) -> list[ResponseHeaders]:
        return [one for plugin in self._built.values() for one in plugin.response_headers]

    def by_type(self, used: Iterable[object]) -> dict[str, tuple[PluginDeclaration, list[Any]]]:
        """Group the objects of `used` that this file declares by type, each once, beside the declaration of the type."""
        kinds = {id(plugin.built): plugin.kind for plugin in self._built.values()}
        found: dict[str, tuple[PluginDeclaration, list[Any]]] = {}
        for one in used:
            if (kind := kinds.pop(id(one), None)) is not None:
                found.setdefault(kind.name, (kind.declaration, []))[1].append(one)
        return found

    def independent_producers(self, *, handled: bool) -> list[DataProducer]:
        """The producers that run though no plugin of a profile says that it reads them.

        `handled`: a profile handler decides, which may read what no scorer does.
        """
        used = [plugin for plugin in self._built.values() if plugin.has(Role.PRODUCER)]
        return [
            one.built
            for one in used
            if one.package or (handled and one.name in self._named and one.kind.declaration.read_by_handlers)
        ]

    def shared(self, plugin: Plugin | None, kind: Any, part: object, build: Callable[[], P]) -> P:
        """Build a part once for all who ask; the configuration in force keeps its own if the part is the same."""
        for known in (self._shared, self._kept_shared):
            for one in known:
                if one.kind is kind and _is_same(one.part, part):
                    if known is self._kept_shared:
                        self._shared.append(one)
                    return one.built  # type: ignore[no-any-return]
        built = build()
        self._shared.append(_Shared(kind, part, built))
        return built

    def producer(self, plugin: Plugin, name: str | None, expected: type[P], default: str, field: str) -> P:
        place = f"{plugin.place}.parameters{field and f'.{field}'}"
        found = self._find(plugin, name, default, place)
        if not found.has(Role.PRODUCER):
            raise ConfigError(
                place, f"{found.name!r} cannot be used here, expected {Role.PRODUCER.with_article}"
            )
        built = self.build(found)
        if not isinstance(built, expected):
            problem = f"is a {type(built).__name__}, expected a {expected.__name__}"
            if default:
                problem = f"cannot be used here, expected {'an' if default[0] in 'aeio' else 'a'} {default}"
            raise ConfigError(place, f"{found.name!r} {problem}")
        return built

    def parameters(
        self, plugin: Plugin, name: str | None, expected: type[S], default: str, field: str
    ) -> S | None:
        if not name:
            return self.first_parameters(expected)
        place = f"{plugin.place}.parameters{field and f'.{field}'}"
        found = self._find(plugin, name, default, place).parameters
        if not isinstance(found, expected):
            raise ConfigError(place, f"{name!r} is no {default}")
        return found

    def metric(self, plugin: Plugin, key: str, producer: str | None, field: str) -> WorkerMetric:
        """The rules are those of the Go picker, ResolveConfiguredKey."""
        if producer is None and "/" in key:
            name, _, publisher = key.rpartition("/")
            raise ParameterError(
                field,
                f"an attribute and its producer are two parameters; write {field}: {name}, producer: {publisher}",
            )
        extractor = CORE_METRICS_EXTRACTOR.type
        if producer not in (None, extractor):
            self.check_not_broken(producer or "")
            raise ParameterError(
                "producer", f"{producer!r} publishes no number of an endpoint; expected {extractor}"
            )
        if key not in self.attributes:
            problem = f"no customMetrics of {extractor} has the attributeKey {key[:60]!r}"
            raise ParameterError(field, f"{problem}; {did_you_mean(key, self.attributes)}")
        return self.attributes[key]

    def is_wanted(self, plugin: Plugin, type: str, field: str) -> bool:
        others = [one for one in self._named.values() if one.type != plugin.type]
        return any(
            one.type == type or getattr(one.parameters, field, "other parameters") in (None, "")
            for one in others
        )

    def profile_names(self, plugin: Plugin) -> tuple[str, ...]:
        return self.profiles

    def _would_be_same(self, plugin: Plugin, kept: Plugin) -> bool:
        """Whether it would be built alike; raises ConfigError if it could not be built now."""
        if kept.parameters != plugin.parameters or kept.kind.declaration is not plugin.kind.declaration:
            return False
        for use in kept.uses:
            try:
                now = use.method(self, plugin, *use.arguments)
            except ParameterError as error:
                raise ConfigError(f"{plugin.place}.parameters.{error.field}", str(error)) from error
            if not _is_same(now, use.result):
                return False
        return True

    def _find(self, plugin: Plugin, name: str | None, default: str, place: str) -> Plugin:
        """The named plugin, else the file's first of the type `default`, else a new one; a name may be a type."""
        if not name:
            listed = (one.name for one in self._named.values() if one.type == default)
            name = next(listed, default)
        self.check_not_broken(name)
        return self._named.get(name) or self._unlisted_plugin(name, place)

    def _unlisted_plugin(self, name: str, place: str) -> Plugin:
        if name not in self._unlisted:
            if plugin_type(name) is None:
                known = (*self._named, *GROUP.packages())
                raise ConfigError(place, f"no plugin is named {name[:60]!r}; {did_you_mean(name, known)}")
            self._unlisted[name] = self._read(PluginSpec(type=name), place)
        return self._unlisted[name]

    def _read(self, spec: PluginSpec, place: str) -> Plugin:
        if not spec.type:
            raise config_error(())  # reported when the file was read
        try:
            kind = plugin_type(spec.type)
            unknown = unknown_type(spec.type, GROUP.packages()) if kind is None else ""
        except PluginError as error:
            raise ConfigError(f"{place}.type", str(error)) from error
        if kind is None:
            raise ConfigError(f"{place}.type", unknown)
        parameters = read_section(kind.declaration.parameters, spec.parameters, f"{place}.parameters")
        return Plugin(spec.name or spec.type, kind, parameters, place)

    def _check_single(self, plugin: Plugin) -> None:
        problem = plugin.kind.declaration.single
        if problem and any(one.type == plugin.type for one in self._built.values()):
            raise ConfigError(plugin.place, problem)


class Context:
    """A PluginContext, which notes what the plugin uses."""

    def __init__(self, plugins: Plugins, plugin: Plugin) -> None:
        self._plugins = plugins
        self._plugin = plugin
        self.name = plugin.name
        self.rng = plugins.rng
        self.processes = plugins.processes
        self.clock: Callable[[], float] = time.monotonic
        """Seconds."""

    @property
    def profiles(self) -> tuple[str, ...]:
        return self._use(Plugins.profile_names)

    def producer(self, name: str | None, expected: type[P], *, default: str = "", field: str = "") -> P:
        found: P = self._use(Plugins.producer, name, expected, default, field)
        return found

    def parameters(
        self, name: str | None, expected: type[S], *, default: str = "", field: str = ""
    ) -> S | None:
        return self._use(Plugins.parameters, name, expected, default, field)

    def metric(self, key: str, producer: str | None, *, field: str) -> WorkerMetric:
        return self._use(Plugins.metric, key, producer, field)

    def is_wanted(self, type: str, field: str) -> bool:
        return self._use(Plugins.is_wanted, type, field)

    def shared(self, kind: type[P], part: object, build: Callable[[], P]) -> P:
        built: P = self._use(Plugins.shared, kind, part, build)
        return built

    def follow(self, follower: DataProducer) -> None:
        self._plugin.followers.append(follower)

    def set_response_headers(self, headers: ResponseHeaders) -> None:
        self._plugin.response_headers.append(headers)

    def _use(self, method: Callable[..., R], *arguments: Any) -> R:
        result = method(self._plugins, self._plugin, *arguments)
        self._plugin.uses.append(_Use(method, arguments, result))
        return result


def _is_same(one: object, other: object) -> bool:
    """Plugins by identity: two that were built alike know different things."""
    return one == other if isinstance(one, Section | tuple | bool) else one is other
