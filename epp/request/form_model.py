"""Finds the model in a multipart form, as audio transcriptions send it (RFC 7578). Pure."""

import re
from typing import Final

_BOUNDARY: Final = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s;]{1,70}))', re.IGNORECASE)
_MODEL_FIELD: Final = re.compile(
    rb'content-disposition:[^\r\n]*;\s*name="?model"?\s*(?:;|\r?$)', re.IGNORECASE | re.MULTILINE
)
_MAX_PARTS: Final = 64
"""Parts of a form that are searched for the model."""
_PART_HEADER_SCAN: Final = 1024
"""Bytes of a part's header that are searched for its name."""


def form_model_span(content_type: str, body: bytes) -> tuple[int, int] | None:
    """Where the value of the field `model` begins and ends, without the space around it; None if it cannot be found."""
    found = _BOUNDARY.search(content_type)
    if found is None:
        return None
    delimiter = b"--" + (found[1] or found[2]).encode("utf-8", "replace")
    start = 0 if body.startswith(delimiter) else body.find(b"\r\n" + delimiter)
    for _ in range(_MAX_PARTS):
        head = body.find(b"\r\n", start + 2) if start >= 0 else -1
        value = body.find(b"\r\n\r\n", head) if head >= 0 else -1
        end = body.find(b"\r\n" + delimiter, value) if value >= 0 else -1
        if end < 0:
            return None
        if _MODEL_FIELD.search(body, head, min(value, head + _PART_HEADER_SCAN)):
            return _stripped(body, value + 4, end)
        start = end
    return None


def _stripped(body: bytes, start: int, end: int) -> tuple[int, int]:
    value = body[start:end]
    start += len(value) - len(value.lstrip())
    return start, start + len(value.strip())
