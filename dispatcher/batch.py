"""A batch file through a queue: submitted once however often it is tried, results written as they come."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

from dispatcher.batchfile import BatchFileError, BatchLine, result_line
from dispatcher.message import Request, Result
from dispatcher.progress import Progress
from dispatcher.queue import ConflictError, Queue, QueueError, State

AT_ONCE = 64
"""Requests submitted, or waited for, at the same time."""
HELD = 30.0
"""Seconds that one wait for a result lasts."""
OUTAGE = 120.0
"""Seconds without the broker after which the batch stops; it can be resumed."""
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Order:
    """What holds for every request of a batch. `name` makes the keys by which a second try is recognised."""

    name: str
    tenant: str
    deadline_ms: int
    created_ms: int
    objective: str = ""

    def request(self, line: BatchLine) -> Request:
        """The request of a line."""
        return Request(
            id=f"{self.name}:{line.custom_id}",
            payload=line.body,
            deadline_ms=self.deadline_ms,
            tenant=self.tenant,
            path=line.url,
            objective=self.objective,
            created_ms=self.created_ms,
        )


@dataclass(frozen=True, slots=True)
class Submitted:
    """A request that the queue has, under the id of its line."""

    custom_id: str
    id: str
    token: str


async def submit_all(
    queue: Queue, lines: Collection[BatchLine], order: Order, progress: Progress
) -> list[Submitted]:
    """Submit them all; those that an earlier try submitted are found again. Raises QueueError and BatchFileError."""
    done = 0

    async def submit(line: BatchLine) -> Submitted:
        nonlocal done
        request, key = order.request(line), f"batch:{order.name}:{line.custom_id}"
        try:
            accepted = await _patiently(lambda: queue.submit(request, idempotency_key=key))
        except (ValueError, ConflictError) as error:
            raise BatchFileError(f"custom_id {line.custom_id!r}: {error}") from error
        done += 1
        progress.at("submitted", done, len(lines))
        return Submitted(line.custom_id, accepted.id, accepted.token)

    return await _all(lines, submit)


async def collect(queue: Queue, submitted: Collection[Submitted], out: BinaryIO, progress: Progress) -> int:
    """Write each result as soon as it is there; how many were errors. Raises QueueError."""
    done = failed = 0

    async def wait(one: Submitted) -> None:
        nonlocal done, failed
        result = await _result(queue, one)
        out.write(result_line(one.custom_id, result))
        out.flush()
        done += 1
        failed += result.error_code is not None or result.status_code >= 400
        progress.at("answered", done, len(submitted))

    await _all(submitted, wait)
    return failed


async def _result(queue: Queue, one: Submitted) -> Result:
    while True:
        result = await _patiently(lambda: queue.wait_result(one.id, one.token, timeout=HELD))
        if result is not None:
            return result
        state, result = await _patiently(lambda: queue.state(one.id, one.token))
        if state is State.UNKNOWN:
            raise QueueError(
                f"the queue knows nothing of {one.id!r} any more: its result was taken by another consumer, or kept no "
                "longer"
            )


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Through an outage of the broker; every question may be asked twice."""
    pause, waited = FIRST_PAUSE, 0.0
    while True:
        try:
            return await ask()
        except ConflictError:
            raise
        except QueueError:
            if waited >= OUTAGE:
                raise
        await asyncio.sleep(pause)
        waited += pause
        pause = min(LONGEST_PAUSE, pause * 2)


A = TypeVar("A")


async def _all(items: Iterable[A], work: Callable[[A], Awaitable[T]]) -> list[T]:
    """In order of `items`, a few at once; the first error ends the others."""
    results: dict[int, T] = {}
    left = enumerate(items)

    async def take() -> None:
        for index, item in left:
            results[index] = await work(item)

    tasks = [asyncio.ensure_future(take()) for _ in range(AT_ONCE)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return [results[index] for index in range(len(results))]
