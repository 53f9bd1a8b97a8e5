"""From a URL to a broker, and to what only one kind of broker can do."""

from contextlib import AbstractAsyncContextManager
from urllib.parse import urlsplit

from dispatcher.queue import Broker, Rules


def open_broker(url: str) -> AbstractAsyncContextManager[Broker]:
    """redis://, rediss://, unix:// or memory://; entering raises QueueError where nobody answers."""
    if urlsplit(url).scheme == "memory":
        from dispatcher.memory.broker import MemoryBroker

        return MemoryBroker()
    from dispatcher.redis.broker import RedisBroker  # the client is imported only where it is used

    return RedisBroker(url)


def open_intake(
    broker: Broker, queue: str, rules: Rules, *, key: str, tenant_attribute: str
) -> AbstractAsyncContextManager[object]:
    """Moves what Go producers put into the sorted set `key`; entering raises QueueError."""
    from dispatcher.redis.broker import RedisBroker
    from dispatcher.redis.intake import GoSource

    if not isinstance(broker, RedisBroker):
        raise TypeError(f"queue {queue!r} has an intake, which needs a Redis broker")
    return broker.go_intake(queue, rules, GoSource(key, tenant_attribute))
