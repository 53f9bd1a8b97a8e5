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
    valid_values: list[str] = Field(default_factory=list)
    allows_no_label: bool = False

    @model_validator(mode="after")
    def _check_values(self) -> "ByLabelParameters":
        if not (self.valid_values or self.allows_no_label):
            raise ValueError(
                "no endpoint can have one of no values; give validValues, or allowsNoLabel: true"
            )
        return self


class HeaderLabelParameters(Section):
    header_name: HeaderName = Field(min_length=1)
    label_key: str = Field(min_length=1)


class ContextLengthParameters(Section):
    label: str = Field(default=DEFAULT_LABEL, min_length=1)
    enable_filtering: bool = False


class TopologyExtractorParameters(Section):
    """The labels that say where an endpoint runs; empty: the default."""

    hostname: str = ""
    rack: str = ""
    zone: str = ""
    region: str = ""

    def labels(self) -> TopologyLabels:
        given = {name: label for name, label in self.model_dump().items() if label}
        return TopologyLabels(**given)


class TopologyScorerParameters(Section):
    """`topology_producer_name`: a topology-extractor; empty: the one of that name, else the default labels."""

    topology_producer_name: str = ""


class TopologyFilterParameters(TopologyScorerParameters):
    min_affinity: Literal["", "host", "rack", "zone", "region"] = "host"


class EncodedEndpointParameters(Section):
    header: HeaderName = TOKEN_HEADER


class SessionIdSourceParameters(Section):
    """A header, or an attribute of the request that a session-id-producer or agent-identity publishes."""

    header: HeaderName = ""
    attribute: str = ""
    producer: str = ""

    @model_validator(mode="after")
    def _check_one(self) -> "SessionIdSourceParameters":
        if bool(self.header) == bool(self.attribute):
            raise ValueError("a source has either a header or an attribute")
        return self


class SessionIdParameters(Section):
    """0 is the default of a time. `eviction_sweep_seconds` has no effect: a session is forgotten as soon as its time is up."""

    sources: list[SessionIdSourceParameters] = Field(default_factory=list)
    eviction_ttl_seconds: float = Field(default=DEFAULT_TTL, ge=0.0, allow_inf_nan=False)
    eviction_sweep_seconds: float = Field(default=10.0, ge=0.0, allow_inf_nan=False)


class SessionAffinityParameters(Section):
    """Only the configuration of the strategy has an effect."""

    strategy: Literal["encoded_endpoint_header", "session_id"] = "encoded_endpoint_header"
    encoded_endpoint_header_config: EncodedEndpointParameters = EncodedEndpointParameters()
    session_id_config: SessionIdParameters = SessionIdParameters()
    profile_name: str = ""


class SessionIdProducerParameters(Section):
    """`header_name` or `cookie_name`, not both."""

    header_name: HeaderName = ""
    cookie_name: str = ""

    @model_validator(mode="after")
    def _check_one(self) -> "SessionIdProducerParameters":
        if bool(self.header_name) == bool(self.cookie_name.strip()):
            raise ValueError("a session id comes from headerName or from cookieName; give one of them")
        return self


class AgentIdentityParameters(Section):
    """Headers that count before the known ones."""

    additional_session_headers: list[HeaderName] = Field(default_factory=list)


class NoHitLruParameters(Section):
    """`lru_size` 0 or less: the default. The Go picker never used `prefix_plugin_type` and `prefix_plugin_name`."""

    lru_size: int = Field(default=no_hit_lru.DEFAULT_SIZE, le=1_000_000)
    prefix_match_info_producer_name: str | None = None
    prefix_plugin_type: str = ""
    prefix_plugin_name: str = ""


class HeaderProfileParameters(Section):
    """Empty: the default."""

    header_name: HeaderName = header_profile.DEFAULT_HEADER
    default_profile: str = header_profile.DEFAULT_PROFILE


class DataParallelParameters(Section):
    """The port of the sidecar."""

    primary_port: int = Field(default=data_parallel.DEFAULT_PORT, ge=1, le=65535)
