"""Requests and answers of the fake API server, the same for HTTP and for the transport in memory; `Status` objects."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.kubernetes.fake.kinds import resource_at
from tests.kubernetes.fake.rv_log import Object

_WRITES = {"POST": "create", "PUT": "update", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class Call:
    """One request; `at` on the loop's clock."""

    method: str
    path: str
    params: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""
    at: float = 0.0

    @property
    def verb(self) -> str:
        """As RBAC names it."""
        if self.method != "GET":
            return _WRITES.get(self.method, self.method.lower())
        if "watch" in self.params:
            return "watch"
        return "get" if self._parts[3] else "list"

    @property
    def resource(self) -> str:
        return self._parts[2]

    @property
    def namespace(self) -> str:
        return self._parts[1]

    @property
    def name(self) -> str:
        return self._parts[3]

    @property
    def _parts(self) -> tuple[str, str, str, str]:
        """group/version, namespace, resource, name or ""; all "" for a path that is none of ours. Nodes have no namespace."""
        if self.path.startswith("/api/v1/nodes"):
            return "/api/v1", "", "nodes", self.path.removeprefix("/api/v1/nodes").lstrip("/")
        group, found, rest = self.path.partition("/namespaces/")
        parts = rest.split("/")
        if not found or len(parts) not in (2, 3) or not (resource := resource_at(group, parts[1])):
            return "", "", "", ""
        return group, parts[0], resource, parts[2] if len(parts) == 3 else ""


@dataclass(slots=True)
class Answer:
    status: int
    body: AsyncGenerator[bytes, None]
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})


Handler: TypeAlias = Callable[[Call], Awaitable[Answer]]
"""A server, or a fault in front of it."""


class CutError(Exception):
    """Raised by an answer: the connection breaks here, with RST if `reset`, else with a bare FIN."""

    def __init__(self, *, reset: bool = True) -> None:
        super().__init__("cut")
        self.reset = reset


async def once(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body


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
