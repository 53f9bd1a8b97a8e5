"""Builds the plugins that need what other plugins of the file provide, each once, where a profile first uses it."""

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from epp.config.affinity_parameters import (
    AgentIdentityParameters,
    NoHitLruParameters,
    SessionAffinityParameters,
    SessionIdProducerParameters,
    SessionIdSourceParameters,
    TopologyExtractorParameters,
    TopologyFilterParameters,
    TopologyScorerParameters,
)
from epp.config.catalogue import Role
from epp.config.load_parameters import AttributeFilterParameters, AttributeScorerParameters
from epp.config.parameters import LeastCostParameters, PrefixProducerParameters, PrefixScorerParameters
from epp.config.plugins import Plugin, Plugins
from epp.config.token_parameters import InflightLoadParameters
from epp.config.token_plugins import TokenPlugins
from epp.endpoints.worker_metrics import WorkerMetric
from epp.ext_proc.exchange_settings import ResponseHeaders
from epp.scheduling.affinity.session_affinity import SessionAffinityFilter, SessionAffinityScorer
from epp.scheduling.affinity.session_id import AGENT_HEADERS, CookieSessionId, HeaderSessionId, SessionId
from epp.scheduling.affinity.session_strategies import (
    DEFAULT_TTL,
    TOKEN_HEADER,
    EncodedEndpointHeader,
    SessionBindings,
    SessionStrategy,
)
from epp.scheduling.affinity.topology import (
    TopologyAffinityFilter,
    TopologyAffinityScorer,
    TopologyLabels,
    TopologyLevel,
)
from epp.scheduling.burst.producer import BurstPrefixProducer, BurstPrefixScorer
from epp.scheduling.filters.endpoint_attribute import EndpointAttributeFilter
from epp.scheduling.plugin import DataProducer
from epp.scheduling.prefix.plugins import PRODUCER, PrefixCacheProducer, PrefixCacheScorer
from epp.scheduling.scorers.endpoint_attribute import EndpointAttributeScorer
from epp.scheduling.scorers.no_hit_lru import DEFAULT_SIZE, NoHitLruScorer
from epp.scheduling.work_ahead.plugins import LeastCostScorer, WorkAheadProducer
from runtime.config.problems import ConfigError, did_you_mean

_CORE_EXTRACTOR: Final = "core-metrics-extractor"
_SESSION_ATTRIBUTE: Final = "SessionIDDataKey"
_AGENT_ATTRIBUTE: Final = "agent-identity"


