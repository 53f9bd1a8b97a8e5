"""Builds the scheduler of a configuration: its profiles, their handler, and the data producers that scorers need."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from epp.config.catalogue import Role
from epp.config.document import ConfigDocument, ProfilePlugin, ProfileSpec
from epp.config.installed import InstalledPluginType
from epp.config.parameters import (
    LeastCostParameters,
    PickerParameters,
    PrefixProducerParameters,
    PrefixScorerParameters,
)
from epp.config.plugins import Plugin, Plugins
from epp.scheduling.cached_scores import WeightedScorer
from epp.scheduling.handlers.single_profile import SingleProfileHandler
from epp.scheduling.plugin import DataProducer, ProfileHandler, Scorer
from epp.scheduling.prefix.plugins import PRODUCER, PrefixCacheProducer, PrefixCacheScorer
from epp.scheduling.profile import SchedulerProfile
from epp.scheduling.scheduler import Scheduler
from epp.scheduling.work_ahead.plugins import LeastCostScorer, WorkAheadProducer
from runtime.config.problems import ConfigError, Problems

_SCHEDULING: Final = (Role.FILTER, Role.SCORER, Role.PICKER)
_DEFAULT_HANDLER: Final = "single-profile-handler"


@dataclass(frozen=True, slots=True)
class BuiltScheduler:
    """`steps`: what happens to a request, for people."""

    scheduler: Scheduler
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _BuiltProfile:
    profile: SchedulerProfile
    steps: tuple[str, ...]


def read_scheduler(
    document: ConfigDocument, plugins: Plugins, staleness: float, problems: Problems
) -> BuiltScheduler | None:
    """The scheduler with the file's profiles, or one of all its plugins if it has none; None after a problem was added."""
    producers = _Producers(plugins)
    built: dict[str, _BuiltProfile] = {}
    specs = _profile_specs(document, plugins)
    for index, spec in enumerate(specs):
        place = f"schedulingProfiles[{index}]"
        if spec.name in built:
            problems.add(f"{place}.name", f"{spec.name!r} is already the name of another profile")
        used = _resolve_plugins(spec, plugins, place, problems)
        profile = problems.of(partial(_build_profile, used, plugins, producers, place, staleness))
        if profile is not None:
            built[spec.name] = profile
    handler = problems.of(partial(_handler, plugins))
    if (
        handler is not None
        and problems.of(partial(_check_profiles, handler, [spec.name for spec in specs]))
        and built
    ):
        return _build_scheduler(handler, built, producers, plugins)
    return None


def _profile_specs(document: ConfigDocument, plugins: Plugins) -> Sequence[ProfileSpec]:
    if document.scheduling_profiles:
        return document.scheduling_profiles
    every_plugin = [ProfilePlugin.model_validate({"pluginRef": name}) for name in plugins.names(*_SCHEDULING)]
    return [ProfileSpec(name="default", plugins=every_plugin)]


def _handler(plugins: Plugins) -> Plugin:
    name = next(plugins.names(Role.HANDLER), _DEFAULT_HANDLER)
    return plugins.resolve(name, "plugins", Role.HANDLER, default=True)


def _check_profiles(handler: Plugin, profiles: Sequence[str]) -> bool:
    try:
        handler.built.check(profiles)
    except ValueError as error:
        raise ConfigError("schedulingProfiles", str(error)) from error
    return True


def _build_scheduler(
    handler: Plugin, built: dict[str, _BuiltProfile], producers: "_Producers", plugins: Plugins
) -> BuiltScheduler:
    profiles = {name: one.profile for name, one in built.items()}
    if isinstance(handler.built, SingleProfileHandler):
        [only] = built.values()
        return BuiltScheduler(Scheduler(profiles, handler.built, plugins.installed_producers()), only.steps)
    asked: ProfileHandler = handler.built
    steps = [f"profile handler {handler.type}{_package_suffix(handler)}"]
    for name, one in built.items():
        steps += [f"profile {name}: {step}" for step in one.steps]
    more = (*producers.listed(), *plugins.installed_producers())
    return BuiltScheduler(Scheduler(profiles, asked, more), tuple(steps))


@dataclass(frozen=True, slots=True)
class _UsedPlugin:
    name: str
    plugin: Plugin
    weight: float | None


def _resolve_plugins(
    spec: ProfileSpec, plugins: Plugins, place: str, problems: Problems
) -> list[_UsedPlugin]:
    """The plugins of a profile; adds a problem for each reference that fails."""
    found = []
    for index, one in enumerate(spec.plugins):
        where = f"{place}.plugins[{index}].pluginRef"
        plugin = problems.of(partial(plugins.resolve, one.plugin_ref, where, *_SCHEDULING))
        if plugin is not None:
            found.append(_UsedPlugin(one.plugin_ref, plugin, one.weight))
    return found


