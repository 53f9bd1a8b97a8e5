"""Which URLs can be meant (pure); the texts of errors quote none, since one may hold a password."""

from urllib.parse import SplitResult, parse_qsl, urlsplit

BROKER_OPTIONS = (
    "db", "username", "password", "client_name",
    "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname",
)  # fmt: skip
"""What the query of a Redis URL may set."""


def http_url(value: str) -> str:
    """Of a target, without a slash at its end; raises ValueError."""
    parts = urlsplit(value)
    plain = value.isascii() and value.isprintable() and " " not in value and _port_is_sound(parts)
    known = parts.scheme in ("http", "https") and parts.hostname
    if not plain or not known or parts.query or parts.fragment:
        raise ValueError("expected http://HOST[:PORT][/PATH] or https://...")
    if parts.username or parts.password:
        raise ValueError("a user and a password belong into the header authorization")
    return value.rstrip("/")


def broker_url(value: str) -> str:
    """The same; raises ValueError where there is no such broker."""
    parts = urlsplit(value)
    known = parts.scheme in ("redis", "rediss", "unix", "memory")
    if not known or not _port_is_sound(parts) or "@" in parts.path + parts.query or parts.fragment:
        raise ValueError(
            "expected redis://[USER:PASSWORD@]HOST:PORT/DB, rediss://..., unix:///PATH, or memory:// to try things "
            "out; a password is percent-encoded where it has characters like / @ : #"
        )
    for name, _ in parse_qsl(parts.query, keep_blank_values=True):
        if name not in BROKER_OPTIONS:
            raise ValueError(f"{name!r} cannot be set in the URL; there are {', '.join(BROKER_OPTIONS)}")
    return value


def _port_is_sound(parts: SplitResult) -> bool:
    """None at all is sound, too."""
    try:
        return parts.port != 0
    except ValueError:
        return False
