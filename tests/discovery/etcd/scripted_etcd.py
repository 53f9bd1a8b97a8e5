"""A server that answers as a test tells it, for what a real etcd cannot be made to do at a chosen moment."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc import aio

from discovery.etcd.messages.etcd_pb2 import (
    AuthenticateRequest,
    AuthenticateResponse,
    Event,
    KeyValue,
    RangeRequest,
    RangeResponse,
    ResponseHeader,
    WatchRequest,
    WatchResponse,
)
from discovery.instance import MetadataReader
from discovery.metadata.client import MetadataClient
from discovery.source import Snapshot

Context = aio.ServicerContext
Metadata = dict[str, Any]


@dataclass
class RefusedError(Exception):
    """What a handler raises to answer with a gRPC status."""

    code: grpc.StatusCode
    text: str


@dataclass
class ScriptedEtcd:
    """`on_range` and `on_watch` are the test's; each gets the metadata of the call. `port` is set by `serving`."""

    on_range: Callable[[RangeRequest, Metadata], RangeResponse | Awaitable[RangeResponse]]
    on_watch: Callable[[AsyncIterator[WatchRequest], Metadata], AsyncIterator[WatchResponse]]
    port: int = 0
    passwords: list[str] = field(default_factory=list)

    async def authenticate(self, request: AuthenticateRequest, _: Context[Any, Any]) -> AuthenticateResponse:
        """Token 1, 2, 3, ..."""
        self.passwords.append(request.password)
        return AuthenticateResponse(token=f"token-{len(self.passwords)}")

    async def range(self, request: RangeRequest, context: Context[Any, Any]) -> RangeResponse:
        try:
            answer = self.on_range(request, _metadata(context))
            return await answer if inspect.isawaitable(answer) else answer
        except RefusedError as refusal:
            return await context.abort(refusal.code, refusal.text)

    async def watch(
        self, requests: AsyncIterator[WatchRequest], context: Context[Any, Any]
    ) -> AsyncIterator[WatchResponse]:
        try:
            async for answer in self.on_watch(requests, _metadata(context)):
                yield answer
        except RefusedError as refusal:
            await context.abort(refusal.code, refusal.text)


@asynccontextmanager
async def serving(etcd: ScriptedEtcd) -> AsyncIterator[ScriptedEtcd]:
    server = aio.server(options=[("grpc.max_send_message_length", -1)])
    for service, method, handler in (
        ("Auth", "Authenticate", grpc.unary_unary_rpc_method_handler),
        ("KV", "Range", grpc.unary_unary_rpc_method_handler),
        ("Watch", "Watch", grpc.stream_stream_rpc_method_handler),
    ):
        kind: Any = {"Auth": AuthenticateRequest, "KV": RangeRequest, "Watch": WatchRequest}[service]
        made = handler(
            getattr(etcd, method.lower()), kind.FromString, lambda message: message.SerializeToString()
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(f"etcdserverpb.{service}", {method: made}),)
        )
    etcd.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield etcd
    finally:
        await server.stop(0)


class Reported:
    """A `Report` that remembers: the ids of the instances of each snapshot, and each reason of a degradation."""

    def __init__(self) -> None:
        self.reader: MetadataReader = MetadataClient()
        self.sets: list[set[str]] = []
        self.rejected: dict[str, str | None] = {}
        self.reasons: list[str] = []

    def __call__(self, snapshot: Snapshot) -> None:
        self.sets.append(set(snapshot.instances))
        self.rejected = {candidate.id: candidate.reason for candidate in snapshot.others}

    def degraded(self, reason: str) -> None:
        self.reasons.append(reason)


def record(instance_id: str, status: str = "ready", **more: str) -> KeyValue:
    """Under the prefix `/adsum/`, of dynamo/decode."""
    value = (
        f'{{"version":1,"instance_id":"{instance_id}","namespace":"dynamo","component":"decode",'
        f'"incarnation":"{more.get("incarnation", "one")}","address":"127.0.0.1","port":80,"status":"{status}"}}'
    )
    return KeyValue(key=f"/adsum/dynamo/decode/{instance_id}".encode(), value=value.encode(), lease=1)


def found(revision: int, *kvs: KeyValue, more: bool = False) -> RangeResponse:
    return RangeResponse(header=ResponseHeader(revision=revision), kvs=kvs, more=more)


def created(revision: int) -> WatchResponse:
    return WatchResponse(header=ResponseHeader(revision=revision), created=True)


def told(
    revision: int, put: Iterable[KeyValue] = (), deleted: Iterable[str] = (), *, fragment: bool = False
) -> WatchResponse:
    gone = [KeyValue(key=f"/adsum/dynamo/decode/{name}".encode()) for name in deleted]
    return WatchResponse(
        header=ResponseHeader(revision=revision),
        events=[
            *(Event(type=Event.PUT, kv=kv) for kv in put),
            *(Event(type=Event.DELETE, kv=kv) for kv in gone),
        ],
        fragment=fragment,
    )


def _metadata(context: Context[Any, Any]) -> Metadata:
    return dict(context.invocation_metadata() or ())
