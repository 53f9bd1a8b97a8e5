"""An event loop whose clock jumps: hours of back-off pass in milliseconds. For tests without sockets."""

import asyncio
import selectors
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias


class _JumpingSelector(selectors.BaseSelector):
    """Where a real selector would wait for a timer, the clock is moved to it instead."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return self._real.select(None)  # nothing is due ever: only a thread can wake us
        ready = self._real.select(0)
        if not ready and timeout > 0:
            self.now += timeout
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`time()` starts at 1000 s and moves only when everybody waits."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def stop_the_world(self, seconds: float) -> None:
        """As when the process is stopped or its loop is blocked: time passes and no task runs."""
        self._jumping.now += seconds


Backend: TypeAlias = tuple[str, dict[str, Callable[[], asyncio.AbstractEventLoop]]]
VIRTUAL: Backend = ("asyncio", {"loop_factory": VirtualTimeLoop})
"""The backend of the tests that need no sockets: tests/kubernetes/conftest.py."""
