"""Builds and calls the Lua scripts of a queue: each script is a common part and its own file, over the keys of one queue.

All keys begin with `adsum:{QUEUE}:`. The braces are a hash tag: a Redis Cluster keeps all keys of a queue in one slot,
which a script requires (https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags).
"""

import json
from collections.abc import Sequence
from dataclasses import astuple
from importlib.resources import files
from typing import Any, Final

from redis.asyncio import Redis

from dispatcher.broker.contract.queue import QueueRules
from dispatcher.broker.contract.validation import (
    BODY_GONE,
    CANCELLED,
    DEAD_LETTERS_KEPT,
    EXPIRED,
    FINISH_REMEMBERED_MS,
    LONGEST_LEASE_MS,
    POISON,
    RAW_KEPT,
    REQUEST_GONE,
)
from dispatcher.broker.redis.client.batching import Arguments, CommandBatcher
from dispatcher.broker.redis.client.connection import Script

PARTS: Final = ("part_keys", "part_writes", "part_order", "part_request_states")
ACCEPTING: Final = ("submit", "intake")
"""Scripts that accept requests. They lack part_low_memory.lua: Redis refuses them when it is out of memory."""
READING: Final = ("totals", "backlog", "body")
"""Scripts that write nothing."""
MAX_CALL_BYTES: Final = 1024 * 1024
"""Bodies in one call; a larger item goes alone. Redis serves nobody else while it runs a call."""


def script_text(name: str) -> str:
    """The whole script, with the texts and limits of `dispatcher.broker.contract.validation` as Lua constants."""
    folder = files("dispatcher.broker.redis").joinpath("scripts", "queue")
    texts = ", ".join(map(json.dumps, (EXPIRED, CANCELLED, POISON, BODY_GONE, REQUEST_GONE)))
    limits = (
        f"local TEXTS, REMEMBERED, RAW_KEPT, DEAD_KEPT, LONGEST_LEASE = {{ {texts} }}, "
        f"{FINISH_REMEMBERED_MS}, {RAW_KEPT}, {DEAD_LETTERS_KEPT}, {LONGEST_LEASE_MS}\n"
    )
    last = "part_accept" if name in ACCEPTING else "part_low_memory"
    parts = PARTS if name in READING else (*PARTS, last)
    shared, own = (
        "".join(folder.joinpath(f"{part}.lua").read_text() for part in some) for some in (parts, (name,))
    )
    return f"{limits}{shared}local function main()\n{own}end\nlocal answer = main()\nwrite_later()\nreturn answer\n"


class QueueScripts:
    """The scripts of one queue."""

    def __init__(self, client: Redis, address: str, name: str, rules: QueueRules) -> None:
        self.prefix = f"adsum:{{{name}}}:"
        self._client = client
        self._address = address
        self._header = (
            rules.lease_ms,
            rules.max_deliveries,
            rules.result_ttl_ms,
            json.dumps(dict(rules.weights)),
            *astuple(rules.limits),
        )
        self._scripts: dict[str, Script] = {}

    async def call(self, name: str, arguments: Sequence[str | bytes | int], *keys: str) -> Any:
        """Call one script. `keys`: further keys in the queue's slot. Raises QueueError."""
        script = self._scripts.get(name)
        if script is None:
            script = self._scripts[name] = Script(self._client, script_text(name), self._address)
        return await script((self.prefix, *keys), (*self._header, *arguments))

    async def call_each(self, name: str, items: Sequence[Arguments], *keys: str) -> list[Any]:
        """Call a script that takes a list of items; returns its answer for each."""
        answers: list[Any] = []
        for chunk in _chunks(items):
            answers += await self.call(name, [argument for item in chunk for argument in item], *keys)
        return answers

    def batched(self, name: str) -> CommandBatcher:
        """The same for items that many tasks have, one each."""
        return CommandBatcher(lambda items: self.call_each(name, items))

    def key(self, name: str) -> str:
        return self.prefix + name


def _chunks(items: Sequence[Arguments]) -> list[list[Arguments]]:
    chunks: list[list[Arguments]] = []
    room = -1
    for item in items:
        size = sum(len(argument) for argument in item if isinstance(argument, bytes))
        if size > room:
            chunks.append([])
            room = MAX_CALL_BYTES
        chunks[-1].append(item)
        room -= size
    return chunks
