"""Reads one socket of KV events over ZeroMQ: subscribes, has what was published before sent again, and follows.

The wire: three frames, topic, number in 8 bytes, payload. A replay is asked for on another socket, with an empty frame and the
first number; each answer is an empty frame, the topic (not from vLLM before 0.26), the number and the payload, the last one
with the number -1 (vLLM, distributed/kv_events.py: ZmqEventPublisher).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Never

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from adsum.tasks import wait_at_most
from epp.kv_events.loads import LoadStat, read_load
from epp.kv_events.publishers import KvPublisher
from epp.kv_events.time_slices import TimeSlices
from epp.scheduling.kv_events.batches import MOST_BYTES
from epp.scheduling.kv_events.event_stream import Knowledge, KvEventStream
from epp.scheduling.kv_events.snapshot import CacheSnapshot

log = logging.getLogger(__name__)

_QUEUE: Final = 16
"""Messages that wait in this process. A full queue is not read, so the rest waits at the worker."""
_LOADS: Final = 8
"""The same of loads; SGLang keeps as many."""
_MOST_TOPIC: Final = 1024
_END: Final = b"\xff" * 8
_NUMBER_BYTES: Final = 8
_IDLE: Final = 2.0
"""Seconds without an answer after which a replay has failed; the Go picker's numbers, as the next three."""
_LONGEST: Final = 120.0
_RETRY: Final = 5.0
_TRIES: Final = 3
_SETTLE: Final = 0.05
"""Seconds from the handshake on within which a publisher has learnt of the subscription."""
_ASK_PEERS: Final = 1.0
"""Seconds until other pickers are asked, twice as long each time: what a worker holds may be known there alone."""
_LOOK: Final = 30.0
"""Seconds without a batch, after which the last one is asked for again: a lost one shows only by the next."""


@dataclass(eq=False)
class BoundSubscriber:
    """Reads one socket to which all workers connect. Topics say whose the events are: `kv@<worker>@<model>`, or the worker.

    `stream_of`: the stream of the worker that calls itself so, None: there is none. Nothing is sent again.
    """

    context: zmq.asyncio.Context
    address: str
    topic: str
    stream_of: Callable[[str], KvEventStream | None]

    async def run(self) -> Never:
        with _opened(self.context, zmq.SUB) as socket:
            socket.setsockopt(zmq.RCVHWM, _QUEUE)
            socket.subscribe(self.topic)
            while True:
                try:
                    socket.bind(self.address)
                    break
                except zmq.ZMQError as error:
                    log.warning("no KV events are received at %s: %s", self.address, error)
                    await asyncio.sleep(_RETRY)
            slices = TimeSlices()
            while True:
                frames: list[bytes] = await socket.recv_multipart()
                if len(frames) == 3 and len(frames[1]) == _NUMBER_BYTES:
                    stream = self.stream_of(_worker_of(frames[0]))
                    if stream is not None:
                        await slices.run(stream.live(int.from_bytes(frames[1], "big"), frames[2]))


def _worker_of(topic: bytes) -> str:
    text = topic[:_MOST_TOPIC].decode("utf-8", "replace")
    # bounded: _MOST_TOPIC bytes
    parts = text.split("@", 2)
    return parts[1] if len(parts) == 3 else text


