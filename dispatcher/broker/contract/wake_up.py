"""Wake-ups that cannot be missed: each has a number, and who knows the last number waits for the next one."""

import asyncio


class Changes:
    """Counts wake-ups. Read `count`, check the state, then `wait` with that count: no change in between is missed.

    A bare `asyncio.Event` loses the change that comes after the check and before the wait.
    """

    def __init__(self) -> None:
        self.count = 0
        self._event = asyncio.Event()

    def tell(self) -> None:
        """Wake everybody who waits."""
        self.count += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, timeout: float, seen: int = -1) -> None:
        """Return when `count` differs from `seen` (-1: from its value now), at most after `timeout` seconds."""
        if seen not in (-1, self.count):
            return
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return
