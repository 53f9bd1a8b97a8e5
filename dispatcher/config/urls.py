"""Checks the URLs of targets and brokers (pure). Errors quote no URL: it may hold a password."""

from urllib.parse import SplitResult, parse_qsl, urlsplit

BROKER_OPTIONS = (
    "db", "username", "password", "client_name",
    "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname",
)  # fmt: skip
"""The options that the query of a Redis URL may set: redis-py takes more, which would change how we use it."""


def http_url(value: str) -> str:
    """Check the URL of a target; returns it without a slash at its end. Raises ValueError."""
    parts = _split(value)
    plain = value.isascii() and value.isprintable() and " " not in value
    known = parts.scheme in ("http", "https") and parts.hostname
    if not plain or not known or parts.query or parts.fragment:
        raise ValueError("expected http://HOST[:PORT][/PATH] or https://...")
    if parts.username or parts.password:
        raise ValueError("a user and a password belong into the header authorization")
    return value.rstrip("/")


def broker_url(value: str) -> str:
    """Check the URL of a broker; raises ValueError."""
    parts = _split(value)
    known = parts.scheme in ("redis", "rediss", "unix", "memory")
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


_NONE = SplitResult("", "", "", "", "")
_CERT_REQS = ("none", "optional", "required")
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


def _split(value: str) -> SplitResult:
    """The parts of the URL; all empty if it is malformed or its port is 0."""
    try:
        parts = urlsplit(value)
        return parts if parts.port != 0 else _NONE
    except ValueError:  # not passed on: its text may quote a password
        return _NONE