class KvSubscriber:
    """Feeds `stream` from the sockets of `publisher` while `run` runs. `name`: of the worker, for the log.

    `replays`: how many subscribers may have batches sent again at once. `ask_peers`: for what another picker knows of this
    publisher.
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        publisher: KvPublisher,
        stream: KvEventStream,
        name: str,
        replays: asyncio.Semaphore,
        ask_peers: Callable[[str], Awaitable[CacheSnapshot | None]],
    ) -> None:
        self._ask_peers = ask_peers
        self._ask_pause = _ASK_PEERS
        self._replays = replays
        self.slices = TimeSlices()
        """Whatever changes the stream in steps runs here."""
        self._context = context
        self._publisher = publisher
        self.stream = stream
        self._name = name
        self._connected = asyncio.Event()
        self._wanted = asyncio.Event()
        self._heard_at = time.monotonic()

    async def run(self) -> Never:
        with _opened(self._context, zmq.SUB) as socket:
            socket.setsockopt(zmq.RCVHWM, _QUEUE)
            # a stopped or vanished peer is noticed though its connection stays
            socket.setsockopt(zmq.HEARTBEAT_IVL, 2000)
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 10_000)
            socket.setsockopt(zmq.RECONNECT_IVL, 100)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
            socket.subscribe(self._publisher.topic)
            monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
            try:
                socket.connect(self._publisher.events)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._receive(socket))
                    group.create_task(self._follow_connection(monitor))
                    group.create_task(self._recover())
            finally:
                socket.disable_monitor()
        raise RuntimeError("the tasks of a subscriber ended")

    async def _receive(self, socket: Any) -> Never:
        while True:
            frames: list[bytes] = await socket.recv_multipart()
            self._heard_at = time.monotonic()
            if len(frames) == 3 and len(frames[1]) == _NUMBER_BYTES:
                await self.slices.run(self.stream.live(int.from_bytes(frames[1], "big"), frames[2]))
                if self.stream.wants_replay:
                    self._wanted.set()

    async def _follow_connection(self, monitor: Any) -> Never:
        while True:
            event = parse_monitor_message(await monitor.recv_multipart())["event"]
            if event == zmq.EVENT_DISCONNECTED:
                self._connected.clear()
                self.stream.interrupted()
            else:
                self._connected.set()
                self._wanted.set()

    async def _recover(self) -> Never:
        tries = 0
        while True:
            await wait_at_most(self._pause(), self._wanted)
            await self._connected.wait()
            await asyncio.sleep(_SETTLE)
            self._wanted.clear()
            stream = self.stream
            if stream.can_replay and time.monotonic() - self._heard_at >= _LOOK:
                self._heard_at = time.monotonic()
                stream.wants_replay = True
            while stream.wants_replay and self._connected.is_set():
                async with self._replays:
                    done = await self._replay()
                if done:
                    tries = 0
                    continue
                tries += 1
                if tries >= _TRIES:
                    log.warning(
                        "%s: %s sends no batches again; of its cache only what it stores from now on is known",
                        self._name,
                        self._publisher.replay,
                    )
                    await self.slices.run(stream.give_up_replay())
                    break
                stream.interrupted()
                await asyncio.sleep(_RETRY)
            if stream.knowledge is Knowledge.PARTIAL:
                await self._adopt()
            else:
                self._ask_pause = _ASK_PEERS

    def _pause(self) -> float:
        """Seconds until it looks whether there is something to do."""
        asks = self.stream.can_replay and self.stream.knowledge is Knowledge.PARTIAL
        return self._ask_pause if asks else _LOOK

    async def _adopt(self) -> None:
        """Adopt what another picker knows, if it knows more."""
        if not self.stream.can_replay:
            return
        self._ask_pause = min(2 * self._ask_pause, _LOOK)
        given = await self._ask_peers(self._publisher.events)
        if given is not None and await self.slices.run(self.stream.adopt(given)):
            self._wanted.set()

    async def _replay(self) -> bool:
        """Whether the publisher answered to the end, or the stream needs another replay already."""
        stream = self.stream
        async with self.slices.lock:
            first = stream.begin_replay()
        with _opened(self._context, zmq.DEALER) as socket:
            try:
                async with asyncio.timeout(_LONGEST):
                    socket.connect(self._publisher.replay)
                    await socket.send_multipart([b"", first.to_bytes(_NUMBER_BYTES, "big")])
                    complete = await self._read_replay(socket)
            except TimeoutError:
                complete = False
        if stream.replaying:
            if not complete:
                return False
            await self.slices.run(stream.end_replay(complete=True))
        return True

    async def _read_replay(self, socket: Any) -> bool:
        while True:
            async with asyncio.timeout(_IDLE):
                frames: list[bytes] = await socket.recv_multipart()
            if frames and not frames[0]:
                frames = frames[1:]
            if len(frames) not in (2, 3) or len(frames[-2]) != _NUMBER_BYTES:
                continue
            if frames[-2] == _END:
                return True
            if not self.stream.replaying:  # the connection was lost meanwhile
                return False
            number = int.from_bytes(frames[-2], "big")
            if not await self.slices.run(self.stream.replayed(number, frames[-1])):
                return False


async def follow_loads(
    context: zmq.asyncio.Context, address: str, topic: str, heard: Callable[[LoadStat], None]
) -> Never:
    """Tell of each load that is pushed there; one that is overtaken may be left out."""
    with _opened(context, zmq.SUB) as socket:
        socket.setsockopt(zmq.RCVHWM, _LOADS)
        socket.setsockopt(zmq.RECONNECT_IVL, 100)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        socket.subscribe(topic)
        socket.connect(address)
        while True:
            frames: list[bytes] = await socket.recv_multipart()
            stat = read_load(frames[-1]) if len(frames) == 3 else None
            if stat is not None:
                heard(stat)
            await asyncio.sleep(0)


@contextlib.contextmanager
def _opened(context: zmq.asyncio.Context, kind: int) -> Iterator[Any]:
    socket: Any = context.socket(kind)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
        socket.setsockopt(zmq.IPV6, 1)
        yield socket
    finally:
        socket.close()
