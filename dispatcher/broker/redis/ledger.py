"""The ledger of one target in Redis, shared by all replicas: the rules of `dispatcher/broker/capacity/target_ledger.py` as a script.

Redis runs a script atomically (https://redis.io/docs/latest/develop/programmability/), so two replicas never admit the
same free place. The keys of one target have one hash tag, so that a cluster keeps them in one slot, as a script needs
(https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags).
"""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from importlib.resources import files
from itertools import count
from math import floor
from typing import Any, Final

from redis.asyncio import Redis

from adsum.tasks import ResourceOwner
from dispatcher.broker.capacity.target_ledger import REASONS
from dispatcher.broker.contract.ledger import (
    Grant,
    LedgerState,
    Quota,
    QuotaMode,
    Reading,
    Refusal,
    Reservation,
)
from dispatcher.broker.contract.message import new_token
from dispatcher.broker.contract.queue import QueueError
from dispatcher.broker.redis.client.batching import Arguments, CommandBatcher, Reply
from dispatcher.broker.redis.client.connection import ANSWER_TIMEOUT, Script, as_queue_errors, server_time_ms
from dispatcher.broker.redis.client.subscriptions import Subscriptions

SCRIPT: Final = files("dispatcher.broker.redis").joinpath("scripts/ledger.lua")
MAX_EXACT: Final = 2**53
"""The largest integer that a Lua number (a double) holds exactly."""


class RedisLedger(ResourceOwner):
    """Implements `dispatcher.broker.contract.ledger.Ledger`; an async context manager. Entering it has reached the broker.

    Operations that are requested in one turn of the event loop are one call of the script, in their order: a release
    never overtakes its heartbeat. `address`: the broker's, for errors.
    """

    def __init__(self, client: Redis, target: str, *, lease_ms: int = 15_000, address: str = "") -> None:
        tag = f"adsum:{{target:{target}}}"
        self._keys = [f"{tag}:began", f"{tag}:leases", f"{tag}:state"]
        self._channel = f"{tag}:changed"
        self.lease_ms = lease_ms
        self._script = Script(client, SCRIPT.read_text(), address)
        self._subscriptions = Subscriptions(client, {self._channel: None})
        self._changes = self._subscriptions.changes(self._channel)
        self._token, self._numbers = new_token(), count()
        self._began: dict[str, int] = {}
        self._life = b""
        self._batcher = CommandBatcher(self._send)

    async def _open(self) -> None:
        await self._call([])
        await self._stack.enter_async_context(self._subscriptions)
        await self._stack.enter_async_context(self._batcher)

    async def now_ms(self) -> int:
        now: int = (await self._call([]))[0]
        return now

    async def state(self) -> LedgerState:
        now, _, [in_flight] = await self._call([("L",)])
        return LedgerState(now, in_flight)

    async def reserve(self, reading: Reading, units: int) -> Reservation | Refusal:
        # A new name for every reservation: when the client repeats an operation, the script recognises it.
        member = f"{units}:{self._token}.{next(self._numbers)}"
        room, allotment = (min(floor(one), MAX_EXACT) for one in (reading.headroom, reading.allotment))
        arguments: Arguments = ("R", member, units, reading.at_ms, room, int(reading.headroom > 0), allotment)
        seen = self._changes.count

        def undo(reply: Reply) -> Arguments | None:
            return ("F", member, 0) if reply[0] else None

        granted, detail, time = await self._batcher.call(arguments, undo=undo)
        if not granted:
            code = detail.decode() if isinstance(detail, bytes) else detail
            return Refusal(REASONS[code], time if time >= 0 else None, seen)
        self._began[member] = time
        return Reservation(member, units, bool(detail))

    async def heartbeat(self, reservations: Sequence[Reservation]) -> None:
        # One that has been released since is left out: its heartbeat would count it again.
        began = ((one.id, self._began.get(one.id)) for one in reservations)
        operations: list[Arguments] = [("H", id, time) for id, time in began if time is not None]
        await asyncio.gather(*map(self._batcher.call, operations))

    async def release(self, reservation: Reservation, *, accepted: bool) -> None:
        """If the broker is away, raises QueueError and sends it again when the broker is back."""
        if self._began.pop(reservation.id, None) is not None:
            await self._batcher.call(("F", reservation.id, int(accepted)), resend=True)

    async def report_overload(self, retry_after_ms: int = 0) -> None:
        """If the broker is away, raises QueueError and sends it again when the broker is back."""
        await self._batcher.call(("O", retry_after_ms), resend=True)

    async def wait(self, timeout: float, *, seen: int = -1) -> None:
        await self._changes.wait(timeout, seen)

    async def _send(self, operations: Sequence[Arguments]) -> Sequence[Reply]:
        # The script answers the life of its ledger: a token written with its first operation. Another one than before
        # means that Redis came back without its data, or was failed over to a replica that did not have it.
        known = self._life
        _, self._life, *answers = await self._call(operations)
        if known not in (b"", self._life):
            await self._report_running()
        return answers

    async def _report_running(self) -> None:
        """The broker lost the ledger: report what runs at once; if that fails, the next heartbeats do."""
        with suppress(QueueError):
            await self._call([("H", id, began) for id, began in self._began.items()])

    async def _call(self, operations: Sequence[Arguments]) -> list[Any]:
        arguments = [argument for operation in operations for argument in operation]
        answer: list[Any] = await self._script(
            self._keys, [self._channel, self.lease_ms, self._life, *arguments]
        )
        return answer