class ConnectedPlugins:
    """`profiles`: the names of all; `attributes`: the metrics that endpoint-attribute plugins may name.

    `followers` learn of every request, whichever profile runs; `response_headers` set headers of its answer.
    """

    def __init__(
        self,
        plugins: Plugins,
        profiles: Sequence[str],
        attributes: Mapping[str, WorkerMetric],
        rng: random.Random,
    ) -> None:
        self.followers: list[DataProducer] = []
        self.response_headers: list[ResponseHeaders] = []
        self._plugins = plugins
        self._profiles = profiles
        self._attributes = attributes
        self._rng = rng
        self._tokens = TokenPlugins(plugins, self.prefix_matches, rng)
        self._built: dict[str, Any] = {}
        self._prefix_producers: dict[str, PrefixCacheProducer | BurstPrefixProducer] = {}
        for name in plugins.names(Role.RESPONSE_HEADERS):
            self.response_headers.append(plugins.resolve(name, "plugins", Role.RESPONSE_HEADERS).built)

    def follow_in_flight(self) -> None:
        """Let the producers of tokens in flight follow every request, those that the file lists and those that are used."""
        for name in self._plugins.names(Role.PRODUCER):
            plugin = self._plugins.resolve(name, "plugins", Role.PRODUCER)
            if isinstance(plugin.parameters, InflightLoadParameters):
                self._tokens.in_flight_load(plugin, name)
        for load in self._tokens.in_flight_loads:
            self.followers += [load] if load.matches is None else [load, load.matches]

    def built(self, name: str, plugin: Plugin) -> Any:
        """The plugin of that name, connected; raises ConfigError."""
        connect = _CONNECTED.get(type(plugin.parameters))
        build = self._tokens.builder(plugin) if connect is None else partial(connect, self)
        if build is None:
            return plugin.built
        if name not in self._built:
            self._built[name] = build(plugin)
        return self._built[name]

    def listed_prefix_producers(self) -> list[PrefixCacheProducer]:
        """All of the file: a profile handler may read what no scorer does."""
        found = [
            self._plugins.resolve(name, "plugins", Role.PRODUCER)
            for name in self._plugins.names(Role.PRODUCER)
        ]
        return [one.built for one in found if isinstance(one.built, PrefixCacheProducer)]

    def prefix_scorer(self, plugin: Plugin) -> PrefixCacheScorer | BurstPrefixScorer:
        given: Any = plugin.parameters
        producer = self.prefix_matches(plugin, given.prefix_match_info_producer_name)
        if isinstance(producer, BurstPrefixProducer):
            return BurstPrefixScorer(producer, given.match_length_weight, given.match_length_scale_tokens)
        return PrefixCacheScorer(producer, given.match_length_weight, given.match_length_scale_tokens)

    def least_cost_scorer(self, plugin: Plugin) -> LeastCostScorer:
        given: Any = plugin.parameters
        prefixes = self._prefix_producer(plugin, given.prefix_match_info_producer_name)
        name = next(name for name, one in self._prefix_producers.items() if one is prefixes)
        work_ahead = self._plugins.connected(
            f"work ahead of {name}", [prefixes], lambda: WorkAheadProducer(prefixes)
        )
        return LeastCostScorer(
            work_ahead, given.request_tokens, given.interference, given.adapter_load_seconds
        )

    def no_hit_lru(self, plugin: Plugin) -> NoHitLruScorer:
        given: Any = plugin.parameters
        producer = self._prefix_producer(plugin, given.prefix_match_info_producer_name)
        size = given.lru_size if given.lru_size > 0 else DEFAULT_SIZE
        scorer = self._plugins.connected(
            f"scorer {plugin.name}", [producer, size], lambda: NoHitLruScorer(producer, size)
        )
        self.followers.append(scorer)
        return scorer

    def attribute_scorer(self, plugin: Plugin) -> EndpointAttributeScorer:
        given: Any = plugin.parameters
        attribute = self._attribute(plugin, "attributeKey", given.attribute_key, given.producer)
        limits = given.algorithm.normalization.fixed_range
        return EndpointAttributeScorer(
            attribute,
            lower_is_better=given.algorithm.type == "linear_lower_is_better",
            limits=None if limits is None else (limits.min, limits.max),
        )

    def attribute_filter(self, plugin: Plugin) -> EndpointAttributeFilter:
        given: Any = plugin.parameters
        return EndpointAttributeFilter(
            attribute=self._attribute(plugin, "attribute", given.attribute, given.producer),
            comparison=given.algorithm.threshold.operator,
            value=given.algorithm.threshold.value,
            keep_missing=given.on_missing != "Fail",
            fallback=given.fallback_on_empty,
        )

    def topology_scorer(self, plugin: Plugin) -> TopologyAffinityScorer:
        return TopologyAffinityScorer(self._topology_labels(plugin))

    def topology_filter(self, plugin: Plugin) -> TopologyAffinityFilter:
        given: Any = plugin.parameters
        least = TopologyLevel[(given.min_affinity or "host").upper()]
        return TopologyAffinityFilter(least, self._topology_labels(plugin))

    def session_affinity(self, plugin: Plugin) -> SessionAffinityScorer | SessionAffinityFilter:
        given: Any = plugin.parameters
        self._check_profile(plugin, given.profile_name)
        strategy = self._session_strategy(plugin, given)
        return SessionAffinityScorer(strategy) if plugin.has(Role.SCORER) else SessionAffinityFilter(strategy)

    def _session_strategy(self, plugin: Plugin, given: SessionAffinityParameters) -> SessionStrategy:
        if given.strategy == "encoded_endpoint_header":
            token = EncodedEndpointHeader(given.encoded_endpoint_header_config.header or TOKEN_HEADER)
            self.response_headers.append(token.response_headers)
            return token
        config = given.session_id_config
        sources = [self._session_id(plugin, one, at) for at, one in enumerate(config.sources)]
        ttl = config.eviction_ttl_seconds or DEFAULT_TTL
        bindings = self._plugins.connected(
            f"sessions of {plugin.name}",
            [ttl, *sources],
            lambda: SessionBindings(sources or [HeaderSessionId()], ttl, self._rng.randbytes(32)),
        )
        self.followers.append(bindings)
        return bindings

    def _session_id(self, plugin: Plugin, source: SessionIdSourceParameters, at: int) -> SessionId:
        if source.header:
            return HeaderSessionId((source.header,))
        place = f"{plugin.place}.parameters.sessionIdConfig.sources[{at}]"
        if source.attribute == _AGENT_ATTRIBUTE and not source.producer:
            headers = agent_headers(self._plugins)
            if not headers:
                raise ConfigError(
                    place, f"nobody publishes {_AGENT_ATTRIBUTE!r}; list the plugin agent-identity"
                )
            return HeaderSessionId(headers)
        if source.attribute != _SESSION_ATTRIBUTE:
            problem = f"no plugin publishes the attribute {source.attribute[:60]!r}"
            known = (_SESSION_ATTRIBUTE, _AGENT_ATTRIBUTE)
            raise ConfigError(place, f"{problem}; {did_you_mean(source.attribute, known)}")
        if not source.producer:
            raise ConfigError(place, "the attribute lacks its producer, the name of a session-id-producer")
        found = self._plugins.resolve(source.producer, f"{place}.producer", Role.PRODUCER).parameters
        if not isinstance(found, SessionIdProducerParameters):
            raise ConfigError(f"{place}.producer", f"{source.producer!r} is no session-id-producer")
        header, cookie = found.header_name, found.cookie_name.strip()
        return HeaderSessionId((header,)) if header else CookieSessionId(cookie)

    def _check_profile(self, plugin: Plugin, profile: str) -> None:
        """A session is kept at the endpoint that answers, so that a profile can be named only where there is one."""
        place = f"{plugin.place}.parameters.profileName"
        if profile and profile not in self._profiles:
            raise ConfigError(
                place, f"{profile[:60]!r} is no profile; {did_you_mean(profile, self._profiles)}"
            )
        if profile and len(self._profiles) > 1:
            raise ConfigError(
                place,
                "is not supported beside other profiles: leave it out, the endpoint that answers is kept",
            )

    def _topology_labels(self, plugin: Plugin) -> TopologyLabels:
        given: Any = plugin.parameters
        name = given.topology_producer_name
        if not name:
            return (
                self._plugins.first(TopologyExtractorParameters) or TopologyExtractorParameters()
            ).labels()
        place = f"{plugin.place}.parameters.topologyProducerName"
        found = self._plugins.resolve(name, place, Role.EXTRACTOR, default=True).parameters
        if not isinstance(found, TopologyExtractorParameters):
            raise ConfigError(place, f"{name!r} is no topology-extractor")
        return found.labels()

    def _attribute(self, plugin: Plugin, field: str, key: str, producer: str | None) -> WorkerMetric:
        """The metric that an attribute names; the rules are those of the Go picker, ResolveConfiguredKey."""
        place = f"{plugin.place}.parameters"
        if producer is None and "/" in key:
            name, _, publisher = key.rpartition("/")
            raise ConfigError(
                f"{place}.{field}",
                f"an attribute and its producer are two parameters; write {field}: {name}, producer: {publisher}",
            )
        if producer not in (None, _CORE_EXTRACTOR):
            self._plugins.check_not_broken(producer or "")
            raise ConfigError(
                f"{place}.producer",
                f"{producer!r} publishes no number of an endpoint; expected {_CORE_EXTRACTOR}",
            )
        if key not in self._attributes:
            problem = f"no customMetrics of {_CORE_EXTRACTOR} has the attributeKey {key[:60]!r}"
            raise ConfigError(f"{place}.{field}", f"{problem}; {did_you_mean(key, self._attributes)}")
        return self._attributes[key]

    def prefix_matches(self, plugin: Plugin, name: str | None) -> PrefixCacheProducer | BurstPrefixProducer:
        """The named one, else the file's first, else the default one; shared by all that need it."""
        name = name or self._plugins.first_name(PrefixProducerParameters) or PRODUCER
        if name not in self._prefix_producers:
            place = f"{plugin.place}.parameters.prefixMatchInfoProducerName"
            found = self._plugins.resolve(name, place, Role.PRODUCER, default=True).built
            if not isinstance(found, PrefixCacheProducer | BurstPrefixProducer):
                raise ConfigError(place, f"{name!r} finds no prefixes, expected an {PRODUCER}")
            self._check_one_window(place, found)
            self._prefix_producers[name] = found
        return self._prefix_producers[name]

    def _prefix_producer(self, plugin: Plugin, name: str | None) -> PrefixCacheProducer:
        """One that remembers what workers hold."""
        found = self.prefix_matches(plugin, name)
        if not isinstance(found, PrefixCacheProducer):
            place = f"{plugin.place}.parameters.prefixMatchInfoProducerName"
            raise ConfigError(place, f"{name!r} remembers no prefixes, expected an {PRODUCER}")
        return found

    def _check_one_window(self, place: str, found: object) -> None:
        if isinstance(found, BurstPrefixProducer) and any(
            isinstance(one, BurstPrefixProducer) for one in self._prefix_producers.values()
        ):
            raise ConfigError(
                place, "a request waits in one window: only one burst-prefix-cache-producer is possible"
            )


def agent_headers(plugins: Plugins) -> tuple[str, ...]:
    """The session headers of agents, if the file lists agent-identity; else none."""
    given = plugins.first(AgentIdentityParameters)
    return () if given is None else (*filter(None, given.additional_session_headers), *AGENT_HEADERS)


_CONNECTED: Final[Mapping[type, Callable[[ConnectedPlugins, Plugin], Any]]] = {
    PrefixScorerParameters: ConnectedPlugins.prefix_scorer,
    LeastCostParameters: ConnectedPlugins.least_cost_scorer,
    NoHitLruParameters: ConnectedPlugins.no_hit_lru,
    AttributeScorerParameters: ConnectedPlugins.attribute_scorer,
    AttributeFilterParameters: ConnectedPlugins.attribute_filter,
    TopologyScorerParameters: ConnectedPlugins.topology_scorer,
    TopologyFilterParameters: ConnectedPlugins.topology_filter,
    SessionAffinityParameters: ConnectedPlugins.session_affinity,
}
"""By the parameters of the type."""
