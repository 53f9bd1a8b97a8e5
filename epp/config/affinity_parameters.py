"""The parameters of the plugins that keep requests at, or near, certain endpoints, under the Go picker's names."""

import string
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from epp.config.document import Section
from epp.scheduling.affinity.context_length import DEFAULT_LABEL
from epp.scheduling.affinity.session_strategies import DEFAULT_TTL, TOKEN_HEADER
from epp.scheduling.affinity.topology import TopologyLabels
from epp.scheduling.handlers import data_parallel, header_profile
from epp.scheduling.scorers import no_hit_lru
from runtime.config.sections import parsed_by

_TOKEN_CHARACTERS: Final = frozenset(string.ascii_letters + string.digits + "!#$%&'*+-.^_`|~")
_MAX_NAME: Final = 200


def parse_header_name(text: str) -> str:
    """The name in lower case, empty if there is none; raises ValueError for what is no name (RFC 9110 section 5.6.2)."""
    name = text.strip().lower()
    if len(name) > _MAX_NAME or not _TOKEN_CHARACTERS.issuperset(name):
        raise ValueError(f"{name[:60]!r} is not the name of a header; expected letters, digits and hyphens")
    return name


HeaderName = Annotated[str, parsed_by(parse_header_name)]


class ByLabelParameters(Section):
    """The older type of label-selector-filter."""

    label: str = Field(min_length=1)
    """Of the endpoints."""
    valid_values: list[str] = Field(default_factory=list)
    """An endpoint is kept if the label has one of them."""
    allows_no_label: bool = False
    """Keep endpoints without the label."""

    @model_validator(mode="after")
    def _check_values(self) -> "ByLabelParameters":
        if not (self.valid_values or self.allows_no_label):
            raise ValueError(
                "no endpoint can have one of no values; give validValues, or allowsNoLabel: true"
            )
        return self


class HeaderLabelParameters(Section):
    header_name: HeaderName = Field(min_length=1)
    """The header of the request."""
    label_key: str = Field(min_length=1)
    """The label of endpoints that has to have the header's value."""


class ContextLengthParameters(Section):
    label: str = Field(default=DEFAULT_LABEL, min_length=1)
    """Of endpoints; its value says which lengths of prompts they are for, in tokens: `0-2048`."""
    enable_filtering: bool = False
    """Also a filter."""


class TopologyExtractorParameters(Section):
    """The labels that say where an endpoint runs."""

    hostname: str = ""
    """The label of an endpoint's host; without it `kubernetes.io/hostname`."""
    rack: str = ""
    """The label of its rack; without it `topology.kubernetes.io/rack`."""
    zone: str = ""
    """The label of its zone; without it `topology.kubernetes.io/zone`."""
    region: str = ""
    """The label of its region; without it `topology.kubernetes.io/region`."""

    def labels(self) -> TopologyLabels:
        given = {name: label for name, label in self.model_dump().items() if label}
        return TopologyLabels(**given)


class TopologyScorerParameters(Section):
    topology_producer_name: str = ""
    """The `name` of a `topology-extractor`; without it the one of that name, else the default labels."""


class TopologyFilterParameters(TopologyScorerParameters):
    min_affinity: Literal["", "host", "rack", "zone", "region"] = "host"
    """Keeps endpoints that are at least as near."""


class EncodedEndpointParameters(Section):
    header: HeaderName = TOKEN_HEADER
    """The header with the token of the endpoint."""


class SessionIdSourceParameters(Section):
    """Either a header, or an attribute."""

    header: HeaderName = ""
    """A header of the request."""
    attribute: str = ""
    """What a `session-id-producer` or `agent-identity` publishes."""
    producer: str = ""
    """The `name` of that plugin."""

    @model_validator(mode="after")
    def _check_one(self) -> "SessionIdSourceParameters":
        if bool(self.header) == bool(self.attribute):
            raise ValueError("a source has either a header or an attribute")
        return self


class SessionIdParameters(Section):
    sources: list[SessionIdSourceParameters] = Field(default_factory=list)
    """Where the id stands, the first that has one; without any in `x-session-id`."""
    eviction_ttl_seconds: float = Field(default=DEFAULT_TTL, ge=0.0, allow_inf_nan=False)
    """How long a session is remembered after its last request; 0 is the default."""
    eviction_sweep_seconds: float = Field(default=10.0, ge=0.0, allow_inf_nan=False)
    """No effect: a session is forgotten as soon as its time is up."""


class SessionAffinityParameters(Section):
    """Only the section of the strategy has an effect."""

    strategy: Literal["encoded_endpoint_header", "session_id"] = "encoded_endpoint_header"
    """A token that the client sends back, or an id that the picker remembers."""
    encoded_endpoint_header_config: EncodedEndpointParameters = EncodedEndpointParameters()
    """Of `encoded_endpoint_header`."""
    session_id_config: SessionIdParameters = SessionIdParameters()
    """Of `session_id`."""
    profile_name: str = ""
    """The profile whose endpoint is kept; of use only where the file has one profile."""


class SessionIdProducerParameters(Section):
    header_name: HeaderName = ""
    """The header with the id of the session; this or `cookieName`."""
    cookie_name: str = ""
    """The cookie with it."""

    @model_validator(mode="after")
    def _check_one(self) -> "SessionIdProducerParameters":
        if bool(self.header_name) == bool(self.cookie_name.strip()):
            raise ValueError("a session id comes from headerName or from cookieName; give one of them")
        return self


class AgentIdentityParameters(Section):
    additional_session_headers: list[HeaderName] = Field(default_factory=list)
    """Headers that count before the known ones."""


class NoHitLruParameters(Section):
    lru_size: int = Field(default=no_hit_lru.DEFAULT_SIZE, le=1_000_000)
    """How many workers are remembered; 0 or less: the default."""
    prefix_match_info_producer_name: str | None = None
    """The `name` of the producer of prefixes; without it the file's producer, else one with the defaults."""
    prefix_plugin_type: str = ""
    """No effect."""
    prefix_plugin_name: str = ""
    """No effect."""


class HeaderProfileParameters(Section):
    header_name: HeaderName = header_profile.DEFAULT_HEADER
    """The header that names the profile."""
    default_profile: str = header_profile.DEFAULT_PROFILE
    """The profile of requests without it."""


class DataParallelParameters(Section):
    primary_port: int = Field(default=data_parallel.DEFAULT_PORT, ge=1, le=65535)
    """The port of the sidecar."""
