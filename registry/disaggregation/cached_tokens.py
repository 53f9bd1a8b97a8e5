"""Tells the client how much of its prompt was cached: the prefill worker knows it, the decode worker answers. Pure.

To the decode worker every token that it fetched is a cached one, so its `usage` would always say that all were (llm-d's
sidecar replaces the number too). Only objects with a `usage` change; all other bytes stay.
"""

from typing import Any, Final

import msgspec

_MOST_LINE: Final = 1024 * 1024
"""Bytes of a line of a stream that is held back until its end; a longer one passes as it is."""
_DETAILS: Final = {"prompt_tokens": "prompt_tokens_details", "input_tokens": "input_tokens_details"}
"""By what the count of the prompt is called: of completions, of responses."""

_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode: Final = msgspec.json.Encoder().encode


def cached_tokens(usage: Any) -> int:
    """The cached tokens of a decoded `usage`; 0 if it says nothing, as vLLM does then."""
    if isinstance(usage, dict):
        for name in _DETAILS.values():
            details = usage.get(name)
            count = details.get("cached_tokens") if isinstance(details, dict) else None
            if isinstance(count, int):
                return count
    return 0


def rewritten(document: bytes, cached: int) -> bytes:
    """The JSON object with this number in its `usage`, or in that of its `response` (the last event of a stream of
    `/v1/responses`); unchanged if there is none.
    """
    if b'"usage"' not in document:
        return document
    try:
        fields: dict[str, Any] = dict(_object.decode(document))
        inner = fields.get("response")
        if "usage" not in fields and inner is not None:
            changed = rewritten(bytes(inner), cached)
            return (
                document if changed == bytes(inner) else _encode(fields | {"response": msgspec.Raw(changed)})
            )
        usage: dict[str, Any] = dict(_object.decode(fields["usage"]))
        counted = next(name for name in _DETAILS if name in usage)
        details = usage.get(_DETAILS[counted])
        given = _object.decode(details) if details is not None and bytes(details) != b"null" else {}
        if given.get("cached_tokens") is not None and msgspec.json.decode(given["cached_tokens"]) == cached:
            return document
        usage[_DETAILS[counted]] = {**given, "cached_tokens": cached}
        return _encode(fields | {"usage": usage})
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, StopIteration):
        return document


class EventRewriter:
    """Rewrites a stream of server-sent events, line by line; only a line that has not ended is held back."""

    def __init__(self, cached: int) -> None:
        self._cached = cached
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Returns the bytes that may go on to the client."""
        if self._held:
            data, self._held = self._held + data, b""
        if not data.endswith(b"\n"):
            end = data.rfind(b"\n") + 1
            if len(data) - end <= _MOST_LINE:
                data, self._held = data[:end], data[end:]
        return self._rewrite(data) if b'"usage"' in data else data

    def end(self) -> bytes:
        """Returns the bytes that were held back."""
        rest, self._held = self._held, b""
        return self._rewrite(rest)

    def _rewrite(self, data: bytes) -> bytes:
        # bounded: what was received at once, and one line that was held back
        lines = data.split(b"\n")
        return b"\n".join(self._line(line) for line in lines)

    def _line(self, line: bytes) -> bytes:
        if not line.startswith(b"data:") or b'"usage"' not in line:
            return line
        content = line[5:].strip()
        changed = rewritten(content, self._cached)
        return line if changed == content else line.replace(content, changed, 1)
