"""From a URL to a broker, and to what only one kind of broker can do."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol
from urllib.parse import urlsplit

from dispatcher.broker.queue import Broker, QueueRules
from dispatcher.broker.result_lists import ResultLists
from dispatcher.config.urls import broker_files


class Intake(Protocol):
    """What moves foreign messages into a queue."""

    @property
    def problem(self) -> str:
        """Why nothing comes in; empty while it does."""


def open_broker(url: str) -> AbstractAsyncContextManager[Broker]:
    """redis://, rediss://, unix:// or memory://; entering raises QueueError where nobody answers.

    Raises OSError for a certificate or a key that the URL names and that cannot be read.
    """
    if urlsplit(url).scheme == "memory":
        from dispatcher.broker.memory.broker import MemoryBroker

        return MemoryBroker()
    for name in broker_files(url):
        with open(name, "rb"):  # else the client says that nobody answers
            pass
    from dispatcher.broker.redis.broker import RedisBroker  # the client is imported only where it is used

    return RedisBroker(url)


async def eviction_warning(broker: Broker) -> str:
    """Why the broker may drop what is queued, for the log; empty: it does not, or does not tell."""
    policy = getattr(broker, "eviction_policy", None)
    found = await policy() if policy is not None else None
    if found in (None, "noeviction"):
        return ""
    return (
        f"the broker's maxmemory-policy is {found}: when its memory is full it drops queued requests and results; "
        "set maxmemory-policy to noeviction"
    )


def open_intake(
    broker: Broker, queue: str, rules: QueueRules, *, key: str, tenant_attribute: str, lists: ResultLists
) -> AbstractAsyncContextManager[Intake]:
    """Moves what Go producers put into the sorted set `key`; entering raises QueueError."""
    from dispatcher.broker.redis.broker import RedisBroker
    from dispatcher.broker.redis.intake import GoSource

    if not isinstance(broker, RedisBroker):
        raise TypeError(f"queue {queue!r} has an intake, which needs a Redis broker")
    return broker.go_intake(queue, rules, GoSource(key, tenant_attribute, lists))
