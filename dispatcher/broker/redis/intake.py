"""What Go producers put into a sorted set, moved into a queue of ours; and what they cancel.

A message is taken out and becomes a request in one script, so that nothing is lost or doubled, whoever dies and however
many replicas do it. That script touches the producers' keys, which carry no hash tag: it needs a Redis that is not
clustered.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from dispatcher.broker.message import ErrorCode, Result
from dispatcher.broker.queue import QueueError, QueueRules
from dispatcher.broker.redis import records
from dispatcher.broker.redis.connection import as_queue_errors
from dispatcher.broker.redis.go_message import GoMessage, Malformed, parse
from dispatcher.broker.redis.scripting import QueueScripts
from dispatcher.broker.result_lists import ANY, ResultLists
from dispatcher.broker.validation import counted_as
from runtime.tasks import BackgroundTasks

POLL: Final = 0.1
"""Seconds between two looks at an empty sorted set."""
AGAIN: Final = 1.0
"""Seconds after which a broker that was away is asked again."""
MANY: Final = 64
FEW: Final = 4
"""Messages of one look, and of one while they are large."""
QUIET: Final = 10.0
"""Seconds between two lines in the log about messages that are refused."""
LARGE: Final = 16 * 1024 * 1024
WATCHED: Final = 5000
"""Requests that wait whose cancellation is looked for in one go."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GoSource:
    """The sorted set to read, which word of a message's metadata names its tenant, which lists it may name."""

    key: str = "request-sortedset"
    tenant_attribute: str = "userid"
    lists: ResultLists = ANY


class _WrongKindError(QueueError):
    """There is something else under the key."""


class GoIntake:
    """An async context manager; entered: it moves. Entering raises QueueError where the broker is away or a cluster."""

    def __init__(self, client: Redis, place: str, queue: str, rules: QueueRules, source: GoSource) -> None:
        self._client = client
        self._place = place
        self._queue = queue
        self._rules = rules
        self._source = source
        self._scripts = QueueScripts(client, place, queue, rules)
        self._lists = replace(source.lists, intakes=source.lists.intakes | {source.key})
        self._limit = MANY
        self.problem = ""
        """Why nothing comes in; empty while it does."""
        self._cursor: bytes | int = 0
        self._quiet_until = 0.0
        self._tasks = BackgroundTasks()

    async def __aenter__(self) -> Self:
        with as_queue_errors(self._place):
            clustered: Any = (await self._client.info("cluster")).get("cluster_enabled")
        if clustered:
            raise QueueError(
                f"the broker at {self._place} is a cluster: {self._source.key!r} and the keys beside it lie in other "
                "slots than the queue; an intake needs a Redis that is not clustered"
            )
        self._tasks.start(self._run(), f"intake {self._queue}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.aclose()

    async def _run(self) -> None:
        pause = POLL
        while True:
            try:
                seen = await self._move()
                await self._cancel()
            except QueueError as error:
                if pause == POLL:
                    level = logging.WARNING if isinstance(error, _WrongKindError) else logging.INFO
                    log.log(level, "%s: nothing comes in: %s", self._queue, error)
                self.problem = f"queue {self._queue}: nothing comes in: {error}"
                seen, pause = 0, AGAIN
            except Exception:  # whatever it is, the messages are still there, and so are the other producers'
                log.exception("%s: a fault while taking in; it goes on", self._queue)
                seen, pause = 0, AGAIN
            else:
                self.problem, pause = "", POLL
            if seen < self._limit:
                await asyncio.sleep(pause)

    async def _move(self) -> int:
        """One look; how many messages were seen."""
        members = await self._waiting()
        self._limit = FEW if sum(map(len, members)) > LARGE else MANY
        incoming: list[tuple[bytes, GoMessage]] = []
        for member in members:
            message = parse(member, self._rules, self._source.tenant_attribute, self._lists)
            if isinstance(message, Malformed):
                await self._reject(member, message)
            else:
                incoming.append((member, message))
        await self._take_in(incoming)
        return len(members)

    async def _waiting(self) -> list[bytes]:
        try:
            with as_queue_errors(self._place):
                members: list[Any] = await self._client.zrange(self._source.key, 0, self._limit - 1)
        except QueueError as error:
            if isinstance(error.__cause__, ResponseError) and str(error.__cause__).startswith("WRONGTYPE"):
                raise _WrongKindError(
                    f"{self._source.key!r} on the broker at {self._place} is no sorted set; expected what Go producers "
                    "fill: rename or delete that key, or set another intake.key"
                ) from error
            raise
        return members

    async def _take_in(self, incoming: Sequence[tuple[bytes, GoMessage]]) -> None:
        items = [
            (member, *records.request_words(message.request, self._rules, "", "", message.result_list))
            for member, message in incoming
        ]
        await self._scripts.each("intake", items, self._source.key)

    async def _reject(self, member: bytes, message: Malformed) -> None:
        if self._may_log():
            said = (self._queue, message.id, message.reason)
            log.warning("%s: a message with the id %.80r is refused: %s", *said)
        code = ErrorCode.INVALID_REQUEST
        counter = counted_as(Result(message.id or "", message.token, 0, b"", code))
        known = int(message.id is not None)
        words = (
            member,
            message.reason,
            known,
            message.id or "",
            message.token,
            code,
            counter,
            message.result_list,
        )
        await self._scripts.call("reject", words, self._source.key)

    def _may_log(self) -> bool:
        """Whoever fills the sorted set with such messages does not fill the log."""
        now = time.monotonic()
        if now < self._quiet_until:
            return False
        self._quiet_until = now + QUIET
        return True

    async def _cancel(self) -> None:
        """What came in and has no result: whether its producer cancelled it since."""
        self._cursor = await self._scripts.call("marked", (self._cursor, WATCHED))
