"""The profile of a configuration: which plugins a request passes, and the data producers that they need."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from epp.config.catalogue import Role
from epp.config.document import ConfigDocument, ProfilePlugin, ProfileSpec
from epp.config.installed import InstalledPluginType
from epp.config.parameters import PickerParameters, PrefixProducerParameters, PrefixScorerParameters
from epp.config.plugins import Plugin, Plugins
from epp.config.problems import ConfigError, Problems
from epp.scheduling.cached_scores import Weighted
from epp.scheduling.plugin import Scorer
from epp.scheduling.prefix.plugins import PRODUCER, PrefixCacheProducer, PrefixCacheScorer
from epp.scheduling.profile import SchedulerProfile

_SCHEDULING: Final = (Role.FILTER, Role.SCORER, Role.PICKER)


@dataclass(frozen=True, slots=True)
class BuiltProfile:
    """`steps`: what happens to a request, in words."""

    profile: SchedulerProfile
    steps: tuple[str, ...]


def read_profile(
    document: ConfigDocument, plugins: Plugins, staleness: float, problems: Problems
) -> BuiltProfile | None:
    """The one profile of the file, or all of its plugins in one; None where a problem was told."""
    spec = problems.of(partial(_profile_spec, document, plugins))
    if spec is None:
        return None
    used = _used(spec, plugins, problems)
    return problems.of(partial(_build_profile, used, plugins, staleness))


def _profile_spec(document: ConfigDocument, plugins: Plugins) -> ProfileSpec:
    profiles = document.scheduling_profiles
    if len(profiles) > 1:
        names = ", ".join(profile.name for profile in profiles)
        raise ConfigError(
            "schedulingProfiles", f"one profile is possible with single-profile-handler, found {names}"
        )
    if profiles:
        return profiles[0]
    all_of_them = [ProfilePlugin.model_validate({"pluginRef": name}) for name in plugins.names(*_SCHEDULING)]
    return ProfileSpec(name="default", plugins=all_of_them)


@dataclass(frozen=True, slots=True)
class _Used:
    """A plugin of the profile."""

    name: str
    plugin: Plugin
    weight: float | None


def _used(spec: ProfileSpec, plugins: Plugins, problems: Problems) -> list[_Used]:
    """Those of a profile that can be found."""
    found = []
    for index, one in enumerate(spec.plugins):
        place = f"schedulingProfiles[0].plugins[{index}].pluginRef"
        plugin = problems.of(partial(plugins.resolve, one.plugin_ref, place, *_SCHEDULING))
        if plugin is not None:
            found.append(_Used(one.plugin_ref, plugin, one.weight))
    return found


def _build_profile(used: list[_Used], plugins: Plugins, staleness: float) -> BuiltProfile:
    scorers = [(one.plugin, one.weight) for one in used if one.plugin.has(Role.SCORER)]
    producers = _Producers(plugins)
    picker = _picker([one.plugin for one in used if one.plugin.has(Role.PICKER)], plugins)
    parameters = picker.parameters
    profile = SchedulerProfile(
        filters=tuple(one.plugin.built for one in used if one.plugin.has(Role.FILTER)),
        scorers=tuple(
            Weighted(producers.scorer(plugin), 1.0 if weight is None else weight)
            for plugin, weight in scorers
        ),
        producers=(*producers.used, *plugins.installed_producers()),
        picker=picker.built,
        max_endpoints=parameters.max_num_of_endpoints if isinstance(parameters, PickerParameters) else 1,
        staleness=staleness if any(plugin.kind.scraped for plugin, _ in scorers) else None,
    )
    number = profile.max_endpoints
    choice = f"picker {picker.type}, {number} endpoint{'s' if number > 1 else ''}"
    return BuiltProfile(profile, (*_steps(used), choice))


def _steps(used: list[_Used]) -> Iterator[str]:
    for role in (Role.FILTER, Role.SCORER):
        for one in used:
            if one.plugin.has(role):
                kind = "" if one.name == one.plugin.type else f" ({one.plugin.type})"
                if isinstance(one.plugin.kind, InstalledPluginType):
                    kind += f" of {one.plugin.kind.package}"
                weight = (
                    f", weight {1 if one.weight is None else one.weight:g}" if role is Role.SCORER else ""
                )
                yield f"{role.value} {one.name}{kind}{weight}"


class _Producers:
    """The data producers that scorers need: those that are named or there, else the default one."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self.used: list[PrefixCacheProducer] = []

    def scorer(self, plugin: Plugin) -> Scorer:
        """The scorer of that plugin, beside its producer if it needs one."""
        given = plugin.parameters
        if not isinstance(given, PrefixScorerParameters):
            scorer: Scorer = plugin.built
            return scorer
        producer = self._producer(given.prefix_match_info_producer_name)
        return PrefixCacheScorer(producer, given.match_length_weight, given.match_length_scale_tokens)

    def _producer(self, name: str | None) -> PrefixCacheProducer:
        place = "plugins: prefix-cache-scorer: parameters.prefixMatchInfoProducerName"
        name = name or self._plugins.first_name(PrefixProducerParameters)
        if name is None and self.used:
            return self.used[0]
        found = self._plugins.resolve(name or PRODUCER, place, Role.PRODUCER, default=True).built
        if not isinstance(found, PrefixCacheProducer):
            raise ConfigError(place, f"{name!r} finds no prefixes, expected an {PRODUCER}")
        if found not in self.used:
            self.used.append(found)
        return found


def _picker(pickers: list[Plugin], plugins: Plugins) -> Plugin:
    """The picker of the profile, else any that the file has, else the default one: as in the Go picker."""
    if len(pickers) > 1:
        raise ConfigError("schedulingProfiles[0].plugins", "there is more than one picker; name one of them")
    if pickers:
        return pickers[0]
    name = next(plugins.names(Role.PICKER), "max-score-picker")
    return plugins.resolve(name, "schedulingProfiles[0]", Role.PICKER, default=True)
