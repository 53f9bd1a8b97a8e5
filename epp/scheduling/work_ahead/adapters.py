"""Which LoRA adapters each endpoint has loaded, as far as its page and what was sent there tell. Pure.

A page lags, and vLLM's names the adapters of requests that are there (`vllm:lora_requests_info`), not those that stay loaded
after them. A worker drops the adapter that was used longest ago for a new one, so the last ones that were sent there are
loaded too.
"""

from collections import OrderedDict
from typing import Final

import numpy as np

from epp.endpoints.endpoint import Adapters, EndpointPool, Floats

_KNOWN: Final = 10_000
"""Names of adapters that are remembered; a page is foreign input."""
_WAITING: Final = 0.5
_FULL: Final = 2.0


class LoadedAdapters:
    """Adapters by endpoint. A model is an adapter once a page named it as one: a base model never is."""

    __slots__ = ("_by_endpoint", "_known")

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._by_endpoint: dict[tuple[str, str], OrderedDict[str, None]] = {}

    def see(self, adapters: Adapters) -> None:
        """A page names these."""
        if (adapters.active or adapters.waiting) and len(self._known) < _KNOWN:
            self._known |= adapters.active | adapters.waiting

    def knows(self, model: str) -> bool:
        """Whether it is an adapter."""
        return model in self._known

    def sent(self, key: tuple[str, str], model: str, slots: int) -> None:
        """A request for this adapter goes to the endpoint, which can hold so many."""
        if slots > 0:
            recent = self._by_endpoint.setdefault(key, OrderedDict())
            recent[model] = None
            recent.move_to_end(model)
            while len(recent) > slots:
                recent.popitem(last=False)

    def forget(self, key: tuple[str, str]) -> None:
        self._by_endpoint.pop(key, None)

    def loads(self, model: str, pool: EndpointPool) -> Floats | None:
        """How much of the time to load an adapter passes before each endpoint can begin; None if the model is no adapter.

        1 where a slot is free, one half where it is on its way, 2 where another adapter must leave first.
        """
        if model not in self._known:
            return None
        loads, slots = np.zeros(len(pool)), pool.max_lora.tolist()
        for row, (endpoint, adapters) in enumerate(zip(pool.endpoints, pool.adapters, strict=True)):
            if model in adapters.active or model in self._by_endpoint.get(endpoint.key, ()):
                continue
            if model in adapters.waiting:
                loads[row] = _WAITING
            elif len(adapters.active) + len(adapters.waiting) < slots[row]:
                loads[row] = 1.0
            else:
                loads[row] = _FULL
        return loads
