"""The hooks of a datastore: each names a kind of change, and is called when one happens."""

import asyncio
import logging
import traceback
from collections.abc import Callable
from typing import Any

from epp.endpoints.endpoint import Endpoint, Key

logger = logging.getLogger(__name__)


def unheard(method: str, key: Key, given: tuple[Any, ...]) -> None:
    """Stands for the follower until there is one."""


class ChangeHooks:
    """The hooks of a datastore.

    A listener appends a callable and removes it at its end. Hooks are called synchronously,
    once the change is complete, in the order in which they were appended. `on_change` is the exception: it costs time for
    each endpoint of the pool, so it is called once for all changes of one turn of the event loop, before anybody reads the
    endpoints and at the latest in the next turn; without an event loop at each change. A hook must not change the datastore.
    An exception in `on_change`, `on_release` or `on_load_change` is logged and goes no further.
    """

    def __init__(self) -> None:
        self.on_change: list[Callable[[], None]] = []
        """Called after endpoints were added, removed or changed, once for all changes of a turn."""
        self.on_reset: list[Callable[[Endpoint], None]] = []
        """Called with an endpoint whose process ended or was replaced: its cache is lost."""
        self.on_cache_size: list[Callable[[Endpoint, int], None]] = []
        """Called with an endpoint and the size of its KV cache in tokens, once that is known."""
        self.on_release: list[Callable[[Endpoint], None]] = []
        """Called with an endpoint, which may have been removed, when a request there is no longer in flight."""
        self.on_load_change: list[Callable[[Endpoint], None]] = []
        """Called with an endpoint that was added, changed or removed, or whose scraped numbers changed or became invalid.
        Not called when a request begins: its sender knows."""
        self.on_use: dict[Key, Callable[[], None]] = {}
        """By endpoint: called once, when the next request is sent there."""
        self.on_suspect: dict[Key, Callable[[], None]] = {}
        """By endpoint: called once, when the data plane could not reach it. The listener finds out and calls `set_lost`."""
        self.on_fact: Callable[[str, Key, tuple[Any, ...]], None] = unheard
        """Called with all that discovery or a scrape says of a worker: the name of the method, and what it is given."""
        self._untold = False
        """Whether endpoints changed since `on_change` was called."""

    def _announce(self) -> None:
        """Endpoints changed: `on_change` is called soon."""
        if not self._untold:
            self._untold = True
            try:
                asyncio.get_running_loop().call_soon(self._tell)
            except RuntimeError:  # no event loop, so no later turn
                self._tell()

    def _tell(self) -> None:
        """Call `on_change`, unless a reader was sooner."""
        if self._untold:
            self._untold = False
            for changed in self.on_change.copy():
                try:
                    changed()
                except Exception as error:  # noqa: BLE001  # a listener's fault must not stop the others
                    _log_fault(error)

    def _call_hooks(self, hooks: list[Callable[[Endpoint], None]], endpoint: Endpoint) -> None:
        for hook in hooks.copy():
            try:
                hook(endpoint)
            except Exception as error:  # noqa: BLE001  # a listener's fault must not stop the caller
                _log_fault(error)

    def _reset(self, endpoint: Endpoint) -> None:
        for hook in self.on_reset:
            hook(endpoint)


def _log_fault(error: Exception) -> None:
    # without the exception's text, which may quote a request
    where = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    logger.error("a hook of the datastore failed: %s\n%s", type(error).__name__, where)
