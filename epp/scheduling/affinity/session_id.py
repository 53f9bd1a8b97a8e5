"""Reads a session id from the headers of a request (pure).

Names and order: llm-d-router, plugins agentidentity, sessionid and sessionaffinity.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from pydantic import Field, model_validator

from epp.plugins.declaration import Role, only_parameters
from epp.plugins.section import HeaderName, Section

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


class SessionIdProducerParameters(Section):
    header_name: HeaderName = ""
    """The header with the id of the session; this or `cookieName`."""
    cookie_name: str = ""
    """The cookie with it."""

    @model_validator(mode="after")
    def _check_one(self) -> "SessionIdProducerParameters":
        if bool(self.header_name) == bool(self.cookie_name.strip()):
            raise ValueError("a session id comes from headerName or from cookieName; give one of them")
        return self

    def session_id(self) -> SessionId:
        header, cookie = self.header_name, self.cookie_name.strip()
        return HeaderSessionId((header,)) if header else CookieSessionId(cookie)


class AgentIdentityParameters(Section):
    additional_session_headers: list[HeaderName] = Field(default_factory=list)
    """Headers that count before the known ones."""

    @property
    def headers(self) -> tuple[str, ...]:
        return (*filter(None, self.additional_session_headers), *AGENT_HEADERS)


SESSION_ID_PRODUCER: Final = only_parameters(
    "session-id-producer", Role.PRODUCER, SessionIdProducerParameters
)
AGENT_IDENTITY: Final = only_parameters("agent-identity", Role.REQUEST_HEADERS, AgentIdentityParameters)
