"""Builds the plugins that decide by the tokens in flight, on the producers that the file names or that are added."""

import random
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from epp.config.catalogue import Role
from epp.config.parameters import PrefixProducerParameters
from epp.config.plugins import Plugin, Plugins
from epp.config.token_parameters import (
    ConcurrencyParameters,
    InflightLoadParameters,
    PrefixAffinityParameters,
    TokenLoadParameters,
)
from epp.scheduling.in_flight_load.concurrency import ConcurrencyDetector, ConcurrencyMode
from epp.scheduling.in_flight_load.prefix_affinity import PrefixCacheAffinityFilter
from epp.scheduling.in_flight_load.producer import PRODUCER, InFlightLoadProducer
from epp.scheduling.in_flight_load.token_load import DEFAULT_QUEUE_TOKENS, TokenLoadScorer
from epp.scheduling.prefix.match_producer import PrefixMatchProducer
from runtime.config.problems import ConfigError

FindMatches: TypeAlias = Callable[[Plugin, str | None], PrefixMatchProducer]


class TokenPlugins:
    """`matches`: the producer of prefixes that a plugin names; raises ConfigError."""

    def __init__(self, plugins: Plugins, matches: FindMatches, rng: random.Random) -> None:
        self._plugins = plugins
        self._matches = matches
        self._rng = rng
        self._loads: dict[str, InFlightLoadProducer] = {}

    @property
    def in_flight_loads(self) -> list[InFlightLoadProducer]:
        return list(self._loads.values())

    def builder(self, plugin: Plugin) -> Callable[[Plugin], Any] | None:
        """What builds a plugin of that type, if it is one of these."""
        builders: Mapping[type, Callable[[Plugin], Any]] = {
            TokenLoadParameters: self._token_load,
            PrefixAffinityParameters: self._prefix_affinity,
            ConcurrencyParameters: self._concurrency,
        }
        return builders.get(type(plugin.parameters))

    def in_flight_load(self, plugin: Plugin, name: str | None) -> InFlightLoadProducer:
        """The named one, else the one with the name of its type; it is added if the file lists none."""
        name = name or PRODUCER
        if name not in self._loads:
            place = f"{plugin.place}.parameters.inFlightLoadProducerName"
            found = self._plugins.resolve(name, place, Role.PRODUCER, default=True)
            given = found.parameters
            if not isinstance(given, InflightLoadParameters):
                raise ConfigError(place, f"{name!r} counts nothing in flight, expected an {PRODUCER}")
            matches = self._discount(found, given)
            self._loads[name] = self._plugins.connected(
                f"in flight of {name}",
                [given, matches],
                lambda: InFlightLoadProducer(name, matches, given.output()),
            )
        return self._loads[name]

    def _discount(self, plugin: Plugin, given: InflightLoadParameters) -> PrefixMatchProducer | None:
        """Who knows what endpoints hold already: the one that is named, else the one that other plugins of the file use."""
        named = given.prefix_match_info_producer_name
        roles = (Role.SCORER, Role.FILTER, Role.PRODUCER)
        others = [
            self._plugins.resolve(name, "plugins", *roles).parameters for name in self._plugins.names(*roles)
        ]
        used = any(isinstance(one, PrefixProducerParameters) or _asks_for_matches(one) for one in others)
        return self._matches(plugin, named) if named or used else None

    def _token_load(self, plugin: Plugin) -> TokenLoadScorer:
        given: Any = plugin.parameters
        tokens = given.queue_threshold_tokens
        load = self.in_flight_load(plugin, given.in_flight_load_producer_name)
        return TokenLoadScorer(load, tokens if tokens > 0 else DEFAULT_QUEUE_TOKENS)

    def _prefix_affinity(self, plugin: Plugin) -> PrefixCacheAffinityFilter:
        given: Any = plugin.parameters
        penalty = given.penalty()
        return PrefixCacheAffinityFilter(
            self._matches(plugin, given.prefix_match_info_producer_name),
            self.in_flight_load(plugin, given.in_flight_load_producer_name) if penalty else None,
            random.Random(self._rng.getrandbits(64)),
            threshold=given.affinity_threshold,
            exploration=given.exploration_probability,
            penalty=penalty,
        )

    def _concurrency(self, plugin: Plugin) -> ConcurrencyDetector:
        given: Any = plugin.parameters
        return ConcurrencyDetector(
            self.in_flight_load(plugin, given.in_flight_load_producer_name),
            ConcurrencyMode(given.concurrency_mode),
            given.max_concurrency,
            given.max_token_concurrency,
            given.headroom,
        )


def _asks_for_matches(parameters: object) -> bool:
    """Whether a plugin reads matches and names nobody, so that a producer is there for it."""
    named: Final = "prefix_match_info_producer_name"
    if isinstance(parameters, InflightLoadParameters):
        return False
    return hasattr(parameters, named) and not getattr(parameters, named)
