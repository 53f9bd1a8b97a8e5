"""The ledger of a target that all replicas share: `dispatcher/broker/account.py` as a script."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import files
from itertools import count
from math import floor
from typing import Any, Final

from redis.asyncio import Redis

from dispatcher.broker.account import REASONS
from dispatcher.broker.ledger import LedgerState, Reading, Refusal, Reservation
from dispatcher.broker.message import new_token
from dispatcher.broker.queue import QueueError
from dispatcher.broker.redis.batching import Arguments, CommandBatcher, Reply
from dispatcher.broker.redis.connection import Script
from dispatcher.broker.redis.subscriptions import Subscriptions
from runtime.resource_owner import ResourceOwner

SCRIPT: Final = files("dispatcher.broker.redis").joinpath("scripts/ledger.lua")
WHOLE: Final = 2**53
"""The largest number that the script counts exactly."""


class RedisLedger(ResourceOwner):
    """One target's; an async context manager, entered: the broker answered.

    All that is asked for in one turn of the loop is one script call; a release never overtakes its heartbeat. `place`:
    the broker's, for errors.
    """

    def __init__(self, client: Redis, target: str, *, lease_ms: int = 15_000, place: str = "") -> None:
        tag = f"adsum:{{target:{target}}}"
        self._keys = [f"{tag}:began", f"{tag}:leases", f"{tag}:state"]
        self._channel = f"{tag}:changed"
        self._lease_ms = lease_ms
        self._script = Script(client, SCRIPT.read_text(), place)
        self._subscriptions = Subscriptions(client, {self._channel: None})
        self._changes = self._subscriptions.changes(self._channel)
        self._opening, self._numbers = new_token(), count()
        self._began: dict[str, int] = {}
        self._life = b""
        self._batcher = CommandBatcher(self._send)

    async def _open(self) -> None:
        await self._call([])
        await self._stack.enter_async_context(self._subscriptions)
        await self._stack.enter_async_context(self._batcher)

    @property
    def lease_ms(self) -> int:
        """How long a reservation lives without a heartbeat."""
        return self._lease_ms

    async def now_ms(self) -> int:
        """The broker's clock."""
        now: int = (await self._call([]))[0]
        return now

    async def state(self) -> LedgerState:
        now, _, [in_flight] = await self._call([("L",)])
        return LedgerState(now, in_flight)

    async def reserve(self, reading: Reading, units: int) -> Reservation | Refusal:
        member = f"{units}:{self._opening}.{next(self._numbers)}"
        room, allotment = (min(floor(one), WHOLE) for one in (reading.headroom, reading.allotment))
        words: Arguments = ("R", member, units, reading.at_ms, room, int(reading.headroom > 0), allotment)
        seen = self._changes.count

        def undo(answer: Reply) -> Arguments | None:
            return ("F", member, 0) if answer[0] else None

        granted, what, time = await self._batcher.call(words, undo=undo)
        if not granted:
            code = what.decode() if isinstance(what, bytes) else what
            return Refusal(REASONS[code], time if time >= 0 else None, seen)
        self._began[member] = time
        return Reservation(member, units, bool(what))

    async def heartbeat(self, reservations: Sequence[Reservation]) -> None:
        began = ((one.id, self._began.get(one.id)) for one in reservations)
        operations: list[Arguments] = [("H", id, time) for id, time in began if time is not None]
        await asyncio.gather(*map(self._batcher.call, operations))

    async def release(self, reservation: Reservation, *, accepted: bool) -> None:
        """As `dispatcher.broker.ledger.Ledger`; while the broker is away it raises QueueError, and tells it later."""
        if self._began.pop(reservation.id, None) is not None:
            await self._batcher.call(("F", reservation.id, int(accepted)), resend=True)

    async def report_overload(self, retry_after_ms: int = 0) -> None:
        """As `dispatcher.broker.ledger.Ledger`; while the broker is away it raises QueueError, and tells it later."""
        await self._batcher.call(("O", retry_after_ms), resend=True)

    async def wait(self, timeout: float, *, seen: int = -1) -> None:
        await self._changes.wait(timeout, seen)

    async def _send(self, operations: Sequence[Arguments]) -> Sequence[Reply]:
        known = self._life
        _, self._life, *answers = await self._call(operations)
        if known not in (b"", self._life):
            await self._write_in_again()
        return answers

    async def _write_in_again(self) -> None:
        """The broker lost the book: what runs is told at once, and where that fails by the next heartbeat."""
        with suppress(QueueError):
            await self._call([("H", id, began) for id, began in self._began.items()])

    async def _call(self, operations: Sequence[Arguments]) -> list[Any]:
        arguments = [word for words in operations for word in words]
        answer: list[Any] = await self._script(
            self._keys, [self._channel, self._lease_ms, self._life, *arguments]
        )
        return answer
