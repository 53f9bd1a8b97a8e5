"""`Status` objects: how an API server says no, as an answer or as an ERROR event of a watch."""

import json
from collections.abc import Sequence
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
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after
        details: dict[str, Any] = {}
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
            "reason": reason,
            **({"details": details} if details else {}),
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
    message = f"Too large resource version: {asked}, current: {current}"
    return StatusError(504, "Timeout", message, retry_after=1, causes=[cause])


def invalid(kind: str, name: str, problems: Sequence[tuple[str, str]]) -> StatusError:
    """422 with one cause for each (field, what is wrong)."""
    causes = [{"reason": "FieldValueInvalid", "message": text, "field": field} for field, text in problems]
    text = ", ".join(f"{field}: {text}" for field, text in problems)
    return StatusError(422, "Invalid", f'{kind} "{name}" is invalid: {text}', causes=causes)


def json_line(document: Object) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
