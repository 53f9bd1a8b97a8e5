"""Opens a broker by its URL, and its intakes; warns if the broker may evict queued requests."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol
from urllib.parse import urlsplit

from dispatcher.broker.contract.queue import Broker, QueueRules
from dispatcher.broker.installed import BROKERS, InstalledBroker, opened
from dispatcher.broker.redis.go_queues.result_lists import ResultLists
from dispatcher.broker.urls import REDIS_SCHEMES, broker_files, broker_url, scheme_of


class Intake(AbstractAsyncContextManager[object], Protocol):
    """Moves the messages of Go producers into a queue while it is entered."""

    @property
    def problem(self) -> str:
        """Why it moves nothing; empty while it works. Shown on /readyz."""

    async def check(self) -> None:
        """Raises QueueError if the broker cannot have an intake. Entered after that, it raises nothing."""


def checked_broker_url(url: str) -> str:
    """The URL, if a broker can be opened by it; else raises ValueError, whose text quotes no password. Does no I/O."""
    if scheme_of(url) in ("", *BROKERS.built_in):
        return broker_url(url)
    if opened(url) is None:
        installed = "".join(f"; {name}://... ({package})" for name, package in BROKERS.packages().items())
        try:
            broker_url(url)
        except ValueError as error:
            raise ValueError(f"{error}{installed}") from error
    return url


def has_go_queues(url: str) -> bool:
    """Whether the broker reads and writes the queues of llm-d's Go processor: intakes, and lists of results."""
    return url.partition(":")[0].lower() in REDIS_SCHEMES


def open_broker(url: str) -> AbstractAsyncContextManager[Broker]:
    """A broker for redis://, rediss://, unix://, memory:// or the scheme of an installed package.

    Raises OSError if a certificate or key file in the URL cannot be read, ValueError for an invalid URL. Entering it
    raises QueueError if the server is away, and ConfigError for a fault of the installed package.
    """
    if scheme_of(url) not in ("", *BROKERS.built_in):
        return InstalledBroker(url)
    if urlsplit(url).scheme == "memory":
        from dispatcher.broker.memory.broker import MemoryBroker

        return MemoryBroker()
    for name in broker_files(url):
        with open(name, "rb"):  # the client would report an unreadable file as a server that does not answer
            pass
    from dispatcher.broker.redis.broker import RedisBroker  # not at the top: memory:// needs no Redis client

    return RedisBroker(url)


async def eviction_warning(broker: Broker) -> str:
    """A warning for the log if the broker may evict queued requests; empty if not, or if it does not tell its policy.

    Redis evicts keys at `maxmemory` with any policy but noeviction: https://redis.io/docs/latest/develop/reference/eviction/
    """
    policy = getattr(broker, "eviction_policy", None)
    found = await policy() if policy is not None else None
    if found in (None, "noeviction"):
        return ""
    return (
        f"the broker's maxmemory-policy is {found}: when its memory is full it evicts queued requests and results; "
        "set maxmemory-policy to noeviction"
    )


def open_intake(
    broker: Broker, queue: str, rules: QueueRules, *, key: str, tenant_attribute: str, lists: ResultLists
) -> Intake:
    """An intake from the sorted set `key`; raises ValueError for a broker that is not Redis."""
    from dispatcher.broker.redis.broker import RedisBroker
    from dispatcher.broker.redis.go_queues.intake import GoSource

    if not isinstance(broker, RedisBroker):
        raise ValueError(f"queue {queue!r} has an intake, which needs a Redis broker")  # noqa: TRY004
    return broker.go_intake(queue, rules, GoSource(key, tenant_attribute, lists))
