"""The sockets of our servers."""

import contextlib
import socket


class ListenError(OSError):
    """A port that cannot be listened on; the message names it."""


def listening_socket(host: str, port: int) -> socket.socket:
    """That listens there; raises OSError. "::" takes IPv4 too; where there is no IPv6 at all, IPv4 alone."""
    if host == "::" and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"  # noqa: S104  # what was asked for
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=1024, dualstack_ipv6=host == "::")


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """One for each address of a host that may be a name; raises OSError and UnicodeError. "::" is as above."""
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


def tune(connection: socket.socket) -> None:
    """Answers leave at once. A peer whose machine is gone says nothing: the kernel asks, so that its streams end within
    about a minute."""
    connection.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
    )  # asyncio's own needs a socket with a protocol
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