_TEXT: Final = files("dispatcher.broker.redis").joinpath("scripts/quota.lua").read_text()
# bounded: a file of this package
QUOTA_SCRIPT: Final = "".join(line for line in _TEXT.splitlines(True) if not line.startswith("--"))
"""Without its comments: it is sent with every call. A pipeline cannot handle NOSCRIPT, so EVALSHA is no choice there
(https://redis.io/docs/latest/develop/programmability/eval-intro/#evalsha-in-the-context-of-pipelining)."""
CHANNEL: Final = "adsum:quotas:changed"


class RedisQuotas(ResourceOwner):
    """Implements `dispatcher.broker.contract.ledger.Quotas`; an async context manager. `address`: the broker's, for errors.

    Each key is one operation of a pipeline, not one script over all: keys of different tenants lie in different slots.
    """

    def __init__(self, client: Redis, *, address: str = "") -> None:
        self._address = address
        self._client = client
        self._subscriptions = Subscriptions(client, {CHANNEL: None})
        self._changes = self._subscriptions.changes(CHANNEL)
        self._held: set[str] = set()
        self._batcher = CommandBatcher(self._send)

    async def _open(self) -> None:
        await self._stack.enter_async_context(self._subscriptions)
        await self._stack.enter_async_context(self._batcher)

    async def now_ms(self) -> int:
        return await server_time_ms(self._client, self._address)

    async def acquire(self, key: str, quota: Quota) -> Grant | Refusal:
        grant, seen = Grant(key, new_token(), quota), self._changes.count

        def undo(reply: Reply) -> Arguments | None:
            return _operation("give", grant) if reply[0] else None

        granted, until = await self._batcher.call(_operation("take", grant), undo=undo)
        if not granted:
            return Refusal(f"the quota of {key} is used up", until if until >= 0 else None, seen)
        self._held.add(grant.id)
        return grant

    async def heartbeat(self, grants: Collection[Grant]) -> None:
        # A rate needs none. A grant that has been released since is left out: its heartbeat would grant it again.
        leased = (one for one in grants if one.quota.mode is QuotaMode.CONCURRENCY and one.id in self._held)
        await asyncio.gather(*(self._batcher.call(_operation("heartbeat", grant)) for grant in leased))

    async def release(self, grant: Grant, *, used: bool) -> None:
        """If the broker is away, raises QueueError and sends it again when the broker is back."""
        self._held.discard(grant.id)
        if grant.quota.mode is QuotaMode.CONCURRENCY or not used:
            await self._batcher.call(_operation("give", grant), resend=True)

    async def wait(self, timeout: float, *, seen: int = -1) -> None:
        await self._changes.wait(timeout, seen)

    async def _send(self, operations: Sequence[Arguments]) -> Sequence[Reply]:
        calls = self._client.pipeline(transaction=False)
        for key, *arguments in operations:
            calls.eval(QUOTA_SCRIPT, 1, key, CHANNEL, *arguments)
        with as_queue_errors(self._address):
            async with asyncio.timeout(ANSWER_TIMEOUT):
                answers: Sequence[Reply] = await calls.execute()
        return answers


def _operation(name: str, grant: Grant) -> Arguments:
    quota = grant.quota
    duration_ms = quota.window_ms if quota.mode is QuotaMode.RATE else quota.lease_ms
    return (f"adsum:{{quota:{grant.key}}}:{quota.mode.value}", name, grant.id, quota.limit, duration_ms)
