"""Opens the queue that the flags of a command name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from adsum.config.problems import ConfigError
from dispatcher.broker.contract.queue import Broker, Queue, QueueRules
from dispatcher.broker.contract.validation import checked_name
from dispatcher.broker.opening import checked_broker_url, open_broker
from dispatcher.cli.flags import QueueFlags


class OpenedQueue(NamedTuple):
    """A queue, its broker and its rules."""

    broker: Broker
    queue: Queue
    rules: QueueRules


@asynccontextmanager
async def open_queue(locator: QueueFlags) -> AsyncIterator[OpenedQueue]:
    """Raises ConfigError, QueueError and OSError."""
    if locator.config is not None:
        url, name, rules = _read_config(locator.config, locator.queue)
    else:
        url, name, rules = locator.broker or "", locator.queue or "", QueueRules()
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
