"""Reads a session id from the headers of a request (pure).

Names and order: llm-d-router, plugins agentidentity, sessionid and sessionaffinity.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

DEFAULT_HEADER: Final = "x-session-id"
AGENT_HEADERS: Final = ("x-claude-code-session-id", "x-session-affinity", "session-id", "session_id")
"""The session headers of Claude Code, OpenCode and Codex; the first that a request has counts."""
_MAX_COOKIES: Final = 16 * 1024
"""Characters of a cookie header; a longer one is not read. Browsers send at most 4 KiB for each cookie (RFC 6265 6.1)."""


class SessionId(Protocol):
    """One place where a request may carry its session id."""

    def read(self, headers: Mapping[str, str]) -> str:
        """The id, empty if the request has none; `headers` with lower-case names."""


@dataclass(frozen=True, slots=True)
class HeaderSessionId:
    """The first of these headers that the request has; `names` in lower case."""

    names: tuple[str, ...] = (DEFAULT_HEADER,)

    def read(self, headers: Mapping[str, str]) -> str:
        return next((value for name in self.names if (value := headers.get(name))), "").strip()


@dataclass(frozen=True, slots=True)
class CookieSessionId:
    """A cookie."""

    name: str

    def read(self, headers: Mapping[str, str]) -> str:
        cookies = headers.get("cookie", "")
        if len(cookies) > _MAX_COOKIES:
            return ""
        for pair in cookies.split(";"):
            name, equals, value = pair.strip().partition("=")
            if equals and name == self.name:
                return value.strip()
        return ""
