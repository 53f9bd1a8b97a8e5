"""The command submit: sends the lines of a batch file to a queue and collects their results.

Given again, the same command continues where it stopped.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, TypeVar

from adsum.command_line import ANSWERS_ARE_ERRORS, SUCCEEDED, program
from adsum.config.problems import ConfigError
from adsum.tasks import background, cancel_and_wait
from dispatcher.broker.contract.message import Request, Result
from dispatcher.broker.contract.queue import ConflictError, Queue, QueueError, State
from dispatcher.cli import batch_file
from dispatcher.cli.commands import open_queue
from dispatcher.cli.progress import FailureSummary, Progress, show_progress

CONCURRENCY = 64
"""Requests that are submitted, or waited for, at the same time."""
WAIT_TIMEOUT = 30.0
"""Seconds of one wait for a result."""
MAX_OUTAGE = 120.0
"""Seconds without the broker after which the batch stops; it can be run again."""
NO_ANSWER_HINT = (
    "no answer comes: does the dispatcher run, does its log say that it reaches the target, and is the queue's gate open? "
    f"`{program('dispatcher')} --config FILE --dry-run` says what the gate reads and what would go"
)
INITIAL_PAUSE = 0.2
MAX_PAUSE = 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """The parts that all requests of a batch share. `name` makes their idempotency keys, by which a second run is recognised."""

    name: str
    tenant: str
    deadline_ms: int
    created_ms: int
    objective: str = ""

    def request(self, line: batch_file.BatchLine) -> Request:
        return Request(
            id=f"{self.name}:{line.custom_id}",
            payload=line.body,
            deadline_ms=self.deadline_ms,
            tenant=self.tenant,
            path=line.url,
            objective=self.objective,
            created_ms=self.created_ms,
        )

    def remedy(self) -> str:
        """Advice if a line was submitted before with another request."""
        dated = datetime.fromtimestamp(self.created_ms / 1000, UTC).strftime(f"{self.name}-%Y-%m-%d")
        return f"to ask anew, give this run a name of its own, --batch {dated}, and a results file of its own"


@dataclass(frozen=True, slots=True)
class SubmittedRequest:
    """A request that is in the queue. `new`: no earlier run had submitted it."""

    line: batch_file.BatchLine
    id: str
    token: str
    new: bool


def unanswered(
    lines: Iterable[batch_file.BatchLine], answered: Mapping[str, str], results: Path, settings: BatchSettings
) -> list[batch_file.BatchLine]:
    """The lines without an answer in `results`; raises BatchFileError if one was answered for another request."""
    left = []
    for line in lines:
        kept = answered.get(line.custom_id)
        if kept is None:
            left.append(line)
        elif kept not in ("", line.sha256):
            raise batch_file.BatchFileError(
                f"{line.location}: {results} has an answer to custom_id {line.custom_id!r}, but to another path or body; "
                f"{settings.remedy()}"
            )
    return left


async def submit_all(
    queue: Queue, lines: Collection[batch_file.BatchLine], settings: BatchSettings, progress: Progress
) -> list[SubmittedRequest]:
    """Submit all lines; the queue returns those of an earlier run. Raises QueueError and BatchFileError."""
    done = 0

    async def submit(line: batch_file.BatchLine) -> SubmittedRequest:
        nonlocal done
        # The key makes a second run return the request of the first: nothing is sent twice.
        request, key = settings.request(line), f"batch:{settings.name}:{line.custom_id}"
        try:
            accepted = await _retry_while_away(lambda: queue.submit(request, idempotency_key=key))
        except ConflictError as error:
            message = f"{error}: batch {settings.name!r} was submitted before with another path or body here"
            raise batch_file.BatchFileError(
                f"{line.location}: custom_id {line.custom_id!r}: {message}; {settings.remedy()}"
            ) from error
        except ValueError as error:
            raise batch_file.BatchFileError(
                f"{line.location}: custom_id {line.custom_id!r}: {error}"
            ) from error
        done += 1
        progress.update("submitted", done, len(lines))
        return SubmittedRequest(line, accepted.id, accepted.token, accepted.token == request.token)

    return await _map_concurrently(lines, submit)


async def collect(
    queue: Queue,
    submitted: Collection[SubmittedRequest],
    out: BinaryIO,
    progress: Progress,
    *,
    interval: float = 1.0,
    hint_after: float = 10.0,
) -> FailureSummary:
    """Write each result when it arrives; returns the errors among them. Raises QueueError.

    `interval`: seconds between two updates. After `hint_after` seconds without an answer the user gets a hint.
    """
    done, failures = 0, FailureSummary()
    latest = time.monotonic()

    async def watch() -> None:
        hinted = False
        while True:
            await asyncio.sleep(interval)
            progress.update("answered", done, len(submitted))
            if not hinted and time.monotonic() - latest >= hint_after:
                hinted = True
                progress.hint(NO_ANSWER_HINT)

    async def wait(one: SubmittedRequest) -> None:
        nonlocal done, latest
        result = await _result(queue, one)
        out.write(batch_file.result_line(one.line.custom_id, result, one.line.sha256))
        out.flush()
        latest = time.monotonic()
        done += 1
        failures.add(one.line.custom_id, result)
        progress.update("answered", done, len(submitted))

    async with background(watch()):
        await _map_concurrently(submitted, wait)
    return failures


async def _result(queue: Queue, one: SubmittedRequest) -> Result:
    while True:
        state, result = await _retry_while_away(lambda: queue.state(one.id, one.token))
        if state is State.UNKNOWN:
            raise QueueError(
                f"the queue knows nothing of {one.id!r} any more: its result was taken by another consumer, or kept no "
                "longer"
            )
        result = result or await _retry_while_away(
            lambda: queue.wait_result(one.id, one.token, timeout=WAIT_TIMEOUT)
        )
        if result is not None:
            return result


async def _retry_while_away(ask: Callable[[], Awaitable[T]]) -> T:
    """Call `ask` until the broker answers; it may be called twice, since an answer can be lost."""
    pause, waited = INITIAL_PAUSE, 0.0
    while True:
        try:
            return await ask()
        except ConflictError:
            raise
        except QueueError:
            if waited >= MAX_OUTAGE:
                raise
        await asyncio.sleep(pause)
        waited += pause
        pause = min(MAX_PAUSE, pause * 2)


A = TypeVar("A")


async def _map_concurrently(items: Iterable[A], work: Callable[[A], Awaitable[T]]) -> list[T]:
    """The results in the order of `items`, `CONCURRENCY` at once; the first error cancels the others."""
    results: dict[int, T] = {}
    left = enumerate(items)

    async def take() -> None:
        for index, item in left:
            results[index] = await work(item)

    tasks = [asyncio.ensure_future(take()) for _ in range(CONCURRENCY)]
    try:
        await asyncio.gather(*tasks)
    finally:
        await cancel_and_wait(*tasks)
    return [results[index] for index in range(len(results))]


async def submit(flags: argparse.Namespace) -> int:
    """Returns 0, or 3 if some answers are errors. Raises BatchFileError, ConfigError, QueueError and OSError."""
    # the whole file is checked before its first line is sent
    all_lines = batch_file.read_lines(flags.file)
    if not all_lines:
        raise batch_file.BatchFileError(f"{flags.file}: there is no request in it; {batch_file.EXPECTED}")
    done = batch_file.read_answered(flags.results) if flags.results is not None else {}
    async with open_queue(flags) as (broker, queue, rules), AsyncExitStack() as stack:
        if flags.results is not None and rules.result_list:
            raise ConfigError(
                "--results", f"the results of queue {queue.name!r} go to the Redis list {rules.result_list!r}"
            )
        out = None if flags.results is None else stack.enter_context(batch_file.open_results(flags.results))
        now = await broker.now_ms()
        deadline_ms = now + int(flags.deadline * 1000)
        settings = BatchSettings(flags.batch, flags.tenant, deadline_ms, now, flags.objective)
        lines = all_lines
        if flags.results is not None:
            lines = unanswered(all_lines, done, flags.results, settings)
        with show_progress() as bar:
            submitted = await submit_all(queue, lines, settings, bar)
            new = sum(one.new for one in submitted)
            answered = len(all_lines) - len(lines)
            bar.hint(
                f"batch {flags.batch!r}, queue {queue.name!r}: {new} requests submitted, "
                f"{len(submitted) - new} had been submitted before"
                + (f", {answered} are answered in {flags.results}" if answered else "")
            )
            if out is None:
                return 0
            failures = await collect(queue, submitted, out, bar)
    before = f", {answered} of them from before; of the others" if answered else ":"
    print(f"{len(all_lines)} answers in {flags.results}{before} {failures}", file=sys.stderr)
    return ANSWERS_ARE_ERRORS if failures.total else SUCCEEDED
