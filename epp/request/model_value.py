"""Puts another model's name into a request body, and changes no other byte. Pure.

If `model` stands twice in the JSON object, the last one counts: for our decoder, for Python's and for pydantic's, which the
model servers use. The others stay, and so does every `model` further inside.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np
from msgspec import Raw, Struct

from epp.request.body import Buffer
from epp.request.inference_api import replace_lone_surrogates


class _ModelValue(Struct):
    model: Raw = Raw(b"")


_DECODER: Final = msgspec.json.Decoder(_ModelValue)


def replace_model(headers: Mapping[str, str], body: Buffer, model: str) -> list[Buffer]:
    """The body in pieces with that model; unchanged if it names none. Its model must have been read by `parse_request`."""
    content_type = headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() == "multipart/form-data":
        span = form_model_span(content_type, bytes(body))
        value = model.encode()
    else:
        span = _json_span(body)
        value = msgspec.json.encode(model)
    if span is None:
        return [body]
    whole = memoryview(body)
    return [whole[: span[0]], value, whole[span[1] :]]


def _json_span(body: Buffer) -> tuple[int, int] | None:
    try:
        found = _DECODER.decode(body)
    except msgspec.DecodeError:
        repaired = replace_lone_surrogates(body)  # of the same length, so what is found there is here too
        if repaired is None:
            raise
        body = repaired
        found = _DECODER.decode(body)
    value = memoryview(found.model)
    if not value.nbytes:
        return None
    start = _address(value) - _address(memoryview(body))  # a Raw is a view of what was decoded
    return start, start + value.nbytes


def _address(view: memoryview) -> int:
    """Where in memory the bytes of the view begin."""
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address


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
