"""Publishes batches of KV events over ZeroMQ as workers do, numbered, and sends them again to who asks."""

import asyncio
import contextlib
from collections import deque
from typing import Self

import zmq
import zmq.asyncio

_END = b"\xff" * 8
BUFFER_STEPS = 10_000


class KvEventPublisher:
    """An async context manager. `ports`: of its events and of its replays, 0: any free one; then those that it has.

    `topic_in_replay`: False as in vLLM before 0.26, and in earlier versions of SGLang. `kept`: what is sent again.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        ports: tuple[int, int] = (0, 0),
        *,
        topic_in_replay: bool = True,
        buffer_steps: int = BUFFER_STEPS,
    ) -> None:
        self._host = host
        self.ports = list(ports)
        self._topics = [b""] if topic_in_replay else []
        self.replays = buffer_steps > 0
        self.kept: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._number = 0

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def restart(self) -> None:
        """Another life of the process, at the same ports."""
        await self._end()
        self._begin()

    def publish(self, payload: bytes, *, lost: bool = False) -> None:
        """`lost`: it has a number, and comes only if it is asked for."""
        number, self._number = self._number, self._number + 1
        self.kept.append((number, payload))
        if not lost:
            with contextlib.suppress(zmq.Again):
                self._events.send_multipart([b"", number.to_bytes(8, "big"), payload], zmq.NOBLOCK)

    def _begin(self) -> None:
        self._context = zmq.asyncio.Context()
        # a publisher never waits
        self._events = zmq.Context(self._context).socket(zmq.PUB)
        self._replay = self._context.socket(zmq.ROUTER)
        for at, socket in enumerate((self._events, self._replay)[: 1 + self.replays]):
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind(f"tcp://{self._host}:{self.ports[at] or '*'}")
            self.ports[at] = int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        self._number = 0
        self.kept.clear()
        self._task = asyncio.create_task(self._answer_replays())

    async def _end(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._events.close(linger=0)
        self._context.destroy(linger=0)

    async def _answer_replays(self) -> None:
        while True:
            client, _, first = await self._replay.recv_multipart()
            begin = int.from_bytes(first, "big")
            again = [(number.to_bytes(8, "big"), payload) for number, payload in self.kept if number >= begin]
            for answer in (*again, (_END, b"")):
                await self._replay.send_multipart([client, b"", *self._topics, *answer])
