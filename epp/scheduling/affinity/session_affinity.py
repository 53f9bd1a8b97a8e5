"""Sends the requests of a session to one endpoint: as a scorer or as a filter."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final, Literal

import numpy as np
from pydantic import Field, model_validator

from adsum.config.problems import did_you_mean
from epp.endpoints.endpoint import EndpointPool, Mask
from epp.plugins.declaration import ParameterError, PluginContext, PluginDeclaration, Role
from epp.plugins.section import HeaderName, Section
from epp.request.inference_request import InferenceRequest
from epp.scheduling.affinity import sessions
from epp.scheduling.plugin import Scores


@dataclass(frozen=True, slots=True)
class SessionAffinityScorer:
    """1 for the endpoint of the session, 0 for all others."""

    strategy: sessions.SessionStrategy

    published_only: ClassVar[bool] = False

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Scores:
        row = self.strategy.find(request, pool)
        return {} if row is None else {row: 1.0}


@dataclass(frozen=True, slots=True)
class SessionAffinityFilter:
    """Keeps only the endpoint of the session; all of them if it is unknown or not among them."""

    strategy: sessions.SessionStrategy

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        row = self.strategy.find(request, pool)
        kept: Mask = np.full(len(pool), row is None)
        if row is not None:
            kept[row] = True
        return kept


class EncodedEndpointParameters(Section):
    header: HeaderName = sessions.TOKEN_HEADER
    """The header with the token of the endpoint."""


class SessionIdSourceParameters(Section):
    """Either a header, or an attribute."""

    header: HeaderName = ""
    """A header of the request."""
    attribute: str = ""
    """Read this attribute, which a `session-id-producer` or `agent-identity` publishes."""
    producer: str = ""
    """The `name` of that plugin."""

    @model_validator(mode="after")
    def _check_one(self) -> "SessionIdSourceParameters":
        if bool(self.header) == bool(self.attribute):
            raise ValueError("a source has either a header or an attribute")
        return self


class SessionIdParameters(Section):
    sources: list[SessionIdSourceParameters] = Field(default_factory=list)
    """The id stands in the first of these that has one; without any in `x-session-id`."""
    eviction_ttl_seconds: float = Field(default=sessions.DEFAULT_TTL, ge=0.0, allow_inf_nan=False)
    """A session is remembered for this long after its last request; 0 is the default."""
    eviction_sweep_seconds: float = Field(default=10.0, ge=0.0, allow_inf_nan=False)
    """No effect: a session is forgotten as soon as its time is up."""


class SessionAffinityParameters(Section):
    """Only the section of the strategy has an effect."""

    strategy: Literal["encoded_endpoint_header", "session_id"] = "encoded_endpoint_header"
    """A token that the client sends back, or an id that the picker remembers."""
    encoded_endpoint_header_config: EncodedEndpointParameters = EncodedEndpointParameters()
    """The section of `encoded_endpoint_header`."""
    session_id_config: SessionIdParameters = SessionIdParameters()
    """The section of `session_id`."""
    profile_name: str = ""
    """The profile whose endpoint is kept: without it, or with `decode`, the endpoint that answers; with `prefill` the prefill worker."""


def _strategy(given: SessionAffinityParameters, context: PluginContext) -> sessions.SessionStrategy:
    if given.profile_name:
        _check_profile(given.profile_name, context.profiles)
    of_prefill = given.profile_name == _PREFILL and len(context.profiles) > 1
    if given.strategy == "encoded_endpoint_header":
        header = given.encoded_endpoint_header_config.header or sessions.TOKEN_HEADER
        token = sessions.EncodedEndpointHeader(header, helper=_PREFILL if of_prefill else "")
        context.set_response_headers(token.response_headers)
        return token
    config = given.session_id_config
    sources = [
        _source(one, f"sessionIdConfig.sources[{at}]", context) for at, one in enumerate(config.sources)
    ]
    bindings = sessions.SessionBindings(
        sources or [sessions.BY_DEFAULT_HEADER],
        config.eviction_ttl_seconds or sessions.DEFAULT_TTL,
        context.rng.randbytes(32),
        of_prefill=of_prefill,
    )
    context.follow(bindings)
    return bindings


def _source(source: SessionIdSourceParameters, field: str, context: PluginContext) -> sessions.SessionId:
    if source.header:
        return partial(sessions.from_header, (source.header,))
    if source.attribute == _AGENT_ATTRIBUTE and not source.producer:
        agent = context.parameters(
            None, sessions.AgentIdentityParameters, default=sessions.AGENT_IDENTITY.type
        )
        if agent is None:
            raise ParameterError(
                field,
                f"nobody publishes {_AGENT_ATTRIBUTE!r}; list the plugin {sessions.AGENT_IDENTITY.type}",
            )
        return partial(sessions.from_header, agent.headers)
    if source.attribute != _SESSION_ATTRIBUTE:
        problem = f"no plugin publishes the attribute {source.attribute[:60]!r}"
        known = (_SESSION_ATTRIBUTE, _AGENT_ATTRIBUTE)
        raise ParameterError(field, f"{problem}; {did_you_mean(source.attribute, known)}")
    if not source.producer:
        raise ParameterError(
            field, f"the attribute lacks its producer, the name of a {sessions.SESSION_ID_PRODUCER.type}"
        )
    found = context.parameters(
        source.producer,
        sessions.SessionIdProducerParameters,
        default=sessions.SESSION_ID_PRODUCER.type,
        field=f"{field}.producer",
    )
    return sessions.BY_DEFAULT_HEADER if found is None else found.session_id()


def _check_profile(profile: str, profiles: Sequence[str]) -> None:
    """A session is kept at the endpoint that answers or at the prefill worker, so of several profiles only theirs can be named."""
    if profile not in profiles:
        raise ParameterError(
            "profileName", f"{profile[:60]!r} is no profile; {did_you_mean(profile, profiles)}"
        )
    if len(profiles) > 1 and profile not in (_DECODE, _PREFILL):
        problem = f"is not supported beside other profiles, but {_DECODE} and {_PREFILL}: leave it out, the endpoint that answers is kept"
        raise ParameterError("profileName", problem)


_DECODE: Final = "decode"
_PREFILL: Final = "prefill"
_SESSION_ATTRIBUTE: Final = "SessionIDDataKey"
_AGENT_ATTRIBUTE: Final = "agent-identity"
SESSION_AFFINITY_SCORER: Final = PluginDeclaration(
    type="session-affinity-scorer",
    role=Role.SCORER,
    parameters=SessionAffinityParameters,
    build=lambda given, context: SessionAffinityScorer(_strategy(given, context)),
    reads_metrics=False,
)
SESSION_AFFINITY_FILTER: Final = PluginDeclaration(
    type="session-affinity-filter",
    role=Role.FILTER,
    parameters=SessionAffinityParameters,
    build=lambda given, context: SessionAffinityFilter(_strategy(given, context)),
)
