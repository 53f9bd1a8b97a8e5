"""Reads the subset hint: the endpoints to which the data plane restricts a request. Pure."""

import ipaddress
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from epp.request.rejection import UnreadableError


@dataclass(frozen=True, slots=True)
class Subset:
    """The destinations among which to pick; an empty subset allows none (endpoint picker protocol 1.0.0).

    `members`: (address, port), the address as `ipaddress` writes it; port None: any port.
    """

    members: frozenset[tuple[str, int | None]] = frozenset()

    @classmethod
    def of(cls, destinations: Iterable[str]) -> "Subset":
        """Parse `ip`, `ip:port`, `[ip6]:port`; one item may have several, separated by commas. Raises UnreadableError.

        A gateway sends the same list with every request: equal ones are one object.
        """
        return _parse(tuple(destinations))

    def allows(self, address: str, port: int) -> bool:
        host = _canonical(address)
        return (host, port) in self.members or (host, None) in self.members


@lru_cache(maxsize=4)
# bounded: 4 lists of at most MAX_DESTINATIONS destinations, each in bounded headers or metadata
def _parse(destinations: tuple[str, ...]) -> Subset:
    members: set[tuple[str, int | None]] = set()
    left = MAX_DESTINATIONS
    for item in destinations:
        left -= item.count(",") + 1
        if left < 0:
            raise too_many_destinations()
        # bounded: its separators are counted before: MAX_DESTINATIONS
        for word in item.split(","):
            if found := _IPV4.fullmatch(word):
                members.add((found[1], int(found[2]) if found[2] else None))
            elif word := word.strip():
                members.add(_destination(word, _canonical if len(members) < _MAX_CANONICAL else _as_written))
    return Subset(frozenset(members))


MAX_DESTINATIONS: Final = 16_384
_MAX_CANONICAL: Final = 2048
"""Destinations that are parsed as IP addresses, unless plain IPv4; more count as written. To parse IPv6 takes 20 µs."""
_MAX_HOST: Final = 255
"""Characters of a host name (RFC 1035 section 2.3.4); a longer one matches nothing."""
_MAX_ADDRESS: Final = 64
"""Characters of an IP address in any notation."""
_OCTET: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4: Final = re.compile(rf"({_OCTET}(?:\.{_OCTET}){{3}})(?::([0-9]{{1,5}}))?")
"""An IPv4 address as `ipaddress` writes it, found seven times faster than by `ipaddress`."""


def too_many_destinations() -> UnreadableError:
    return UnreadableError(f"a list of more than {MAX_DESTINATIONS} destinations")


def _destination(text: str, host_of: Callable[[str], str]) -> tuple[str, int | None]:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
    elif text.count(":") == 1:
        host, colon, port = text.partition(":")
        rest = colon + port
    else:
        host, rest = text, ""
    return host_of(host), _port(rest) if rest else None


def _port(rest: str) -> int:
    """The port after a host; -1, which matches nothing, if it is not a port."""
    port = rest.removeprefix(":")
    return int(port) if port != rest and re.fullmatch("[0-9]{1,5}", port) else -1


def _canonical(address: str) -> str:
    if len(address) <= _MAX_ADDRESS:
        return _canonical_cached(address)
    return _as_written(address)


def _as_written(host: str) -> str:
    return host.lower() if len(host) <= _MAX_HOST else ""


@lru_cache(maxsize=8192)
# bounded: 8,192 addresses of at most _MAX_ADDRESS characters
def _canonical_cached(address: str) -> str:
    """For short addresses only: the data plane's text is the key of the cache."""
    if ":" not in address:
        bare = address.strip("[]")
        return bare if _IPV4.fullmatch(bare) else address.lower()
    try:
        ip = ipaddress.ip_address(address.strip("[]"))
    except ValueError:
        return address.lower()
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(mapped or ip)
