"""Builds the settings of flow control from its section and the policies that it names."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from adsum.config.problems import ConfigError, Problems, did_you_mean
from epp.config.catalogue import DEFAULTS
from epp.config.document import ConfigDocument, FlowControl, PriorityBandSection
from epp.config.plugins import Plugins
from epp.flow_control.settings import DEFAULT_TTL, FlowControlSettings, PriorityBand
from epp.plugins.declaration import Role
from epp.scheduling.saturation import SaturationDetector

GATE: Final = "flowControl"
_GATES: Final = (GATE, "haPopulateNonLeaderDatastore")
_FAIRNESS: Final = DEFAULTS[Role.FAIRNESS]
_ORDERING: Final = DEFAULTS[Role.ORDERING]
_USAGE_LIMIT: Final = DEFAULTS[Role.USAGE_LIMIT]


def gates_of(document: ConfigDocument, problems: Problems) -> dict[str, bool]:
    """Return the feature gates that are on; of several lines for one the last counts."""
    gates: dict[str, bool] = {}
    for index, gate in enumerate(document.feature_gates):
        gates |= problems.of(partial(_gate, gate, f"featureGates[{index}]")) or {}
    return gates


def _gate(gate: str, place: str) -> dict[str, bool]:
    name, _, value = (part.strip() for part in gate.partition("="))
    if name not in _GATES:
        raise ConfigError(place, f"{name[:60]!r} is not a feature gate; {did_you_mean(name, _GATES)}")
    if value.lower() not in ("", "true", "false"):
        raise ConfigError(place, f"{value[:60]!r} is not true or false")
    return {name: value.lower() != "false"}


def read_flow_control(flow: FlowControl, plugins: Plugins, problems: Problems) -> FlowControlSettings:
    """The settings of the section; its problems are added also where the gate is off.

    Rules: llm-d-router, pkg/epp/config/loader/flowcontrol.go. A limit of 0 is none for all bands together, and the default
    for one band.
    """
    reader = _Reader(plugins, problems)
    ttl = DEFAULT_TTL if flow.default_request_ttl is None else flow.default_request_ttl
    negative = flow.default_negative_priority_band
    return FlowControlSettings(
        max_requests=flow.max_requests or None,
        max_bytes=flow.max_bytes or None,
        request_ttl=ttl,
        no_endpoint_ttl=ttl if flow.no_endpoint_request_ttl is None else flow.no_endpoint_request_ttl,
        bands=reader.bands(flow.priority_bands),
        default_band=reader.band(flow.default_priority_band or PriorityBandSection(), "defaultPriorityBand"),
        default_negative_band=None
        if negative is None
        else reader.band(negative, "defaultNegativePriorityBand"),
        usage_limit=reader.policy(
            flow.usage_limit_policy_plugin_ref or _USAGE_LIMIT, "usageLimitPolicyPluginRef", Role.USAGE_LIMIT
        ),
        eviction=flow.enable_eviction,
    )


class _Reader:
    def __init__(self, plugins: Plugins, problems: Problems) -> None:
        self._plugins = plugins
        self._problems = problems

    def bands(self, sections: Sequence[PriorityBandSection]) -> Mapping[int, PriorityBand]:
        bands: dict[int, PriorityBand] = {}
        for index, section in enumerate(sections):
            place = f"priorityBands[{index}]"
            if section.priority in bands:
                detail = f"{section.priority} is already the priority of another band"
                self._problems.add(f"flowControl.{place}.priority", detail)
            bands[section.priority] = self.band(section, place)
        return bands

    def band(self, section: PriorityBandSection, place: str) -> PriorityBand:
        limits = {"max_requests": section.max_requests, "max_bytes": section.max_bytes}
        return PriorityBand(
            **{name: limit for name, limit in limits.items() if limit},
            fairness=self.policy(
                section.fairness_policy_ref or _FAIRNESS, f"{place}.fairnessPolicyRef", Role.FAIRNESS
            ),
            ordering=self.policy(
                section.ordering_policy_ref or _ORDERING, f"{place}.orderingPolicyRef", Role.ORDERING
            ),
        )

    def policy(self, name: str, place: str, role: Role) -> Any:
        """The policy of that name; None after a problem was added."""
        resolve = partial(self._plugins.resolve, name, f"flowControl.{place}", role, default=True)
        found = self._problems.of(resolve)
        return None if found is None else self._problems.of(partial(self._plugins.build, found))


def flow_control_steps(
    flow: FlowControl, settings: FlowControlSettings | None, detector: SaturationDetector, detector_name: str
) -> Iterator[str]:
    """Lines for people that say what flow control does with a request; none if it is off (`settings` None)."""
    if settings is None:
        return
    full, empty = _ttl(settings.request_ttl), _ttl(settings.no_endpoint_ttl)
    yield f"flow control: a request waits {full} while the pool is full, {empty} while it is empty"
    for section in sorted(flow.priority_bands, key=lambda one: one.priority, reverse=True):
        yield f"flow control: priority {section.priority}: {_band(settings.bands[section.priority], section)}"
    default = flow.default_priority_band or PriorityBandSection()
    yield f"flow control: other priorities: {_band(settings.default_band, default)}"
    negative = flow.default_negative_priority_band
    if negative is not None and settings.default_negative_band is not None:
        yield f"flow control: other priorities below 0: {_band(settings.default_negative_band, negative)}"
    limit = flow.usage_limit_policy_plugin_ref or _USAGE_LIMIT
    yield f"flow control: {detector_name} says how full the pool is, {limit} how full it may be"
    if detector.counts_in_flight:
        yield f"flow control: {detector_name} needs an Envoy of `envoy-config --response-trailer SEND`"


def flow_control_warnings(flow: FlowControl, plugins: Plugins, *, on: bool) -> Iterator[str]:
    """The parts of the file without effect, with flow control or without it."""
    if not on and flow.model_fields_set - {"saturation_detector"}:
        yield f"flowControl has no effect without featureGates: [{GATE}], except for its saturationDetector"
    if on:
        yield from plugins.flow_control_limits()


def detector_warnings(detector: SaturationDetector, name: str) -> Iterator[str]:
    """A picker does not know how many others there are."""
    if detector.counts_in_flight:
        yield (
            f"{name} counts what this picker alone has in flight: several pickers admit as many times its limits; give each "
            "one its share of maxConcurrency and maxTokenConcurrency, or use utilization-detector"
        )


def _ttl(seconds: float) -> str:
    return f"{seconds:g} s" if seconds else "without a limit"


def _band(band: PriorityBand, section: PriorityBandSection) -> str:
    policies = f"{section.fairness_policy_ref or _FAIRNESS}, {section.ordering_policy_ref or _ORDERING}"
    return f"{band.max_requests} requests and {band.max_bytes} bytes may wait; {policies}"
