"""Opens a broker by its URL, and its intakes; brokers of installed packages, one for each scheme in `adsum.brokers`."""

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from adsum.config.problems import ConfigError
from adsum.entry_points import PluginGroup, in_one_line
from dispatcher.broker.contract.queue import Broker, QueueError, QueueRules
from dispatcher.broker.redis.go_queues.go_message import ResultLists
from dispatcher.broker.urls import REDIS_SCHEMES, broker_files, broker_url, scheme_of

BROKERS: Final = PluginGroup("adsum.brokers", "URL scheme", ("memory", *REDIS_SCHEMES))

_EXPECTED: Final = "dispatcher.extension.OpenBroker"
_ENTERS: Final = ("__aenter__", "__aexit__")
_METHODS: Final = ("now_ms", "ping", "queue", "ledger", "quotas")
"""Checked by name: a Protocol cannot be, since its classes need not derive from it."""


class OpenBroker(Protocol):
    """A function from a URL to a broker."""

    def __call__(self, url: str, /) -> AbstractAsyncContextManager[Broker]:
        """Raises ValueError for an invalid URL; the text is shown, so it must not quote a password.

        Must not do I/O: entering the broker does. It is also called only to check a URL.
        """


def opened(url: str) -> AbstractAsyncContextManager[Any] | None:
    """The broker of an installed package, not entered; None if none declares the scheme. Raises ValueError."""
    try:
        made: AbstractAsyncContextManager[Any] | None = BROKERS.open(
            scheme_of(url), url, expected=_EXPECTED, members=_ENTERS
        )
    except ValueError as error:
        raise ValueError(without_password(str(error), url)) from error
    return made


def without_password(text: str, url: str) -> str:
    """A package's text as we show it: its author may have quoted the URL."""
    try:
        password = urlsplit(url).password or ""
    except ValueError:
        password = ""
    whole = url if url.partition("://")[2] else ""  # the scheme alone is no secret
    for secret in (whole, password, unquote(password)):
        text = text.replace(secret, "***") if secret else text
    return text


class InstalledBroker(AbstractAsyncContextManager[Broker]):
    """Enters the broker of a package, and tells its faults from a server that is away."""

    def __init__(self, url: str) -> None:
        """Raises ValueError for an invalid URL."""
        made = opened(url)
        if made is None:
            raise ValueError(f"no installed package declares the {BROKERS.what} {scheme_of(url)!r}")
        self._url = url
        self._made = made

    async def __aenter__(self) -> Broker:
        try:
            entered = await self._made.__aenter__()
        except (QueueError, OSError):
            raise
        except Exception as error:
            raise self._fault(f"cannot be opened: {in_one_line(error)}") from error
        missing = [name for name in _METHODS if not hasattr(entered, name)]
        if missing:
            await self._made.__aexit__(None, None, None)
            raise self._fault(
                f"entered a {type(entered).__name__} without {', '.join(missing)}; expected a dispatcher.extension.Broker"
            )
        broker: Broker = entered
        return broker

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._made.__aexit__(kind, error, trace)

    def _fault(self, problem: str) -> ConfigError:
        scheme = scheme_of(self._url)
        package = BROKERS.packages().get(scheme, "")
        said = BROKERS.unusable(scheme, package, without_password(problem, self._url))
        return ConfigError("broker", str(said))


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
