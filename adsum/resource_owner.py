"""Base class of async context managers that enter other ones."""

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self


class ResourceOwner:
    """Subclasses enter what they own on `self._stack` in `_open`; leaving closes it all, last in, first out.

    When `_open` raises, what was entered so far is closed first.
    """

    _stack: AsyncExitStack

    async def _open(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
