"""Which LoRA adapters each endpoint has loaded, as far as its page and what was sent there tell. Pure.

A page lags, and vLLM's names the adapters of requests that are there (`vllm:lora_requests_info`), not those that stay loaded
after them. A worker drops the adapter that was used longest ago for a new one, so the last ones that were sent there are
loaded too.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import numpy as np

from epp.endpoints.endpoint import Adapters, EndpointPool, Floats

_KNOWN: Final = 10_000
"""Names of adapters that are remembered; a page is foreign input."""
_WAITING: Final = 0.5
_FULL: Final = 2.0


class LoadedAdapters:
    """Adapters by endpoint. A model is an adapter while pages name it as one."""

    __slots__ = ("_by_endpoint", "_known", "_slots")

    def __init__(self) -> None:
        self._known: OrderedDict[str, None] = OrderedDict()
        self._slots: dict[tuple[str, str], int] = {}
        self._by_endpoint: dict[tuple[str, str], OrderedDict[str, None]] = {}

    def see(self, key: tuple[str, str], adapters: Adapters, slots: int) -> None:
        """A page names these, and says how many the endpoint can hold; 0: it does not say."""
        if slots > 0:
            self._slots[key] = slots
        for name in (*adapters.active, *adapters.waiting):
            self._known[name] = None
            self._known.move_to_end(name)
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)

    def savepoint(self) -> Callable[[], None]:
        """A function that makes what pages said what it is now."""
        known, slots = self._known.copy(), self._slots.copy()

        def restore() -> None:
            self._known, self._slots = known, slots

        return restore

    def sent(self, key: tuple[str, str], model: str) -> None:
        """A request for this model goes to the endpoint."""
        slots = self._slots.get(key)
        if slots is None or model not in self._known:
            return
        recent = self._by_endpoint.setdefault(key, OrderedDict())
        recent[model] = None
        recent.move_to_end(model)
        while len(recent) > slots:
            recent.popitem(last=False)

    def forget(self, key: tuple[str, str]) -> None:
        self._by_endpoint.pop(key, None)
        self._slots.pop(key, None)

    def loads(self, model: str, pool: EndpointPool) -> Floats | None:
        """How often the time to load an adapter passes before each endpoint can begin; None if the model is no adapter.

        1 where a slot is free or nobody knows, one half where it is on its way, 2 where another adapter must leave first.
        """
        if model not in self._known:
            return None
        loads, slots = np.zeros(len(pool)), pool.max_lora.tolist()
        for row, (endpoint, adapters) in enumerate(zip(pool.endpoints, pool.adapters, strict=True)):
            if model in adapters.active or model in self._by_endpoint.get(endpoint.key, ()):
                continue
            if model in adapters.waiting:
                loads[row] = _WAITING
            elif not slots[row] or len(adapters.active) + len(adapters.waiting) < slots[row]:
                loads[row] = 1.0
            else:
                loads[row] = _FULL
        return loads
