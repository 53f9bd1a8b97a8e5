"""The commands status, cancel and dead-letters, and the queue that the flags of a command name."""

import argparse
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from adsum.command_line import FAILED, print_error
from adsum.config.problems import ConfigError
from dispatcher.broker.contract.message import DeadLetter
from dispatcher.broker.contract.queue import Broker, Queue, QueueRules, State
from dispatcher.broker.contract.validation import checked_name
from dispatcher.broker.opening import checked_broker_url, open_broker
from dispatcher.web.request_view import render_request


class OpenedQueue(NamedTuple):
    """A queue, its broker and its rules."""

    broker: Broker
    queue: Queue
    rules: QueueRules


@asynccontextmanager
async def open_queue(flags: argparse.Namespace) -> AsyncIterator[OpenedQueue]:
    """By --config, else by --broker and --queue with the default rules. Raises ConfigError, QueueError and OSError."""
    if flags.config is not None:
        url, name, rules = _read_config(flags.config, flags.queue)
    else:
        url, name, rules = flags.broker or "", flags.queue or "", QueueRules()
    try:
        checked_broker_url(url)
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
        yield OpenedQueue(broker, queue, rules)


def _read_config(path: Path, name: str | None) -> tuple[str, str, QueueRules]:
    """Broker URL, queue name and rules; `name` may be None if there is only one queue."""
    from dispatcher.config.reloader import load  # importing it takes longer than most commands

    config = load(path)
    if name is None and len(config.queues) != 1:
        names = ", ".join(queue.name for queue in config.queues) or "none"
        raise ConfigError("--queue", f"say which queue; there are: {names}")
    chosen = config.queue(name or config.queues[0].name)
    return config.broker, chosen.name, chosen.rules


async def status(flags: argparse.Namespace) -> int:
    async with open_queue(flags) as (_, queue, _):
        if not flags.ids:
            _print(asdict(await queue.totals()), flags.json)
            return 0
        unknown = []
        for id in flags.ids:
            state, result = await queue.state(id)
            unknown += [id] if state is State.UNKNOWN else []
            _print(render_request(id, state, result), flags.json)
        return _exit_code_of(unknown, queue)


async def cancel(flags: argparse.Namespace) -> int:
    unknown = []
    async with open_queue(flags) as (_, queue, _):
        for id in flags.ids:
            before = await queue.cancel(id)
            unknown += [id] if before is State.UNKNOWN else []
            outcome = {State.UNKNOWN: "not known", State.DONE: "was answered already"}.get(
                before, "cancelled"
            )
            _print({"id": id, "was": before.value, "cancelled": outcome == "cancelled"}, flags.json)
        return _exit_code_of(unknown, queue)


async def dead_letters(flags: argparse.Namespace) -> int:
    async with open_queue(flags) as (_, queue, _):
        for letter in await queue.dead_letters(flags.limit):
            _print(_render_letter(letter), flags.json)
    return 0


def _exit_code_of(ids: Sequence[str], queue: Queue) -> int:
    """1 with an error on stderr if a request is unknown, else 0."""
    if not ids:
        return 0
    return print_error(
        f"the queue {queue.name!r} does not know {', '.join(map(repr, ids))}; expected the id of a request that was "
        "submitted to it (of a batch: NAME:custom_id) and whose result is kept; `status` without an id counts what is there",
        FAILED,
    )


def _render_letter(letter: DeadLetter) -> dict[str, object]:
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


HANDLERS: Final[Mapping[str, Callable[[argparse.Namespace], Coroutine[Any, Any, int]]]] = {
    "status": status,
    "cancel": cancel,
    "dead-letters": dead_letters,
}
"""By command; each returns an exit code."""
