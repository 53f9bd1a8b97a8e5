"""Builds the scheduler of a configuration: its profiles, their handler, and what follows every request."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from adsum.config.problems import ConfigError, Problems, config_error
from epp.config.catalogue import DEFAULTS
from epp.config.document import ConfigDocument, ProfilePlugin, ProfileSpec
from epp.config.plugins import Plugin, Plugins
from epp.plugins.declaration import Role
from epp.plugins.section import PickerParameters
from epp.scheduling.cached_scores import WeightedScorer
from epp.scheduling.plugin import DataConsumer, DataProducer, ProfileHandler
from epp.scheduling.profile import SchedulerProfile
from epp.scheduling.scheduler import Scheduler

_SCHEDULING: Final = (Role.FILTER, Role.SCORER, Role.PICKER)


@dataclass(frozen=True, slots=True)
class BuiltScheduler:
    """`steps`: what happens to a request, for people."""

    scheduler: Scheduler
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _BuiltProfile:
    profile: SchedulerProfile
    steps: tuple[str, ...]


def profile_specs(document: ConfigDocument, plugins: Plugins) -> Sequence[ProfileSpec]:
    """The file's profiles, or one of all its plugins if it has none."""
    if document.scheduling_profiles:
        return document.scheduling_profiles
    every_plugin = [ProfilePlugin.model_validate({"pluginRef": name}) for name in plugins.names(*_SCHEDULING)]
    return [ProfileSpec(name="default", plugins=every_plugin)]


def read_scheduler(
    specs: Sequence[ProfileSpec],
    plugins: Plugins,
    staleness: float,
    problems: Problems,
    *,
    flow_control: bool,
) -> BuiltScheduler | None:
    """The scheduler with these profiles; None after a problem was added."""
    built: dict[str, _BuiltProfile] = {}
    for index, spec in enumerate(specs):
        place = f"schedulingProfiles[{index}]"
        if spec.name in built:
            problems.add(f"{place}.name", f"{spec.name!r} is already the name of another profile")
        used = _resolve_plugins(spec, plugins, place, problems)
        profile = problems.of(partial(_build_profile, used, plugins, place, staleness))
        if profile is not None:
            built[spec.name] = profile
    handler = problems.of(partial(_handler, plugins))
    if (
        handler is not None
        and problems.of(partial(_check_profiles, plugins, handler, [spec.name for spec in specs]))
        and built
    ):
        return _build_scheduler(handler, built, plugins, flow_control=flow_control)
    return None


def _handler(plugins: Plugins) -> Plugin:
    name = next(plugins.names(Role.HANDLER), None)
    if name is None and plugins.any_broken:
        raise config_error(())  # one of those may be the handler
    return plugins.resolve(name or DEFAULTS[Role.HANDLER], "plugins", Role.HANDLER, default=True)


def _check_profiles(plugins: Plugins, handler: Plugin, profiles: Sequence[str]) -> bool:
    try:
        plugins.build(handler).check(profiles)
    except ValueError as error:
        raise ConfigError("schedulingProfiles", str(error)) from error
    return True


def _build_scheduler(
    handler: Plugin, built: dict[str, _BuiltProfile], plugins: Plugins, *, flow_control: bool
) -> BuiltScheduler:
    profiles = {name: one.profile for name, one in built.items()}
    steps = list[str]()
    for role in (Role.ADMITTER, Role.SCREENER):
        listed = [plugins.resolve(name, "plugins", role) for name in plugins.names(role)]
        steps += [f"{role.value} {one.name}{_type_suffix(one.name, one)}" for one in listed]
    followers = plugins.followers(without=None if flow_control else Role.FAIRNESS)
    asked: ProfileHandler = handler.built
    handled = not getattr(asked, "takes_only_profile", False)
    if handled:
        steps.append(f"profile handler {handler.type}{_package_suffix(handler)}")
    for name, profile in built.items():
        steps += [f"profile {name}: {step}" if handled else step for step in profile.steps]
    read = asked.producers if isinstance(asked, DataConsumer) else ()
    more = (*followers, *read, *plugins.independent_producers(handled=handled))
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


def _build_profile(used: list[_UsedPlugin], plugins: Plugins, place: str, staleness: float) -> _BuiltProfile:
    scorers = [one for one in used if one.plugin.has(Role.SCORER)]
    picker = _picker([one.plugin for one in used if one.plugin.has(Role.PICKER)], plugins, place)
    parameters = picker.parameters
    weighted = [
        WeightedScorer(plugins.build(one.plugin), 1.0 if one.weight is None else one.weight)
        for one in scorers
    ]
    filters = tuple(plugins.build(one.plugin) for one in used if one.plugin.has(Role.FILTER))
    profile = SchedulerProfile(
        filters=filters,
        scorers=tuple(weighted),
        producers=_data_producers(used),
        picker=plugins.build(picker),
        max_endpoints=parameters.max_num_of_endpoints if isinstance(parameters, PickerParameters) else 1,
        staleness=staleness if any(one.plugin.kind.declaration.reads_metrics for one in scorers) else None,
        names=tuple(_names(used, picker)),
    )
    number = profile.max_endpoints
    choice = f"picker {picker.type}, {number} endpoint{'s' if number > 1 else ''}"
    return _BuiltProfile(profile, (*_steps(used), choice))


def _data_producers(used: list[_UsedPlugin]) -> tuple[DataProducer, ...]:
    """Returns what the plugins of a profile say that they read; others are `Plugins.independent_producers`."""
    found: list[DataProducer] = []
    for one in used:
        if not one.plugin.package and isinstance(one.plugin.built, DataConsumer):
            found += one.plugin.built.producers
    return tuple(dict.fromkeys(found))


def _names(used: list[_UsedPlugin], picker: Plugin) -> Iterator[tuple[str, str]]:
    """Type and name of each, in the order that `SchedulerProfile` wants; what the file does not list has its type as name."""
    for role in (Role.FILTER, Role.SCORER):
        yield from ((one.plugin.type, one.name) for one in used if one.plugin.has(role))
    yield picker.type, next((one.name for one in used if one.plugin is picker), picker.type)


def _steps(used: list[_UsedPlugin]) -> Iterator[str]:
    for role in (Role.FILTER, Role.SCORER):
        for one in used:
            if one.plugin.has(role):
                weight = (
                    f", weight {1 if one.weight is None else one.weight:g}" if role is Role.SCORER else ""
                )
                yield f"{role.value} {one.name}{_type_suffix(one.name, one.plugin)}{weight}"


def _type_suffix(name: str, plugin: Plugin) -> str:
    """The type of a plugin with a name of its own, and its package, for people."""
    kind = "" if name == plugin.type else f" ({plugin.type})"
    return f"{kind}{_package_suffix(plugin)}"


def _package_suffix(plugin: Plugin) -> str:
    """The package of an installed plugin, for people."""
    return f" of {plugin.package}" if plugin.package else ""


def _picker(pickers: list[Plugin], plugins: Plugins, place: str) -> Plugin:
    """The profile's picker, else the first of the file, else the default."""
    if len(pickers) > 1:
        raise ConfigError(f"{place}.plugins", "a profile has one picker, found more; remove all but one")
    if pickers:
        return pickers[0]
    name = next(plugins.names(Role.PICKER), DEFAULTS[Role.PICKER])
    return plugins.resolve(name, place, Role.PICKER, default=True)
