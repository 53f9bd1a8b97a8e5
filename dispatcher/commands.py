"""`python -m dispatcher submit|status|cancel|dead-letters`: a queue, for people."""

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import NamedTuple

from dispatcher import batch, batchfile, progress
from dispatcher.acceptance import checked_name
from dispatcher.config import Config, ConfigError
from dispatcher.flags import LookFlags, Place, SubmitFlags, parse_look, parse_submit
from dispatcher.frontdoor import described
from dispatcher.message import DeadLetter
from dispatcher.opening import open_broker
from dispatcher.queue import Broker, Queue, Rules, State
from dispatcher.reloading import load
from dispatcher.urls import broker_url


class Opened(NamedTuple):
    """A queue and where it is."""

    broker: Broker
    queue: Queue
    rules: Rules


@asynccontextmanager
async def opened(place: Place) -> AsyncIterator[Opened]:
    """The queue that the flags name; raises ConfigError and QueueError."""
    url, name, rules = place.broker or "", place.queue or "", Rules()
    if place.config is not None:
        config = load(place.config)
        chosen = config.queue(place.queue or _only(config))
        url, name, rules = config.broker, chosen.name, chosen.rules
    try:
        broker_url(url)
    except ValueError as error:
        raise ConfigError("--broker", str(error)) from error
    try:
        checked_name(name)
    except ValueError as error:
        raise ConfigError("--queue", str(error)) from error
    if url.startswith("memory:"):
        raise ConfigError(
            "broker", "the queue of memory:// lives in the dispatcher itself; use its front door"
        )
    async with open_broker(url) as broker, broker.queue(name, rules) as queue:
        yield Opened(broker, queue, rules)


def _only(config: Config) -> str:
    if len(config.queues) != 1:
        names = ", ".join(queue.name for queue in config.queues) or "none"
        raise ConfigError("--queue", f"say which queue; there are: {names}")
    return config.queues[0].name


async def submit(flags: SubmitFlags) -> int:
    """0: all submitted, and answered where results are wanted; 3: some answers are errors."""
    everything = list(
        batchfile.read_lines(flags.file)
    )  # the whole file is checked before its first line is sent
    if not everything:
        raise batchfile.BatchFileError(f"{flags.file}: there is no request in it; {batchfile.EXPECTED}")
    done = batchfile.finished(flags.results) if flags.results is not None else {}
    async with opened(flags.place) as (broker, queue, rules), AsyncExitStack() as stack:
        if flags.results is not None and rules.result_list:
            raise ConfigError(
                "--results", f"the results of queue {queue.name!r} go to the Redis list {rules.result_list!r}"
            )
        out = stack.enter_context(flags.results.open("ab")) if flags.results is not None else None
        now = await broker.now_ms()
        deadline_ms = now + int(flags.deadline * 1000)
        order = batch.Order(flags.batch, flags.tenant, deadline_ms, now, flags.objective)
        lines = everything
        if flags.results is not None:
            lines = batch.unanswered(everything, done, flags.results, order)
        with progress.shown() as bar:
            submitted = await batch.submit_all(queue, lines, order, bar)
            new = sum(one.new for one in submitted)
            bar.hint(
                f"batch {flags.batch!r}, queue {queue.name!r}: {new} requests submitted, "
                f"{len(submitted) - new} had been submitted before"
            )
            if out is None:
                return 0
            failed = await batch.collect(queue, submitted, out, bar)
    _say(
        f"{len(everything)} answers in {flags.results}, {len(everything) - len(lines)} of them from before, "
        f"{failed} errors among the rest"
    )
    return 3 if failed else 0


async def status(flags: LookFlags) -> int:
    """0; 1 where a request is not known."""
    async with opened(flags.place) as (_, queue, _):
        if not flags.ids:
            _print(asdict(await queue.totals()), flags.json)
            return 0
        unknown = 0
        for id in flags.ids:
            state, result = await queue.state(id)
            unknown += state is State.UNKNOWN
            _print(described(id, state, result), flags.json)
    return 1 if unknown else 0


async def cancel(flags: LookFlags) -> int:
    """0; 1 where a request is not known."""
    unknown = 0
    async with opened(flags.place) as (_, queue, _):
        for id in flags.ids:
            before = await queue.cancel(id)
            unknown += before is State.UNKNOWN
            told = {State.UNKNOWN: "not known", State.DONE: "was answered already"}.get(before, "cancelled")
            _print({"id": id, "was": before.value, "cancelled": told == "cancelled"}, flags.json)
    return 1 if unknown else 0


async def dead_letters(flags: LookFlags) -> int:
    """0."""
    async with opened(flags.place) as (_, queue, _):
        for letter in await queue.dead_letters(flags.limit):
            _print(_described(letter), flags.json)
    return 0


def _described(letter: DeadLetter) -> dict[str, object]:
    at = datetime.fromtimestamp(letter.at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return {"at": at, "id": letter.id, "reason": letter.reason, "raw": letter.raw.decode(errors="replace")}


def _print(document: Mapping[str, object], as_json: bool) -> None:
    if as_json:
        print(json.dumps(document))
        return
    for name, value in document.items():
        shown = value if isinstance(value, str | int | float) else json.dumps(value, ensure_ascii=False)
        print(f"{name:>14}  {shown}")
    print()


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def parsed(command: str, arguments: Sequence[str]) -> Callable[[], Awaitable[int]]:
    """What to run for a command; exits with 2 on bad flags."""
    if command == "submit":
        flags = parse_submit(arguments)
        return lambda: submit(flags)
    look = parse_look(command, arguments)
    work = {"status": status, "cancel": cancel, "dead-letters": dead_letters}[command]
    return lambda: work(look)
