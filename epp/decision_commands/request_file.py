"""Reads the file of a request that is to be explained: a body, or a whole HTTP request as text."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from adsum.quoting import quoted

MAX_BYTES: Final = 4 * 1024 * 1024
"""The largest request that a picker explains."""
# bounded: at most 8,192 characters
_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,20}) ([^ \r\n]{1,8192}) HTTP/[0-9.]{1,5}\r?\n")
_PATHS: Final = {"messages": "/v1/chat/completions", "prompt": "/v1/completions", "input": "/v1/embeddings"}
"""By a field of the body."""


def explained_request(file: Path, path: str | None, headers: Mapping[str, str]) -> bytes:
    """The document for POST /debug/explain, with the body byte for byte; raises ValueError and OSError."""
    content = _read(file)
    document: dict[str, Any] = {}
    given: dict[str, str] = {}
    if line := _REQUEST_LINE.match(content):
        document = {"method": line[1].decode(), "path": line[2].decode("latin-1")}
        given, content = _split(content[line.end() :], file)
    fields = _fields(content)
    named = next((known for name, known in _PATHS.items() if name in fields), "/v1/chat/completions")
    document["path"] = path or document.get("path") or named
    document["headers"] = {**given, **headers}
    try:
        document["body"] = msgspec.Raw(content) if fields else content.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{file}: the body is neither JSON nor text in UTF-8") from None
    return msgspec.json.encode(document)


def _read(file: Path) -> bytes:
    if str(file) == "-":
        content = sys.stdin.buffer.read(MAX_BYTES + 1)
    else:
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"{file} is longer than {MAX_BYTES} bytes, the most that a picker explains")
    return content


def _split(rest: bytes, file: Path) -> tuple[dict[str, str], bytes]:
    """The headers, by names in lower case, and the body behind the empty line; raises ValueError."""
    found = re.search(rb"(?:^|\n)\r?\n", rest)
    head, body = (rest, b"") if found is None else (rest[: found.start()], rest[found.end() :])
    headers = {}
    # bounded: MAX_BYTES of the user's own file
    for line in head.split(b"\n"):
        name, colon, value = line.strip().partition(b":")
        if line.strip() and (not colon or not name):
            shown = quoted(line.strip().decode("latin-1"))
            raise ValueError(f"{file}: {shown} is no header; expected name: value, then an empty line")
        if name:
            headers[name.strip().decode("latin-1").lower()] = value.strip().decode("latin-1")
    return headers, body


def _fields(content: bytes) -> Mapping[str, Any]:
    """The fields of a JSON object; none if it is no such thing."""
    try:
        return msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
