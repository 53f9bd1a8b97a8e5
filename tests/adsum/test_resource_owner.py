from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from adsum.resource_owner import ResourceOwner


class Owner(ResourceOwner):
    def __init__(self, *resources: str) -> None:
        self._resources = resources
        self.log: list[str] = []

    async def _open(self) -> None:
        for name in self._resources:
            await self._stack.enter_async_context(self._resource(name))

    @asynccontextmanager
    async def _resource(self, name: str) -> AsyncIterator[None]:
        if name == "broken":
            raise OSError(name)
        self.log.append(f"open {name}")
        yield
        self.log.append(f"close {name}")


async def test_resources_close_in_reverse_order() -> None:
    async with Owner("a", "b") as owner:
        assert owner.log == ["open a", "open b"]
    assert owner.log[2:] == ["close b", "close a"]


async def test_a_failed_open_closes_what_was_open() -> None:
    owner = Owner("a", "broken", "b")
    with pytest.raises(OSError, match="broken"):
        await owner.__aenter__()
    assert owner.log == ["open a", "close a"]
