"""The tokens that an answer says were used: which fields of its `usage` are read. Pure.

Completions and chat say `prompt_tokens` and `completion_tokens`, OpenAI's responses and Anthropic's messages `input_tokens`
and `output_tokens`. Messages that are streamed say the input in their first event and the output in their last.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

MOST_TOKENS: Final = 100_000_000
"""No request has so many; a larger number is no count."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; None: not said. `cached`: those of `input` that the worker had in its prefix cache."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None

    def updated(self, newer: "Usage") -> "Usage":
        """The numbers of a later event of the same answer count instead."""
        return Usage(
            self.input if newer.input is None else newer.input,
            self.output if newer.output is None else newer.output,
            self.cached if newer.cached is None else newer.cached,
        )


NO_USAGE: Final = Usage()
_INPUT: Final = ("prompt_tokens", "input_tokens")
_OUTPUT: Final = ("completion_tokens", "output_tokens")
_DETAILS: Final = ("prompt_tokens_details", "input_tokens_details")
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])


def read_usage(text: bytes) -> Usage:
    """Read the object behind `usage`; a field that is no plausible count is not said."""
    try:
        fields = _OBJECT.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return NO_USAGE
    read, cached = _count(fields, _INPUT), _cached(fields)
    return Usage(read, _count(fields, _OUTPUT), cached)


def _cached(fields: Mapping[str, Any]) -> int | None:
    """A number above that of the prompt is no count; Anthropic's `input_tokens` are without the cached ones."""
    for name in _DETAILS:
        details = fields.get(name)
        if isinstance(details, dict):
            cached, read = _count(details, ("cached_tokens",)), _count(fields, _INPUT)
            return None if cached is None or (read is not None and cached > read) else cached
    return _count(fields, ("cache_read_input_tokens",))


def _count(fields: Mapping[str, Any], names: Sequence[str]) -> int | None:
    """The first of the fields that is there, if it is a whole number from 0 to MOST_TOKENS."""
    value = next((fields[name] for name in names if fields.get(name) is not None), None)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None
