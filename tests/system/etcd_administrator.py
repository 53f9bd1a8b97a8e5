"""What an operator does with etcd by etcdctl: keys, leases, compaction, users."""

from collections.abc import Mapping
from typing import Final

from grpc import aio

from discovery.etcd.connection import LEASE_REVOKE, TXN
from discovery.etcd.messages.etcd_pb2 import LeaseRevokeRequest, PutRequest, RequestOp, TxnRequest
from discovery.etcd.url import EtcdSettings
from tests.system.etcd_process import EtcdProcess, an_etcd_client

_READWRITE: Final = 2


def fields(*values: bytes | str | int) -> bytes:
    """A protobuf message with these fields, numbered from 1; all of them short (protobuf's encoding)."""
    message = b""
    for number, value in enumerate(values, 1):
        if isinstance(value, int):
            message += bytes([number << 3]) + _varint(value)
        else:
            raw = value.encode() if isinstance(value, str) else value
            message += bytes([number << 3 | 2]) + _varint(len(raw)) + raw
    return message


class EtcdAdministrator:
    """Without TLS and, until `enable_users`, without a user."""

    def __init__(self, etcd: EtcdProcess) -> None:
        self._etcd = etcd

    async def put(self, key: str, value: bytes) -> None:
        await self.put_all({key: value})

    async def put_all(self, values: Mapping[str, bytes]) -> None:
        async with an_etcd_client(EtcdSettings((self._etcd.member,))) as client:
            for key, value in values.items():
                put = PutRequest(key=key.encode(), value=value)
                await client.call(TXN, TxnRequest(success=[RequestOp(request_put=put)]))

    async def delete(self, key: str) -> None:
        await self._raw("KV/DeleteRange", fields(key))

    async def compact(self) -> None:
        """To the present revision."""
        async with an_etcd_client(EtcdSettings((self._etcd.member,))) as client:
            revision = (await client.call(TXN, TxnRequest())).header.revision
        await self._raw("KV/Compact", fields(revision, 1))

    async def revoke(self, lease: int) -> None:
        async with an_etcd_client(EtcdSettings((self._etcd.member,))) as client:
            await client.call(LEASE_REVOKE, LeaseRevokeRequest(ID=lease))

    async def enable_users(self, user: str, password: str, prefix: str) -> None:
        """`user` may read and write below `prefix`, which ends in a slash; root may do everything."""
        end = prefix[:-1] + "0"
        await self._raw("Auth/UserAdd", fields("root", "rootpw"))
        await self._raw("Auth/RoleAdd", fields("root"))
        await self._raw("Auth/UserGrantRole", fields("root", "root"))
        await self._raw("Auth/UserAdd", fields(user, password))
        await self._raw("Auth/RoleAdd", fields("role"))
        permission = fields(_READWRITE, prefix, end)
        await self._raw("Auth/RoleGrantPermission", fields("role", permission))
        await self._raw("Auth/UserGrantRole", fields(user, "role"))
        await self._raw("Auth/AuthEnable", b"")

    async def _raw(self, method: str, request: bytes) -> None:
        async with aio.insecure_channel(self._etcd.member) as channel:
            await channel.unary_unary(f"/etcdserverpb.{method}")(request, timeout=90)


def _varint(number: int) -> bytes:
    encoded = b""
    while number >= 0x80:
        encoded += bytes([number & 0x7F | 0x80])
        number >>= 7
    return encoded + bytes([number])
