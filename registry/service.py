"""The protocols that workers type against: `ServiceRegistry`, `Registration`, `InstanceHandle`."""

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias

from discovery.instance import Instance, InstanceStatus

StatusWord: TypeAlias = Literal["ready", "not_ready", "draining"]
"""The values of `InstanceStatus`, so that type checkers reject other strings."""


class InstanceHandle(Protocol):
    """A worker's own registration. The synchronous methods may be called from any thread."""

    @property
    def instance(self) -> Instance:
        """The instance as it is published now; `port` is where the wire contract is served."""
        ...

    def instance_id(self) -> str: ...

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the published document: a JSON object of at most 1 MiB.

        Raises TypeError or ValueError, which name the invalid value; the old document then stays published.
        `RegistrationError` once the handle is closed.
        """
        ...

    def set_ready(self, status: InstanceStatus | StatusWord, reason: str | None = None) -> None:
        """`status` is "ready", "not_ready" or "draining", else ValueError. Ignored once a drain has begun.

        `reason` says why the worker is not ready, for people: `explain` and `/health` show it.
        Raises `RegistrationError` if the source of truth cannot be written, or once the handle is closed. A source that does
        not answer is not waited for: the last status is written once it answers.
        """
        ...

    def busy(self) -> AbstractContextManager[None]:
        """`with handle.busy(): ...` around each request; a drain waits for it."""
        ...

    async def drain(self, timeout: float) -> None:
        """Report DRAINING at once, wait until no request is busy, at most `timeout` seconds, then close for every user."""
        ...

    def drain_on_sigterm(self, timeout: float = 30.0) -> None:
        """On SIGTERM, drain, then run the previous SIGTERM action: the handler of uvicorn or aiohttp, else SystemExit.

        A second SIGTERM cuts the drain short. RuntimeError outside the main thread: Python runs signal handlers there.
        """
        ...

    async def close(self) -> None:
        """Leave. If one key was registered several times on one registry, the last `close` leaves."""
        ...


class Registration(Protocol):
    """The result of `register_instance`: `await` it for the handle, or enter it (`async with`) to close it at the end."""

    def __await__(self) -> Generator[Any, None, InstanceHandle]: ...
    async def __aenter__(self) -> InstanceHandle: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ServiceRegistry(Protocol):
    """An async context manager that closes its handles at the end. It need not be entered."""

    def register_instance(self, namespace: str, component: str) -> Registration:
        """Register this worker as NOT_READY. A second call for one key returns the same handle, for both to close.

        Raises ValueError for a name that is not a DNS-1123 label; awaiting raises `RegistrationError`.
        """
        ...

    async def aclose(self) -> None: ...
    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
