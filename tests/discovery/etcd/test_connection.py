"""One member of an etcd that does not answer."""

import socket

import pytest

from discovery.etcd.connection import LEASE_KEEP_ALIVE, EtcdConnection
from discovery.etcd.errors import EtcdUnavailableError
from discovery.etcd.messages.etcd_pb2 import LeaseKeepAliveRequest


async def test_a_member_that_only_accepts_connections_is_silent() -> None:
    """As a frozen one: gRPC itself waits 20 s for its first frame, longer than a lease lasts."""
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        connection = EtcdConnection(f"127.0.0.1:{frozen.getsockname()[1]}", None)
        try:
            with pytest.raises(EtcdUnavailableError, match="no answer within 0.5 s"):
                await connection.ask(LEASE_KEEP_ALIVE, LeaseKeepAliveRequest(ID=1), (), 0.5)
        finally:
            await connection.abort()
