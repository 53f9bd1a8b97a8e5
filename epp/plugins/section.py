"""The parameters of a plugin: a section of an `EndpointPickerConfig`, and the kinds of values in it."""

import string
from typing import Annotated, Final

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from adsum.config.sections import ConfigSection, parsed_by
from adsum.units import parse_go_duration, parse_quantity

Duration = Annotated[float, parsed_by(parse_go_duration)]
"""A duration in Go's syntax ("200ms"), in seconds."""
Limit = Annotated[int, Field(ge=1, lt=2**63)]
"""A number of requests or tokens; as in Go, an int64."""
Headroom = Annotated[float, Field(ge=0.0, le=1_000_000.0)]
"""The share of a limit that a filter allows beyond it."""
Quantity = Annotated[int, parsed_by(parse_quantity), Field(ge=0)]
"""A Kubernetes quantity ("1Gi", 5000)."""
_TOKEN_CHARACTERS: Final = frozenset(string.ascii_letters + string.digits + "!#$%&'*+-.^_`|~")
_MAX_NAME: Final = 200


def parse_header_name(text: str) -> str:
    """The name in lower case, empty if there is none; raises ValueError for what is no name (RFC 9110 section 5.6.2)."""
    name = text.strip().lower()
    if len(name) > _MAX_NAME or not _TOKEN_CHARACTERS.issuperset(name):
        raise ValueError(f"{name[:60]!r} is not the name of a header; expected letters, digits and hyphens")
    return name


HeaderName = Annotated[str, parsed_by(parse_header_name)]


class Section(ConfigSection):
    """A part of an EndpointPickerConfig; its fields are camelCase in the file."""

    model_config = ConfigDict(alias_generator=to_camel)


class NoParameters(Section):
    """The type has no parameters."""


class PickerParameters(Section):
    max_num_of_endpoints: int = Field(default=1, ge=1)
    """A pick names this many endpoints: the choice and its fallbacks."""
