"""What workers type against: the registry, the grip on one registration, and how it is taken."""

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias

from discovery.instance import Instance, InstanceStatus

StatusWord: TypeAlias = Literal["ready", "not_ready", "draining"]
"""The values of `InstanceStatus`, for a type checker to read."""


class InstanceHandle(Protocol):
    """A worker's grip on its own registration. The synchronous calls may come from any thread."""

    @property
    def instance(self) -> Instance:
        """As it is announced now; `port` is where the wire contract is served."""
        ...

    def instance_id(self) -> str: ...

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Publish another document, whole: a JSON object of at most 1 MiB.

        Raises TypeError or ValueError that name the place; then the old document stays. `RegistrationError` once
        the handle is closed.
        """
        ...

    def set_ready(self, status: InstanceStatus | StatusWord, reason: str | None = None) -> None:
        """One of "ready", "not_ready", "draining" (ValueError otherwise). A drain that has begun is not taken back.
        `reason` says why it is not ready, for people: `explain` and `/health` show it.

        Raises `RegistrationError` when the source of truth cannot be told, or once the handle is closed.
        """
        ...

    def busy(self) -> AbstractContextManager[None]:
        """Work that a drain waits for: `with handle.busy(): ...` around each request."""
        ...

    async def drain(self, timeout: float) -> None:
        """Say DRAINING at once, wait until nothing is busy or `timeout` seconds passed, then close for every user."""
        ...

    def drain_on_sigterm(self, timeout: float = 30.0) -> None:
        """On SIGTERM drain, then do what SIGTERM did before: the handler of uvicorn or aiohttp, or the program's end.

        A second SIGTERM cuts the drain short. RuntimeError outside the main thread: only there signals arrive.
        """
        ...

    async def close(self) -> None:
        """Leave. Where one key was registered several times on one registry, the last release leaves."""
        ...


class Registration(Protocol):
    """An instance about to be registered: await it for the handle, or enter it (`async with`) and leave by leaving."""

    def __await__(self) -> Generator[Any, None, InstanceHandle]: ...

    async def __aenter__(self) -> InstanceHandle: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ServiceRegistry(Protocol):
    """I am here. An async context manager; leaving it closes its handles. Need not be entered."""

    def register_instance(self, namespace: str, component: str) -> Registration:
        """Register this worker, NOT_READY. Twice for one key: the same handle, closed after the last release.

        Raises ValueError for a name that is no DNS-1123 label; awaiting raises `RegistrationError`.
        """
        ...

    async def aclose(self) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
