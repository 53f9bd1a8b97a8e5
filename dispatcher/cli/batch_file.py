"""Reads batch files and writes results files: one JSON object a line, in the format of the OpenAI Batch API."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from adsum.errors import os_reason
from adsum.quoting import quoted
from dispatcher.broker.contract.message import Result

EXPECTED = 'expected {"custom_id": "...", "url": "/v1/chat/completions", "body": {...}} on each line'

MOST_PROBLEMS: Final = 20
"""Faulty lines of a file that are named; the others are counted."""


class BatchFileError(ValueError):
    """A line or a file is invalid; the text names it."""


class ResultsError(OSError):
    """Results cannot be written any more; the text says what to do."""


class _RequestLine(msgspec.Struct):
    custom_id: str
    body: msgspec.Raw
    url: str = ""
    method: str = "POST"


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request. `body`: the bytes in the file, unchanged; `url`: the path, empty: the queue's own."""

    custom_id: str
    url: str
    body: bytes
    location: str
    """FILE:LINE, for errors."""

    @property
    def sha256(self) -> str:
        """Identifies path and body; results files keep it, so that a changed line is noticed."""
        return hashlib.sha256(self.url.encode() + b"\n" + self.body).hexdigest()


def read_lines(path: Path) -> list[BatchLine]:
    """The requests of a file; raises BatchFileError, which names its faulty lines, and OSError."""
    lines: list[BatchLine] = []
    first: dict[str, int] = {}
    problems: list[str] = []
    faulty = 0
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                line = _read_line(text, f"{path}:{number}")
                if number != (other := first.setdefault(line.custom_id, number)):
                    twice = f"the custom_id {quoted(line.custom_id, 80)} appears twice, first in line {other}; each line needs its own"
                    raise BatchFileError(f"{path}:{number}: {twice}")
                lines.append(line)
            except BatchFileError as error:
                faulty += 1
                if len(problems) < MOST_PROBLEMS:
                    problems.append(str(error))
    if faulty > len(problems):
        problems.append(f"and {faulty - len(problems)} more lines")
    if problems:
        count = f"{faulty} faulty lines:\n  " if faulty > 1 else ""
        raise BatchFileError(count + "\n  ".join(problems))
    return lines


def _read_line(text: bytes, location: str) -> BatchLine:
    """Raises BatchFileError."""
    try:
        line = msgspec.json.decode(text, type=_RequestLine)
        body = bytes(line.body)
        msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BatchFileError(f"{location}: {error}; {EXPECTED}") from error
    if line.method != "POST":
        raise BatchFileError(f"{location}: the method is {line.method[:40]!r}; expected POST")
    if not line.custom_id:
        raise BatchFileError(f"{location}: the custom_id is empty; {EXPECTED}")
    return BatchLine(line.custom_id, line.url, body, location)


def result_line(custom_id: str, result: Result, request_sha256: str) -> bytes:
    """One line of a results file with its newline. A JSON body is kept byte for byte, unless it has line breaks."""
    response = None
    if result.status_code:
        response = {
            "status_code": result.status_code,
            "request_id": result.token,
            "body": _body(result.payload),
        }
    error = None
    if result.error_code is not None:
        error = {"code": str(result.error_code), "message": result.error_message}
    document = {
        "id": result.id,
        "custom_id": custom_id,
        "response": response,
        "error": error,
        "request_sha256": request_sha256,
    }
    return msgspec.json.encode(document) + b"\n"


def _body(payload: bytes) -> msgspec.Raw | str:
    if b"\n" in payload or b"\r" in payload:  # would break the line
        try:
            return msgspec.Raw(msgspec.json.encode(msgspec.json.decode(payload)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return payload.decode(errors="replace")
    try:
        msgspec.json.decode(payload, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return payload.decode(errors="replace")
    return msgspec.Raw(payload)


_LINE_PREFIX = b'{"id":"'
"""Begins every line of a results file. A truncated last line must begin so, or the file is another one and not touched."""


class _AnsweredLine(msgspec.Struct):
    custom_id: str
    request_sha256: str = ""


def read_answered(path: Path) -> dict[str, str]:
    """The custom_ids in a results file, each with the `sha256` of its line, empty if the file has none.

    A last line that a crash truncated is removed from the file.
    """
    done: dict[str, str] = {}
    with _writable(path):
        if not path.exists():
            return done
        complete, truncated = 0, b""
        with path.open("rb+") as file:
            for number, text in enumerate(file, start=1):
                if not text.endswith(b"\n"):
                    truncated = text
                    break
                try:
                    line = msgspec.json.decode(text, type=_AnsweredLine)
                    done[line.custom_id] = line.request_sha256
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise BatchFileError(f"{path}:{number}: no line of a results file: {error}") from error
                complete += len(text)
            if truncated and not truncated.startswith(
                _LINE_PREFIX[: len(truncated)] if done else _LINE_PREFIX
            ):
                raise BatchFileError(
                    f"{path}: its end is no line of a results file; expected another file or none"
                )
            file.truncate(complete)
    return done


@contextmanager
def open_results(path: Path) -> Iterator[BinaryIO]:
    """Open the results file for appending; raises BatchFileError if it cannot, ResultsError if writing fails later."""
    with _writable(path):
        file = path.open("ab")
    try:
        with file:
            yield file
    except BrokenPipeError:  # of stdout or stderr, not of the file
        raise
    except OSError as error:
        raise ResultsError(
            f"{path} cannot be written any more: {os_reason(error)}; the answers wait in the queue, make room and give "
            "the same command again"
        ) from error


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BatchFileError(
            f"{path} cannot be written: {os_reason(error)}; expected a results file, or none yet, in a folder that is "
            "there and where this user may write"
        ) from error
