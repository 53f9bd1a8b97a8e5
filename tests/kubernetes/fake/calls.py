"""Requests and answers of the fake API server, the same for HTTP and for the transport in memory."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.kubernetes.fake.kinds import resource_at

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
