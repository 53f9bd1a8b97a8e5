"""Wake-ups that nobody misses: who knows what was counted waits for what comes after."""

import asyncio


class Changes:
    """Counts wake-ups, so that whoever knows a count misses none."""

    def __init__(self) -> None:
        self.count = 0
        self._told = asyncio.Event()

    def tell(self) -> None:
        """Wake all that wait."""
        self.count += 1
        self._told.set()
        self._told = asyncio.Event()

    async def wait(self, timeout: float, seen: int = -1) -> None:
        """Until the count is no longer `seen` (-1: what it is at the call), at most `timeout` seconds."""
        if seen not in (-1, self.count):
            return
        try:
            async with asyncio.timeout(timeout):
                await self._told.wait()
        except TimeoutError:
            return
