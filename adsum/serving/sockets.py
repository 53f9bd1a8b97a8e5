"""Opens listening sockets, also for names with several addresses, and sets TCP options of accepted ones."""

import contextlib
import socket


class ListenError(OSError):
    """A port is not available; the text names it."""


def listening_socket(host: str, port: int) -> socket.socket:
    """Listen on one address; raises OSError. "::" accepts IPv4 too, and means IPv4 alone on a machine without IPv6."""
    if host == "::" and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"  # noqa: S104  # what was asked for
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=1024, dualstack_ipv6=host == "::")


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """One socket for each address of a host, which may be a name. Raises OSError, UnicodeError. "::" accepts IPv4 too."""
    if host == "::":
        return [listening_socket(host, port)]
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = dict.fromkeys((family, address[0]) for family, _, _, _, address in found)
    with contextlib.ExitStack() as opened:
        listening = []
        for family, address in addresses:
            one = socket.create_server((str(address), port), family=family, backlog=1024)
            listening.append(opened.enter_context(one))
            port = port or one.getsockname()[1]
        opened.pop_all()
    return listening


def set_tcp_options(connection: socket.socket) -> None:
    """Set TCP_NODELAY, and keepalive probes that detect a peer whose machine is gone within about a minute."""
    # asyncio sets TCP_NODELAY only on sockets whose protocol number is IPPROTO_TCP; accepted ones may have 0
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
