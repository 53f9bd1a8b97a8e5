"""The scripts of a queue: every one begins with the same parts and speaks of one queue only."""

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final

from redis.asyncio import Redis

from dispatcher.broker.queue import QueueRules
from dispatcher.broker.redis.batching import Arguments, CommandBatcher
from dispatcher.broker.redis.connection import Script
from dispatcher.broker.validation import (
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

PARTS: Final = ("part_keys", "part_writes", "part_order", "part_lifecycle")
ACCEPTING: Final = ("submit", "intake")
"""Scripts that take requests in, and begin with one part more."""
READING: Final = ("totals",)
MOST_BYTES: Final = 1024 * 1024
"""Of one call; a larger item goes alone."""


def script_text(name: str) -> str:
    """The whole script, with the words and limits that Python knows by name."""
    folder = files("dispatcher.broker.redis").joinpath("scripts", "queue")
    texts = ", ".join(map(json.dumps, (EXPIRED, CANCELLED, POISON, BODY_GONE, REQUEST_GONE)))
    limits = (
        f"local TEXTS, REMEMBERED, RAW_KEPT, DEAD_KEPT, LONGEST_LEASE = {{ {texts} }}, "
        f"{FINISH_REMEMBERED_MS}, {RAW_KEPT}, {DEAD_LETTERS_KEPT}, {LONGEST_LEASE_MS}\n"
    )
    more = "part_accept" if name in ACCEPTING else "part_low_memory"
    parts = PARTS if name in READING else (*PARTS, more)
    shared, own = (
        "".join(folder.joinpath(f"{part}.lua").read_text() for part in some) for some in (parts, (name,))
    )
    return f"{limits}{shared}local function answer()\n{own}end\nlocal said = answer()\nwrite_later()\nreturn said\n"


class QueueScripts:
    """The scripts over the keys of one queue."""

    def __init__(self, client: Redis, place: str, name: str, rules: QueueRules) -> None:
        self.prefix = f"adsum:{{{name}}}:"
        self._client = client
        self._place = place
        self._header = (
            rules.lease_ms,
            rules.max_deliveries,
            rules.result_ttl_ms,
            json.dumps(dict(rules.weights)),
        )
        self._scripts: dict[str, Script] = {}

    async def call(self, name: str, words: Sequence[str | bytes | int], *keys: str) -> Any:
        """One script; `keys`: others than the queue's own, in its slot. Raises QueueError."""
        script = self._scripts.get(name)
        if script is None:
            script = self._scripts[name] = Script(self._client, script_text(name), self._place)
        return await script((self.prefix, *keys), (*self._header, *words))

    async def each(self, name: str, items: Sequence[Arguments], *keys: str) -> list[Any]:
        """A script that takes items one after the other and answers each."""
        answers: list[Any] = []
        for chunk in _chunks(items):
            answers += await self.call(name, [word for item in chunk for word in item], *keys)
        return answers

    def batched(self, name: str) -> CommandBatcher:
        """Such a script, for items that many tasks ask for."""
        return CommandBatcher(lambda items: self.each(name, items))

    def key(self, name: str) -> str:
        return self.prefix + name


def _chunks(items: Sequence[Arguments]) -> list[list[Arguments]]:
    chunks: list[list[Arguments]] = []
    room = -1
    for item in items:
        size = sum(len(word) for word in item if isinstance(word, bytes))
        if size > room:
            chunks.append([])
            room = MOST_BYTES
        chunks[-1].append(item)
        room -= size
    return chunks