def _build_profile(
    used: list[_UsedPlugin], plugins: Plugins, producers: "_Producers", place: str, staleness: float
) -> _BuiltProfile:
    scorers = [(one.plugin, one.weight) for one in used if one.plugin.has(Role.SCORER)]
    picker = _picker([one.plugin for one in used if one.plugin.has(Role.PICKER)], plugins, place)
    parameters = picker.parameters
    weighted = [
        WeightedScorer(producers.scorer(plugin), 1.0 if weight is None else weight)
        for plugin, weight in scorers
    ]
    profile = SchedulerProfile(
        filters=tuple(one.plugin.built for one in used if one.plugin.has(Role.FILTER)),
        scorers=tuple(weighted),
        producers=_data_producers(weighted),
        picker=picker.built,
        max_endpoints=parameters.max_num_of_endpoints if isinstance(parameters, PickerParameters) else 1,
        staleness=staleness if any(plugin.kind.scraped for plugin, _ in scorers) else None,
    )
    number = profile.max_endpoints
    choice = f"picker {picker.type}, {number} endpoint{'s' if number > 1 else ''}"
    return _BuiltProfile(profile, (*_steps(used), choice))


def _data_producers(scorers: Sequence[WeightedScorer]) -> tuple[DataProducer, ...]:
    found: list[DataProducer] = []
    for one in scorers:
        if isinstance(one.scorer, LeastCostScorer):
            found += [one.scorer.producer, one.scorer.producer.prefixes]
        elif isinstance(one.scorer, PrefixCacheScorer):
            found.append(one.scorer.producer)
    return tuple(dict.fromkeys(found))


def _steps(used: list[_UsedPlugin]) -> Iterator[str]:
    for role in (Role.FILTER, Role.SCORER):
        for one in used:
            if one.plugin.has(role):
                kind = "" if one.name == one.plugin.type else f" ({one.plugin.type})"
                weight = (
                    f", weight {1 if one.weight is None else one.weight:g}" if role is Role.SCORER else ""
                )
                yield f"{role.value} {one.name}{kind}{_package_suffix(one.plugin)}{weight}"


def _package_suffix(plugin: Plugin) -> str:
    """The package of an installed plugin, for people."""
    return f" of {plugin.kind.package}" if isinstance(plugin.kind, InstalledPluginType) else ""


class _Producers:
    """The producers that scorers need, shared by profiles: the named, else the file's first, else the default one."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self._built: dict[str, PrefixCacheProducer] = {}

    def scorer(self, plugin: Plugin) -> Scorer:
        """The scorer of a plugin, connected with its producer if it needs one."""
        given = plugin.parameters
        if not isinstance(given, PrefixScorerParameters | LeastCostParameters):
            scorer: Scorer = plugin.built
            return scorer
        name = given.prefix_match_info_producer_name or self._plugins.first_name(PrefixProducerParameters)
        producer = self._producer(name or PRODUCER)
        if isinstance(given, LeastCostParameters):
            work_ahead = self._plugins.connected(
                f"work ahead, with {name}", [producer], lambda: WorkAheadProducer(producer)
            )
            return LeastCostScorer(work_ahead, given.request_tokens, given.interference)
        return PrefixCacheScorer(producer, given.match_length_weight, given.match_length_scale_tokens)

    def listed(self) -> list[PrefixCacheProducer]:
        """All of the file: a profile handler may read what no scorer does."""
        found = [
            self._plugins.resolve(name, "plugins", Role.PRODUCER)
            for name in self._plugins.names(Role.PRODUCER)
        ]
        return [one.built for one in found if isinstance(one.built, PrefixCacheProducer)]

    def _producer(self, name: str) -> PrefixCacheProducer:
        if name not in self._built:
            place = "plugins: prefix-cache-scorer: parameters.prefixMatchInfoProducerName"
            found = self._plugins.resolve(name, place, Role.PRODUCER, default=True).built
            if not isinstance(found, PrefixCacheProducer):
                raise ConfigError(place, f"{name!r} finds no prefixes, expected an {PRODUCER}")
            self._built[name] = found
        return self._built[name]


def _picker(pickers: list[Plugin], plugins: Plugins, place: str) -> Plugin:
    """The profile's picker, else the first of the file, else max-score-picker, as in the Go picker."""
    if len(pickers) > 1:
        raise ConfigError(f"{place}.plugins", "a profile has one picker, found more; remove all but one")
    if pickers:
        return pickers[0]
    name = next(plugins.names(Role.PICKER), "max-score-picker")
    return plugins.resolve(name, place, Role.PICKER, default=True)
