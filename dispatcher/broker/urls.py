"""The URL of a broker, by which a configuration names it (pure). Errors quote no URL: it may hold a password."""

import re
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

REDIS_SCHEMES: Final = ("redis", "rediss", "unix")
BROKER_OPTIONS: Final = (
    "db", "username", "password", "client_name",
    "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname",
)  # fmt: skip
"""The options that the query of a Redis URL may set: redis-py takes more, which would change how we use it."""

_NONE: Final = SplitResult("", "", "", "", "")
_CERT_REQS: Final = ("none", "optional", "required")
_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]{0,62})://", re.IGNORECASE)  # RFC 3986, section 3.1


def scheme_of(url: str) -> str:
    """In lower case; empty if there is none."""
    found = _SCHEME.match(url)
    return found[1].lower() if found else ""


def broker_url(value: str) -> str:
    """Check the URL of a broker; raises ValueError."""
    parts = split_url(value)
    known = parts.scheme in ("memory", *REDIS_SCHEMES)
    if not known or "@" in parts.path + parts.query or parts.fragment:
        raise ValueError(
            "expected redis://[USER:PASSWORD@]HOST:PORT/DB, rediss://..., unix:///PATH, or memory:// to try things "
            "out; a password is percent-encoded where it has characters like / @ : #"
        )
    for name, given in parse_qsl(parts.query, keep_blank_values=True):
        if name not in BROKER_OPTIONS:
            raise ValueError(f"{name!r} cannot be set in the URL; there are {', '.join(BROKER_OPTIONS)}")
        if name == "db" and not (given.isascii() and given.isdigit()):
            raise ValueError("db in the URL is no number; expected 0 or more")
        if name == "ssl_cert_reqs" and given not in _CERT_REQS:
            raise ValueError(f"ssl_cert_reqs in the URL is unknown; expected {', '.join(_CERT_REQS)}")
    return value


def broker_files(value: str) -> list[str]:
    """The certificate and key files that a valid broker URL names."""
    return [given for name, given in parse_qsl(urlsplit(value).query) if name in _FILES]


def without_credentials(url: str) -> str:
    """The URL without user and password, for logs and errors."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def split_url(value: str) -> SplitResult:
    """The parts of the URL; all empty if it is malformed or its port is 0."""
    try:
        parts = urlsplit(value)
        return parts if parts.port != 0 else _NONE
    except ValueError:  # not passed on: its text may quote a password
        return _NONE
