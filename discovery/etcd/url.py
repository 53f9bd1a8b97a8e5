"""The contents of an `etcd://` URL and of etcdctl's environment: members, prefix, user, TLS, the lease (pure)."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote

from adsum.addresses import authority, check_host, split_authority
from adsum.quoting import quoted
from adsum.units import parse_duration

EXPECTED: Final = (
    "etcd://host:2379[,host:2379][/prefix][?user=NAME][&password_file=PATH][&cacert=PATH][&cert=PATH&key=PATH]"
    "[&tls=true][&ttl=10s]; without a host $ETCDCTL_ENDPOINTS"
)
DEFAULT_PREFIX: Final = "adsum"
RENEWALS: Final = 3
"""A lease is renewed so often in one TTL, as by etcd's own client."""
_PARAMETERS: Final = frozenset(["user", "password_file", "cacert", "cert", "key", "tls", "ttl"])
_MAX_MEMBERS: Final = 32
_MAX_PREFIX: Final = 512
_MIN_TTL, _MAX_TTL = 2, 3600
"""Seconds. etcd itself raises a shorter TTL to one and a half election timeouts, 2 s by default."""


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """Files in PEM form. `cacert` None: the roots that gRPC brings; `cert` and `key` None: no client certificate."""

    cacert: Path | None = None
    cert: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """`members`: `host:port` each. `prefix`: of all keys, with a slash at both ends. `tls` None: plain text.

    `password_file` is read at each authentication. `ttl`: seconds that a registration outlives its worker.
    """

    members: tuple[str, ...]
    prefix: str = f"/{DEFAULT_PREFIX}/"
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: Path | None = None
    tls: EtcdTls | None = None
    ttl: int = 10

    @property
    def shown(self) -> str:
        """The members, for messages."""
        return ", ".join(self.members)


def parse_etcd_url(url: str, environment: Mapping[str, str] = os.environ) -> EtcdSettings:
    """Raises ValueError for a URL that is not of the form `EXPECTED`. What the URL says wins over the environment."""
    rest, _, query = url.partition("://")[2].partition("?")
    hosts, _, path = rest.partition("/")
    if "@" in hosts:  # not quoted: it may hold a password
        raise ValueError(
            "an etcd:// URL must hold no user and no password: give ?user=NAME, and the password in "
            "$ETCDCTL_PASSWORD or a file (&password_file=PATH)"
        )
    try:
        options = _options(query)
        user, password = _user(options, environment)
        given = hosts or environment.get("ETCDCTL_ENDPOINTS", "")
        return EtcdSettings(
            _members(given),
            _prefix(path),
            user,
            password,
            Path(options["password_file"]) if "password_file" in options else None,
            _tls(options, environment, is_https="https://" in given),
            _ttl(options.get("ttl", "10s")),
        )
    except ValueError as error:
        shown = quoted(url.partition("?")[0], 300)  # whatever the query holds
        raise ValueError(f"{shown}: {error}; expected {EXPECTED}") from error


def _options(query: str) -> dict[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=32)
    options = dict(pairs)
    if "password" in options:
        raise ValueError("a password must not stand in a URL: use $ETCDCTL_PASSWORD or password_file=PATH")
    if unknown := sorted(options.keys() - _PARAMETERS):
        raise ValueError(f"unknown parameter {', '.join(unknown)}")
    if len(options) < len(pairs):
        raise ValueError("a parameter appears twice")
    return options


def _member(text: str) -> str:
    """`host:port` of one member; in $ETCDCTL_ENDPOINTS it may have a scheme."""
    if "@" in text:  # not quoted: it may hold a password
        raise ValueError("a member must hold no user and no password: give them in $ETCDCTL_USER")
    for scheme in ("http://", "https://"):
        text = text.strip().removeprefix(scheme)
    host, port = split_authority(text if _has_port(text) else f"{text}:2379")
    return authority(check_host(host), port)


def _has_port(text: str) -> bool:
    return ":" in text.rpartition("]")[2]


def _members(text: str) -> tuple[str, ...]:
    if not text:
        raise ValueError("no host, and $ETCDCTL_ENDPOINTS is not set")
    # bounded: _MAX_MEMBERS
    members = tuple(_member(one) for one in text.split(",", _MAX_MEMBERS))
    if len(members) > _MAX_MEMBERS:
        raise ValueError(f"more than {_MAX_MEMBERS} members")
    if len(set(members)) < len(members):
        raise ValueError("a member appears twice")
    return members


def _prefix(path: str) -> str:
    prefix = unquote(path, errors="strict").strip("/") or DEFAULT_PREFIX
    # bounded: _MAX_PREFIX
    if len(prefix) > _MAX_PREFIX or not prefix.isprintable() or "" in prefix.split("/", _MAX_PREFIX):
        raise ValueError(
            f"the prefix {quoted(prefix)} is not a path of at most {_MAX_PREFIX} printable characters"
        )
    return f"/{prefix}/"


def _user(options: Mapping[str, str], environment: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The user's name, and the password that the environment has."""
    name, has_password, password = environment.get("ETCDCTL_USER", "").partition(":")
    user = options.get("user", name) or None
    given = environment.get("ETCDCTL_PASSWORD") or (password if has_password and user == name else None)
    if user is not None and ":" in user:
        raise ValueError("user= is a name; the password belongs into $ETCDCTL_PASSWORD or password_file=PATH")
    if user is not None and given is None and "password_file" not in options:
        raise ValueError(
            f"the user {quoted(user)} has no password: set $ETCDCTL_PASSWORD, or password_file=PATH"
        )
    if user is None and "password_file" in options:
        raise ValueError("password_file= needs user=NAME")
    return user, given


def _tls(options: Mapping[str, str], environment: Mapping[str, str], *, is_https: bool) -> EtcdTls | None:
    def path(name: str) -> Path | None:
        text = options.get(name, environment.get(f"ETCDCTL_{name.upper()}", ""))
        return Path(text) if text else None

    files = EtcdTls(path("cacert"), path("cert"), path("key"))
    wanted = options.get("tls", "")
    if wanted not in ("", "true", "false"):
        raise ValueError(f"tls={quoted(wanted)}; expected true or false")
    if wanted == "false" and not options.keys().isdisjoint(("cacert", "cert", "key")):
        raise ValueError("tls=false excludes cacert=, cert= and key=")
    if (files.cert is None) != (files.key is None):
        raise ValueError("a client certificate needs both cert= and key=")
    is_on = wanted == "true" or is_https or files != EtcdTls()
    if wanted == "false" or not is_on:
        return None
    if environment.get("ETCDCTL_INSECURE_SKIP_TLS_VERIFY") == "true":
        raise ValueError(
            "$ETCDCTL_INSECURE_SKIP_TLS_VERIFY cannot be followed: gRPC always verifies; name the authority: cacert=PATH"
        )
    return files


def _ttl(text: str) -> int:
    try:
        seconds = parse_duration(text if text[-1:].isalpha() else f"{text}s")
    except ValueError:
        seconds = 0.0
    if not _MIN_TTL <= seconds <= _MAX_TTL or seconds != int(seconds):
        raise ValueError(f"ttl={quoted(text)}; expected whole seconds from {_MIN_TTL} to {_MAX_TTL}")
    return int(seconds)
