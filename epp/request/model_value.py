"""Puts another model's name into a request body, and changes no other byte. Pure.

If `model` stands twice in the JSON object, the last one counts: for our decoder, for Python's and for pydantic's, which the
model servers use. The others stay, and so does every `model` further inside.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np
from msgspec import Raw, Struct

from epp.request.body import Buffer
from epp.request.form_model import form_model_span
from epp.request.lone_surrogates import replace_lone_surrogates


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
