"""Tells of a simulated worker's prefix cache by KV events, as the worker that it stands for does, and what goes wrong with them."""

import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from examples.simulator.kv_messages import (
    KvFormat,
    block_name,
    encode_batch,
    removed,
    removed_event,
    stored,
    stored_event,
)
from examples.simulator.kv_publisher import KvEventPublisher
from examples.simulator.scheduler_model import Work
from examples.simulator.tokens import token_id


class KvFault(StrEnum):
    """LOST: batches have their numbers and are not sent. NO_EVENTS: nothing is published. FORGETS: the cache is emptied after each
    step, and no event says so.

    SLEEP, at once: the cache is emptied, and no event says so. RESTART, at once: it begins anew with an empty cache.
    SPARSE: of a hybrid model, whose second group names every other block of a prompt.
    """

    LOST = "lost-batches"
    NO_EVENTS = "no-events"
    FORGETS = "forgets"
    SLEEP = "sleep"
    RESTART = "restart"
    SPARSE = "sparse-groups"


class CacheEvents:
    """A `CacheListener`. `flush` publishes what was heard as one batch. `forget_cache`: empties the worker's cache."""

    def __init__(self, format: KvFormat, publisher: KvEventPublisher, block_size: int) -> None:
        self.format = format
        self.publisher = publisher
        self.block_size = block_size
        self.forget_cache: Callable[[], None] = lambda: None
        self._fault: KvFault | None = None
        self._events: list[Any] = []
        self._sparse: set[int] = set()
        """Blocks of the second group."""

    def stored(self, work: Work, begin: int, end: int) -> None:
        digests, size = work.digests, self.block_size
        names = [block_name(self.format, one) for one in digests[begin:end]]
        parent = block_name(self.format, digests[begin - 1]) if begin else None
        tokens = [token_id(one) for one in work.tokens[begin * size : end * size]]
        self._events.append(stored_event(self.format, names, tokens, parent, work.adapter, work.salt))
        if self._fault is KvFault.SPARSE:
            group: dict[str, Any] = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window"}
            named = {"lora_name": work.adapter}
            self._events.append(stored(names[1::2], tokens, parent, size, **named, **group))
            self._sparse.update(names[1::2])

    def removed(self, digest: bytes) -> None:
        name = block_name(self.format, digest)
        self._events.append(removed_event(self.format, [name]))
        if name in self._sparse:
            self._sparse.remove(name)
            self._events.append(removed(name, group_idx=1))

    def flush(self) -> None:
        events, self._events = self._events, []
        if self._fault is KvFault.FORGETS:
            self.forget_cache()
        if events and self._fault is not KvFault.NO_EVENTS:
            payload = encode_batch(self.format, events, time.time())
            self.publisher.publish(payload, lost=self._fault is KvFault.LOST)

    async def suffer(self, fault: KvFault | None) -> None:
        """None: nothing is wrong from now on."""
        if fault in (KvFault.SLEEP, KvFault.RESTART):
            self.forget_cache()
        if fault is KvFault.RESTART:
            self._events.clear()
            await self.publisher.restart()
        self._fault = fault

    def sources(self) -> dict[str, Any]:
        """The answer to GET /kv_event_sources, of vLLM."""
        events, replay = self.publisher.ports
        return {
            "0": {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": f"tcp://*:{events}",
                "replay_endpoint": f"tcp://*:{replay}" if self.publisher.replays else None,
                "buffer_steps": self.publisher.kept.maxlen,
                "hwm": 100_000,
                "max_queue_size": 100_000,
                "topic": "",
            }
        }

    def server_info(self) -> dict[str, Any]:
        """A part of the answer to GET /server_info, of SGLang."""
        events, replay = self.publisher.ports
        ports = {"replay_endpoint_port_base": replay} if self.publisher.replays else {}
        return {
            "publisher": "zmq",
            "endpoint_host": "*",
            "endpoint_port_base": events,
            "topic": "",
            "block_size": self.block_size,
            "dp_size": 1,
            **ports,
        }
