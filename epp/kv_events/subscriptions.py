"""The sockets of one worker that are read: its KV events, and the loads that it pushes."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from adsum.tasks import BackgroundTasks
from epp.endpoints.endpoint import Key
from epp.endpoints.load import Load
from epp.kv_events.loads import LoadStat, RankLoads
from epp.kv_events.publishers import KvPublisher
from epp.scheduling.kv_events.event_stream import KvEventStream
from epp.scheduling.kv_events.producer import PrecisePrefixCacheProducer
from epp.scheduling.kv_events.snapshot import CacheSnapshot

if TYPE_CHECKING:
    import zmq.asyncio

    from epp.kv_events.subscriber import KvSubscriber


class WorkerSubscriptions:
    """The running subscribers of one worker."""

    def __init__(
        self,
        producer: PrecisePrefixCacheProducer,
        key: Key,
        name: str,
        sockets: Callable[[], "zmq.asyncio.Context"],
        replays: asyncio.Semaphore,
        ask_peers: Callable[[Key, str], Awaitable[CacheSnapshot | None]],
    ) -> None:
        self._replays = replays
        self._ask_peers = partial(ask_peers, key)
        self.subscribers: dict[str, KvSubscriber] = {}
        """By the address of their publisher."""
        self._producer = producer
        self._key = key
        self._name = name
        self._sockets = sockets
        self._publishers: tuple[KvPublisher, ...] = ()
        self._tasks = BackgroundTasks()
        self._streams: list[KvEventStream] = []
        self.on_load: Callable[[Load], None] | None = None
        """Called with the load of the whole worker, where its ranks push theirs."""

    async def use(self, publishers: tuple[KvPublisher, ...]) -> None:
        if publishers == self._publishers:
            return
        await self.close()
        self._publishers = publishers
        if not publishers:
            return
        from epp.kv_events.subscriber import KvSubscriber  # imports pyzmq

        for publisher in publishers:
            stream = self._producer.open_stream(self._key, can_replay=publisher.replay is not None)
            self._streams.append(stream)
            subscriber = KvSubscriber(
                self._sockets(), publisher, stream, self._name, self._replays, self._ask_peers
            )
            self.subscribers[publisher.events] = subscriber
            self._tasks.start(subscriber.run(), f"KV events at {publisher.events}")
        self._follow_loads([one for one in publishers if one.loads is not None])

    def _follow_loads(self, publishers: Sequence[KvPublisher]) -> None:
        from epp.kv_events.subscriber import follow_loads

        loads = RankLoads(len(publishers))

        def hear(rank: int, stat: LoadStat) -> None:
            load = loads.hear(rank, stat, time.monotonic())
            if load is not None and self.on_load is not None:
                self.on_load(load)

        for rank, one in enumerate(publishers):
            self._tasks.start(
                follow_loads(self._sockets(), one.loads or "", one.load_topic, partial(hear, rank)),
                f"loads at {one.loads}",
            )

    async def close(self) -> None:
        await self._tasks.aclose()
        for stream in self._streams:
            self._producer.remove_stream(self._key, stream)
        self._streams, self._publishers = [], ()
        self.subscribers.clear()
