"""Brokers of installed packages: one for each URL scheme in the entry point group `adsum.brokers`."""

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from adsum.config.problems import ConfigError
from adsum.entry_points import PluginGroup, in_one_line
from dispatcher.broker.contract.queue import Broker, QueueError
from dispatcher.broker.urls import REDIS_SCHEMES, scheme_of

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
    """What an installed package opens, not entered; None if none declares the scheme. Raises ValueError."""
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
