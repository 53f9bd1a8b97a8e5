"""Moves requests of Go producers from their sorted set into a queue, and applies their cancellations.

One script removes a message from the sorted set and submits it as a request. So none is lost or doubled if a dispatcher
is killed, and any number of replicas may do it at once. The producers' keys have no hash tag and lie in other slots than
the queue: an intake needs a Redis that is not a cluster.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from adsum.tasks import BackgroundTasks
from dispatcher.broker.contract.message import ErrorCode, Result
from dispatcher.broker.contract.queue import QueueError, QueueRules
from dispatcher.broker.contract.validation import counted_as
from dispatcher.broker.redis import records
from dispatcher.broker.redis.client.connection import as_queue_errors
from dispatcher.broker.redis.go_queues.go_message import ANY_LIST, GoMessage, Malformed, ResultLists, parse
from dispatcher.broker.redis.scripting import QueueScripts

POLL_INTERVAL: Final = 0.1
"""Seconds between two reads of an empty sorted set. The ZADD of a Go producer notifies nobody."""
RETRY_DELAY: Final = 1.0
"""Seconds, after an error."""
BATCH_SIZE: Final = 64
BATCH_SIZE_LARGE: Final = 4
"""Messages in one read, and while a read has more than `LARGE_BYTES`."""
LARGE_BYTES: Final = 16 * 1024 * 1024
LOG_INTERVAL: Final = 10.0
"""Seconds between two log lines about rejected messages."""
CHECKED_FOR_CANCELLATION: Final = 5000
"""Waiting requests that one call checks for a cancellation."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GoSource:
    """The sorted set, the metadata key that names a message's tenant, and the result lists that a message may name."""

    key: str = "request-sortedset"
    tenant_attribute: str = "userid"
    lists: ResultLists = ANY_LIST


class _WrongTypeError(QueueError):
    """The key holds another type than a sorted set."""


class GoIntake:
    """An async context manager; works while entered. Entering raises QueueError if the broker is away or is a cluster."""

    def __init__(self, client: Redis, address: str, queue: str, rules: QueueRules, source: GoSource) -> None:
        self._client = client
        self._address = address
        self._queue = queue
        self._rules = rules
        self._source = source
        self._scripts = QueueScripts(client, address, queue, rules)
        self._lists = replace(source.lists, intakes=source.lists.intakes | {source.key})
        self._limit = BATCH_SIZE
        self._first = 0
        self.problem = ""
        """Why it moves nothing; empty while it works. Shown on /readyz."""
        self._is_checked = False
        self._cursor: bytes | int = 0
        self._next_log = 0.0
        self._tasks = BackgroundTasks()

    async def check(self) -> None:
        """Raises QueueError if the broker is a cluster, or away."""
        with as_queue_errors(self._address):
            clustered: Any = (await self._client.info("cluster")).get("cluster_enabled")
        if clustered:
            raise QueueError(
                f"the broker at {self._address} is a cluster: {self._source.key!r} lies in another slot than the queue; "
                "an intake needs a Redis that is not clustered"
            )
        self._is_checked = True

    async def __aenter__(self) -> Self:
        if not self._is_checked:
            await self.check()
        self._tasks.start(self._run(), f"intake {self._queue}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.aclose()

    async def _run(self) -> None:
        pause = POLL_INTERVAL
        while True:
            try:
                seen, left = await self._move_batch()
                await self._apply_cancellations()
            except QueueError as error:
                if pause == POLL_INTERVAL:
                    level = logging.WARNING if isinstance(error, _WrongTypeError) else logging.INFO
                    log.log(level, "queue %s: the intake moves nothing: %s", self._queue, error)
                self.problem = f"queue {self._queue}: the intake moves nothing: {error}"
                seen, left, pause = 0, 0, RETRY_DELAY
            except Exception:  # without this task no message would ever be moved again
                log.exception("queue %s: internal error in the intake; it goes on", self._queue)
                seen, left, pause = 0, 0, RETRY_DELAY
            else:
                self.problem, pause = "", POLL_INTERVAL
            if left or seen < self._limit:
                await asyncio.sleep(RETRY_DELAY if left else pause)

    async def _move_batch(self) -> tuple[int, int]:
        """How many messages were read, and how many of them stay since the queue is full."""
        limit, members = self._limit, await self._read()
        # Large messages in small batches: a batch is in memory at once, and blocks Redis while its script runs.
        self._limit = BATCH_SIZE_LARGE if sum(map(len, members)) > LARGE_BYTES else BATCH_SIZE
        incoming: list[tuple[bytes, GoMessage]] = []
        for member in members:
            message = parse(member, self._rules, self._source.tenant_attribute, self._lists)
            if isinstance(message, Malformed):
                await self._reject(member, message)
            else:
                incoming.append((member, message))
        left = await self._submit(incoming)
        # The next read begins behind those: one tenant's must not hide the messages of others.
        self._first = self._first + left if len(members) >= limit else 0
        return len(members), left

    async def _read(self) -> list[bytes]:
        try:
            with as_queue_errors(self._address):
                members: list[Any] = await self._client.zrange(
                    self._source.key, self._first, self._first + self._limit - 1
                )
        except QueueError as error:
            if isinstance(error.__cause__, ResponseError) and str(error.__cause__).startswith("WRONGTYPE"):
                raise _WrongTypeError(
                    f"{self._source.key!r} on the broker at {self._address} is no sorted set, which Go producers fill; "
                    "rename or delete that key, or set another intake.key"
                ) from error
            raise
        return members

    async def _submit(self, incoming: Sequence[tuple[bytes, GoMessage]]) -> int:
        """How many stay in the intake, since the queue is full."""
        items = [
            (member, *records.request_arguments(message.request, self._rules, "", "", message.result_list))
            for member, message in incoming
        ]
        left = (await self._scripts.call_each("intake", items, self._source.key)).count(b"full")
        if left and self._may_log():
            log.warning("queue %s: it is full, messages stay in %r", self._queue, self._source.key)
        return left

    async def _reject(self, member: bytes, message: Malformed) -> None:
        if self._may_log():
            details = (self._queue, message.id, message.reason)
            log.warning("queue %s: the message with id %.80r is rejected: %s", *details)
        code = ErrorCode.INVALID_REQUEST
        counter = counted_as(Result(message.id or "", message.token, 0, b"", code))
        known = int(message.id is not None)
        arguments = (
            member,
            message.reason,
            known,
            message.id or "",
            message.token,
            code,
            counter,
            message.result_list,
        )
        await self._scripts.call("reject", arguments, self._source.key)

    def _may_log(self) -> bool:
        """At most one line in `LOG_INTERVAL`: a producer must not be able to fill the log."""
        now = time.monotonic()
        if now < self._next_log:
            return False
        self._next_log = now + LOG_INTERVAL
        return True

    async def _apply_cancellations(self) -> None:
        """Cancel requests whose producers have set their cancellation keys since they were moved."""
        self._cursor = await self._scripts.call("check_cancelled", (self._cursor, CHECKED_FOR_CANCELLATION))
