"""Asks other pickers what a worker's cache holds, and answers them: a call of its own beside the stream of news.

A picker asks that has missed a worker's batches for good, as one that has just started. A picker of an earlier version does not
know the call.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
import msgspec
from grpc import aio

from epp.endpoints.endpoint import Key
from epp.kv_events.feed import KvEventFeed
from epp.peers.subscriber import PeerFaultError
from epp.request.control_headers import MOST_TEXT
from epp.scheduling.kv_events.snapshot import CacheSnapshot, SnapshotError, SnapshotReader, written

METHOD: Final = "Cache"
_TIMEOUT: Final = 30.0
"""Seconds for one answer: 64 MB of the largest index within one machine's network."""
_MOST_REQUEST: Final = 4096
_SLOWLY: Final = 0.02
"""Seconds between two parts of 256 KiB: news goes first."""

log = logging.getLogger(__name__)


class _Wanted(msgspec.Struct, array_like=True):
    id: str
    incarnation: str
    events: str


class PeerCaches:
    """`channel`: to a peer at that address. `addresses`: of all peers. `path`: of the service."""

    def __init__(
        self,
        feed: KvEventFeed,
        channel: Callable[[str], aio.Channel],
        addresses: Callable[[], Sequence[str]],
        service: str,
    ) -> None:
        self._feed = feed
        self._channel = channel
        self._addresses = addresses
        self._path = f"/{service}/{METHOD}"
        self._asking = asyncio.Semaphore(1)
        self._answering = asyncio.Semaphore(1)

    @property
    def handler(self) -> "grpc.RpcMethodHandler[bytes, bytes]":
        return grpc.unary_stream_rpc_method_handler(self._answer)

    async def ask(self, key: Key, events: str) -> CacheSnapshot | None:
        """One after the other: so one answer is in memory at most."""
        request = msgspec.msgpack.encode(_Wanted(*key, events))
        async with self._asking:
            for address in self._addresses():
                try:
                    async with asyncio.timeout(_TIMEOUT), self._channel(address) as channel:
                        found = await self._read(channel, request)
                except (aio.AioRpcError, aio.BaseError, asyncio.InvalidStateError, TimeoutError) as error:
                    log.debug("peer %s gave no cache: %s", address, type(error).__name__)
                    continue
                except SnapshotError as error:
                    log.warning("the peer at %s sent what is no cache: %s", address, error)
                    continue
                if found is not None:
                    log.info("of %s the blocks are known from the peer at %s", key[0], address)
                    return found
        return None

    async def _read(self, channel: Any, request: bytes) -> CacheSnapshot | None:
        call = channel.unary_stream(self._path)(request)
        reader: SnapshotReader | None = None
        try:
            async for part in call:
                if reader is None:
                    reader = SnapshotReader(part, self._feed.most_blocks)
                else:
                    reader.add(part)
            return None if reader is None else reader.snapshot()
        finally:
            call.cancel()

    async def _answer(self, request: bytes, context: "aio.ServicerContext[bytes, bytes]") -> None:
        """Writes nothing, if not all is known here."""
        try:
            wanted = _read_wanted(request)
        except PeerFaultError as fault:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(fault))
        try:
            # a peer that does not read would keep the others from being answered
            async with asyncio.timeout(_TIMEOUT), self._answering:
                found = await self._feed.snapshot((wanted.id, wanted.incarnation), wanted.events)
                for part in () if found is None else written(found):
                    await context.write(part)
                    await asyncio.sleep(_SLOWLY)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"it took more than {_TIMEOUT:g} s")


def _read_wanted(request: bytes) -> _Wanted:
    if len(request) > _MOST_REQUEST:
        raise PeerFaultError(f"{len(request)} bytes; expected at most {_MOST_REQUEST}")
    try:
        wanted = msgspec.msgpack.decode(request, type=_Wanted)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PeerFaultError(f"no name of a publisher: {str(error)[:200]}") from error
    if max(len(wanted.id), len(wanted.incarnation)) > 2 * MOST_TEXT:
        raise PeerFaultError(f"a name of more than {2 * MOST_TEXT} characters")
    return wanted
