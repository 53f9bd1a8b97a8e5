"""Keeps one stream to each peer: those that this picker opens, and those that peers open."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
from grpc import aio

from adsum.addresses import authority, is_loopback
from adsum.logs import RateLimitedLog
from adsum.serving.sockets import ListenError
from adsum.tasks import BackgroundTasks, ResourceOwner, background
from epp.config.settings import Settings
from epp.config.sibling_processes import Siblings
from epp.peers.credentials import PeerCredentials
from epp.peers.finding import PeerFinder
from epp.peers.link import (
    BROKEN,
    CHANNEL_OPTIONS,
    GREETING,
    METHOD,
    NO_ANSWER,
    SERVER_OPTIONS,
    SERVICE,
    Duplex,
    LocalStream,
    PeerLink,
    SilentPeerError,
    why_lost,
)
from epp.peers.subscriber import PeerFaultError
from epp.wire.grpc_aio import server_credentials

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
"""Seconds between two attempts to reach a peer."""
_FAULT_PAUSE: Final = 10.0
"""Seconds until a peer that sent what makes no sense is asked again."""
_START: Final = 5.0
"""Seconds that the start waits, at most, for what the others tell: more than two attempts to reach one that does not answer."""
_MOST_STREAMS: Final = 256
_GOODBYE: Final = 0.1
_UNNAMED: Final = "unix:"
"""The address of another process of this picker: its socket has no name, and its first message says which it is."""

log = logging.getLogger(__name__)


class PeerConnections(ResourceOwner):
    """An async context manager; once entered, peers that are there have told what they send, or did not answer.

    `name`: of this picker. `new_link`: for an address, and whether this picker dials it. Raises ValueError
    for a URL of peers. Set `credentials` before entering, which raises ListenError.
    """

    credentials: PeerCredentials

    def __init__(
        self,
        settings: Settings,
        siblings: Siblings | None,
        name: str,
        clock: Callable[[], float],
        new_link: Callable[[str, bool], PeerLink],
    ) -> None:
        self._settings = settings
        self._siblings = siblings
        self._processes = {} if siblings is None else siblings.others
        self.name = name
        self._new_link = new_link
        url = settings.peers
        self._finder = None if url is None else PeerFinder(url, settings, clock)
        self._dialing = BackgroundTasks()
        self._limited_log = RateLimitedLog(log, clock, most=20)
        self.handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            METHOD: grpc.stream_stream_rpc_method_handler(self._accept)
        }
        """By method of the service, what answers peers that ask."""
        # bounded: by the peers that prove who they are
        self.links: dict[str, PeerLink] = {}
        # bounded: by the addresses that the source of peers names
        self._dialed: dict[str, str] = {}
        """By address, why it is not connected; empty: it is, or it is this picker."""
        # bounded: by those addresses
        self._names: dict[str, str] = {}
        """By address, who answered there: it may be connected by a stream that it opened from another port."""
        self.bytes_in = self.bytes_out = self.faults = 0
        """The totals of streams that ended."""
        self._ends = False
        self._gone = asyncio.Event()
        """Set, and replaced, when a link ended."""

    @property
    def address(self) -> str:
        """The address that peers connect to; a process of a group has its name there."""
        if self._settings.peers is None and self._siblings is not None:
            return self._siblings.name
        return authority(self._host, self._port)

    @property
    def dialed(self) -> list[str]:
        """The addresses of all peers that this picker knows of."""
        return [*self._dialed]

    def describe(self) -> dict[str, Any]:
        """For /status: this picker's name and address among its peers, who is connected, and who is not and why."""
        return {
            "peers": {
                "name": self.name,
                "address": self.address,
                "connected": [
                    {
                        "name": link.name,
                        "address": link.address,
                        "silent_seconds": round(link.silence, 3),
                        "inflight": len(link.subscriber),
                        "waiting": sum(link.subscriber.waiting.values()),
                        "unplaced": link.subscriber.unplaced,
                        "other_layout": link.subscriber.other_layout,
                        "bytes_in": link.bytes_in,
                        "bytes_out": link.bytes_out,
                    }
                    for link in self.links.values()
                ],
                "missing": {
                    address: why
                    for address, why in self._dialed.items()
                    if why and self._names.get(address) not in self.links
                },
            }
        }

    async def _open(self) -> None:
        await self._stack.enter_async_context(self._listening())
        self._stack.callback(self._end_links)
        self._stack.push_async_callback(self._dialing.aclose)
        tried = [self._dial_soon(name) for name in self._processes]
        if self._finder is not None:
            self._start(self._finder.follow(self._dial_all, self._dial_soon, self._leave))
            tried.append(self._finder.looked)
            if self._finder.registers:
                self._start(self._finder.register(self._host, self._port))
        try:
            async with asyncio.timeout(_START):
                for one in tried:
                    await one.wait()
        except TimeoutError:
            log.info("not all peers have told what they send yet; this picker starts without")
        self._stack.callback(self._begin_end)

    def _begin_end(self) -> None:
        self._ends = True

    def _end_links(self) -> None:
        for link in list(self.links.values()):
            link.end()

    # Its own side of streams that peers open

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        server = aio.server(options=SERVER_OPTIONS, maximum_concurrent_rpcs=_MOST_STREAMS)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, self.handlers),))
        if self._siblings is not None:
            server.add_insecure_port(self._siblings.peer_target(self._siblings.place))
            path = self._siblings.news_path(self._siblings.place)
            local = await asyncio.start_unix_server(self._accept_process, path)
            self._stack.callback(local.close)
        if self._settings.peers is not None:
            self._listen_for_others(server)
        await server.start()
        try:
            yield
        finally:
            await server.stop(_GOODBYE)

    def _listen_for_others(self, server: aio.Server) -> None:
        settings, served = self._settings, self.credentials.served
        self._host = "127.0.0.1" if served is None and not is_loopback(settings.host) else settings.host
        where = authority(self._host, settings.peer_port)
        try:
            if served is None:
                self._port = server.add_insecure_port(where)
            else:
                self._port = server.add_secure_port(where, server_credentials(served))
        except RuntimeError as error:
            problem = f"cannot listen on {where}: it is taken or not an address of this machine (--peer-port)"
            raise ListenError(problem) from error

    async def _accept(self, _: object, context: "aio.ServicerContext[Any, Any]") -> None:
        address = context.peer()[:100]
        try:
            await self._converse(self._new_link(address, False), context)
        except PeerFaultError as fault:
            self._note_fault(address, fault)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(fault))
        except (SilentPeerError, TimeoutError) as error:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, why_lost(error))
        except BROKEN:
            return

    async def _accept_process(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(LocalStream(reader, writer)) as stream:
            try:
                await self._converse(self._new_link(_UNNAMED, False), stream)
            except PeerFaultError as fault:
                self._note_fault("another process", fault)
            except (*BROKEN, SilentPeerError):
                return

    # Streams to peers

    async def _dial_all(self, addresses: Sequence[str]) -> None:
        """Dials the first peers that were found; returns once each has told what it sends, or did not answer."""
        for address in self._dialed.keys() - addresses - self._processes.keys():
            del self._dialed[address]
        tried = [self._dial_soon(address) for address in addresses]
        for one in tried:
            await one.wait()

    def _leave(self, address: str) -> None:
        self._dialed.pop(address, None)

    def _dial_soon(self, address: str) -> asyncio.Event:
        """Returns what is set once that was tried."""
        tried = asyncio.Event()
        if address in self._dialed or address == self.address:
            tried.set()
        else:
            self._dialed[address] = "it was not asked yet"
            self._dialing.start(self._keep(address, tried), f"peer {address}")
        return tried

    async def _keep(self, address: str, tried: asyncio.Event) -> None:
        """Keep a stream to one peer as long as it is named, unless it keeps one to us."""
        pause, is_patient = _FIRST_PAUSE, True
        try:
            while address in self._dialed:
                link = self._new_link(address, True)
                why, fault = await self._dial(link, tried)
                if link.name:
                    self._names[address] = link.name
                if link.name == self.name:
                    self._dialed[address] = ""
                    return
                if link.name in self.links:  # it has another stream to us
                    await self._until_gone(link.name, address, tried)
                    pause = _FIRST_PAUSE
                    continue
                if address in self._dialed:
                    self._dialed[address] = why
                if why == NO_ANSWER and is_patient:
                    is_patient = False  # it is there, and maybe busy: a start without it would count nothing of what it sends
                else:
                    tried.set()
                pause = _FIRST_PAUSE if link.name and not fault else min(2.0 * pause, _LONGEST_PAUSE)
                await asyncio.sleep(_FAULT_PAUSE if fault else pause)
        finally:
            self._names.pop(address, None)
            tried.set()

    async def _until_gone(self, name: str, address: str, tried: asyncio.Event) -> None:
        while (link := self.links.get(name)) is not None:
            self._dialed[address] = ""
            await link.caught_up.wait()
            tried.set()
            if self.links.get(name) is link:
                await self._gone.wait()

    async def _dial(self, link: PeerLink, tried: asyncio.Event) -> tuple[str, bool]:
        """Returns why it ended, and whether that was a fault of the peer."""
        try:
            async with self._stream_to(link.address) as stream:
                await self._converse(link, stream, tried)
        except PeerFaultError as fault:
            self._note_fault(link.address, fault)
            return str(fault), True
        except (*BROKEN, SilentPeerError) as error:
            return why_lost(error), False
        return why_lost(None), False

    @asynccontextmanager
    async def _stream_to(self, address: str) -> AsyncIterator[Duplex]:
        if self._siblings is not None and address in self._processes:
            path = self._siblings.news_path(self._processes[address])
            async with asyncio.timeout(GREETING):
                local = LocalStream(*await asyncio.open_unix_connection(path))
            with contextlib.closing(local):
                yield local
            return
        async with self.channel(address) as channel:
            call: Any = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
            try:
                async with asyncio.timeout(GREETING):
                    await call.wait_for_connection()  # `write` would wait, and never say why
                yield call
            finally:
                call.cancel()

    def channel(self, address: str) -> aio.Channel:
        if self._siblings is not None and address in self._processes:
            target = self._siblings.peer_target(self._processes[address])
            return aio.insecure_channel(target, options=CHANNEL_OPTIONS)
        served = self.credentials.served
        if served is None:
            return aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        credentials = grpc.ssl_channel_credentials(served.client_ca, served.pair.key, served.pair.certificate)
        name = self.credentials.server_name()
        options = [*CHANNEL_OPTIONS, *([("grpc.ssl_target_name_override", name)] if name else [])]
        return aio.secure_channel(address, credentials, options=options)

    # Both kinds

    async def _converse(self, link: PeerLink, stream: Duplex, tried: asyncio.Event | None = None) -> None:
        name = await link.greet(stream, self.name)
        if link.address == _UNNAMED:
            link.address = f"process {int(name[:2], 16)}"
        if name == self.name or not self._adopt(link):
            return
        if link.address in self._dialed:
            self._dialed[link.address] = ""
        log.info("peer %s at %s is connected", name, link.address)
        why: BaseException | None = None
        try:
            async with background(_once(link.caught_up, tried)):
                await link.converse(stream)
        except BaseException as error:
            why = error
            raise
        finally:
            self._link_ended(link, why)

    def _adopt(self, link: PeerLink) -> bool:
        """One stream between two: both keep the one that the picker with the smaller name opened, of several the newest.

        Processes of one picker may find each other as strangers do, too: they keep their own stream.
        """
        before = self.links.get(link.name)
        if before is not None and before.address in self._processes and link.address not in self._processes:
            return False
        if before is not None and before.dialed != link.dialed and link.dialed != (self.name < link.name):
            return False
        if before is not None:
            before.end()
        self.links[link.name] = link
        return True

    def _link_ended(self, link: PeerLink, why: BaseException | None) -> None:
        self.bytes_in += link.bytes_in
        self.bytes_out += link.bytes_out
        link.caught_up.set()
        if self.links.get(link.name) is not link:
            return  # there is another one to it
        del self.links[link.name]
        gone, self._gone = self._gone, asyncio.Event()
        gone.set()
        if isinstance(why, asyncio.CancelledError):
            # grpc cancels who serves a stream whose connection broke
            reason = "this picker ends" if self._ends else "its connection broke"
        else:
            reason = why_lost(why)
        self._limited_log.log(
            logging.INFO if why is None else logging.WARNING,
            "lost",
            "peer %s at %s is connected no longer, so nothing that it sent counts: %s",
            link.name,
            link.address,
            reason,
        )

    def _note_fault(self, address: str, fault: PeerFaultError) -> None:
        self.faults += 1
        self._limited_log.warning("fault", "the peer at %s sent what makes no sense: %s", address, fault)


async def _once(first: asyncio.Event, then: asyncio.Event | None) -> None:
    await first.wait()
    if then is not None:
        then.set()
