"""The methods of etcd's gRPC API that we call."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from discovery.etcd.messages.etcd_pb2 import (
    AuthenticateRequest,
    AuthenticateResponse,
    LeaseGrantRequest,
    LeaseGrantResponse,
    LeaseKeepAliveRequest,
    LeaseKeepAliveResponse,
    LeaseRevokeRequest,
    LeaseRevokeResponse,
    LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse,
    RangeRequest,
    RangeResponse,
    TxnRequest,
    TxnResponse,
    WatchRequest,
    WatchResponse,
)

Request = TypeVar("Request", bound=Message)
Answer = TypeVar("Answer", bound=Message)


@dataclass(frozen=True, slots=True)
class EtcdMethod(Generic[Request, Answer]):
    """`is_stream`: it takes a stream of requests and gives a stream of answers."""

    path: str
    request: type[Request]
    decode: Callable[[bytes], Answer]
    is_stream: bool = False


AUTHENTICATE: Final = EtcdMethod(
    "/etcdserverpb.Auth/Authenticate", AuthenticateRequest, AuthenticateResponse.FromString
)
RANGE: Final = EtcdMethod("/etcdserverpb.KV/Range", RangeRequest, RangeResponse.FromString)
TXN: Final = EtcdMethod("/etcdserverpb.KV/Txn", TxnRequest, TxnResponse.FromString)
WATCH: Final = EtcdMethod("/etcdserverpb.Watch/Watch", WatchRequest, WatchResponse.FromString, is_stream=True)
LEASE_GRANT: Final = EtcdMethod(
    "/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest, LeaseGrantResponse.FromString
)
LEASE_REVOKE: Final = EtcdMethod(
    "/etcdserverpb.Lease/LeaseRevoke", LeaseRevokeRequest, LeaseRevokeResponse.FromString
)
LEASE_KEEP_ALIVE: Final = EtcdMethod(
    "/etcdserverpb.Lease/LeaseKeepAlive",
    LeaseKeepAliveRequest,
    LeaseKeepAliveResponse.FromString,
    is_stream=True,
)
LEASE_TIME_TO_LIVE: Final = EtcdMethod(
    "/etcdserverpb.Lease/LeaseTimeToLive", LeaseTimeToLiveRequest, LeaseTimeToLiveResponse.FromString
)
