"""Listening sockets, and the file descriptors of a process: its limit, and one in reserve for when there are none left."""

import contextlib
import errno
import os
import resource
import socket
from typing import Final

from adsum.addresses import authority
from adsum.errors import os_reason


class ListenError(OSError):
    """A port is not available; the text names it."""


def listening_socket(host: str, port: int) -> socket.socket:
    """Listen on one address; raises OSError. "::" accepts IPv4 too, and means IPv4 alone on a machine without IPv6."""
    if host == "::":
        try:
            if socket.has_dualstack_ipv6():
                return socket.create_server(
                    (host, port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True
                )
        except OSError as error:
            if error.errno not in _NO_IPV6:
                raise
        host = "0.0.0.0"  # noqa: S104  # what was asked for
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=1024)


_NO_IPV6: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def listening_sockets(host: str, port: int, setting: str = "--port") -> list[socket.socket]:
    """One socket for each address of a host, which may be a name. "::" accepts IPv4 too.

    Raises ListenError, which names the `setting` that chose the port.
    """
    try:
        return [listening_socket(host, port)] if host == "::" else _listen_on_all_of(host, port)
    except (OSError, UnicodeError) as error:  # a name that is none is a UnicodeError
        reason = os_reason(error) if isinstance(error, OSError) else "no name of a host"
        expected = f"expected an address of this machine and a free port ({setting})"
        raise ListenError(f"cannot listen on {authority(host, port)}: {reason}; {expected}") from error


def _listen_on_all_of(host: str, port: int) -> list[socket.socket]:
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


_MAX_DESCRIPTORS: Final = 1_048_576
"""More than any program here can use; some systems have a hard limit of 10⁹."""
_DESCRIPTORS_PER_CONNECTION: Final = 4
"""A port uses at most one in four descriptors: the others are for other ports, workers and files."""


def raise_descriptor_limit() -> None:
    """Raise the soft limit to the hard limit. It is 1,024 by default only because select(2) fails beyond that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # a sandbox may forbid it; the soft limit then stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connection_limit(wanted: int) -> int:
    """`wanted`, or a quarter of the descriptors that this process may have, if that is less."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft // _DESCRIPTORS_PER_CONNECTION))
    )


class SpareDescriptor:
    """A descriptor in reserve, released to accept and close a connection when there are no others.

    Otherwise the connection would stay in the kernel's queue and the listening socket would stay readable: a busy loop
    (libev's manual, "The special problem of accept()ing when you can't").
    """

    def __init__(self) -> None:
        self._held: int | None = os.open(os.devnull, os.O_RDONLY)

    def reject_next(self, listening: socket.socket) -> bool:
        """Accept and close the first connection in the queue; False if even that fails."""
        self.close()
        try:
            accepted, _ = listening.accept()
        except OSError:
            return False
        else:
            accepted.close()
            return True
        finally:
            with contextlib.suppress(OSError):
                self._held = os.open(os.devnull, os.O_RDONLY)

    def close(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None
