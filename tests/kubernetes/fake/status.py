"""`Status` objects: the errors of an API server, as answers or as ERROR events of a watch."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.kubernetes.fake.rv_log import Object


class StatusError(Exception):
    """Answered as HTTP `code` with a Status body, and a Retry-After header where `retry_after` is given."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        retry_after: int | None = None,
        causes: Sequence[dict[str, str]] = (),
        continue_token: str | None = None,
        about: Mapping[str, str] | None = None,
    ) -> None:
        """`about`: what the details name, by group, kind and name."""
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after
        details: dict[str, Any] = dict(about or {})
        if causes:
            details["causes"] = list(causes)
        if retry_after is not None:
            details["retryAfterSeconds"] = retry_after
        self.status: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {"continue": continue_token} if continue_token else {},
            "status": "Failure",
            "message": message,
            **({"reason": reason} if reason else {}),
            **({"details": details} if details or about is not None else {}),
            "code": code,
        }

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(self.retry_after)} if self.retry_after is not None else {}

    def event(self) -> bytes:
        """The ERROR line of a watch."""
        return json_line({"type": "ERROR", "object": self.status})


def expired(message: str, continue_token: str | None = None) -> StatusError:
    return StatusError(410, "Expired", message, continue_token=continue_token)


def too_large(asked: int, current: int) -> StatusError:
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    return StatusError(504, "Timeout", message, retry_after=1, causes=[cause])


def invalid(kind: str, name: str, problems: Sequence[tuple[str, str]]) -> StatusError:
    """422 with one cause for each (field, what is wrong); `kind` with its group after a dot."""
    causes = [{"reason": _cause(text), "message": text, "field": field} for field, text in problems]
    text = ", ".join(f"{field}: {text}" for field, text in problems)
    if len(problems) > 1:
        text = f"[{text}]"
    short, _, group = kind.partition(".")
    named = {"name": name} if name else {}
    about = {**named, "group": group, "kind": short}
    said = f'{kind} "{name}" is invalid: {text}'
    return StatusError(422, "Invalid", said, causes=causes, about=about)


def _cause(text: str) -> str:
    """The kinds of field errors, by how their texts begin."""
    words = {"Invalid value": "Invalid", "Unsupported value": "NotSupported", "Required value": "Required"}
    return f"FieldValue{words.get(text.partition(':')[0], text.partition(':')[0])}"


def json_line(document: Object) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
