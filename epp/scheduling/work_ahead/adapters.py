"""Which LoRA adapters each endpoint has loaded, as far as its page and what was sent there tell. Pure.

A page lags, and vLLM's names the adapters of requests that are there (`vllm:lora_requests_info`), not those that stay loaded
after them. A worker drops the adapter that was used longest ago for a new one, so the last ones that were sent there are
loaded too.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import numpy as np

from epp.endpoints.endpoint import Adapters, EndpointPool, Floats
from epp.scheduling.work_ahead.savepoint import Savepoint

_KNOWN: Final = 10_000
"""Names of adapters that are remembered; a page is foreign input."""
_WAITING: Final = 0.5
_FULL: Final = 2.0


class LoadedAdapters:
    """Adapters by endpoint. A model is an adapter while pages name it as one."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, None] = OrderedDict()
        self._slots: dict[tuple[str, str], int] = {}
        self._by_endpoint: dict[tuple[str, str], OrderedDict[str, None]] = {}
        self._by_model: dict[str, set[tuple[str, str]]] = {}
        """The same the other way round: the endpoints to which a request for the model was sent lately."""

    def see(self, key: tuple[str, str], adapters: Adapters, slots: int) -> None:
        """A page names these, and says how many the endpoint can hold; 0: it does not say."""
        if slots > 0:
            self._slots[key] = slots
        for name in (*adapters.active, *adapters.waiting):
            self._known[name] = None
            self._known.move_to_end(name)
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)

    def is_adapter(self, model: str) -> bool:
        return model in self._known

    def save(self, savepoint: Savepoint) -> None:
        """Keep what pages said."""
        savepoint.keep(self, "_known", "_slots")

    def sent(self, key: tuple[str, str], model: str) -> None:
        """A request for this model goes to the endpoint."""
        slots = self._slots.get(key)
        if slots is None or model not in self._known:
            return
        recent = self._by_endpoint.setdefault(key, OrderedDict())
        recent[model] = None
        recent.move_to_end(model)
        self._by_model.setdefault(model, set()).add(key)
        while len(recent) > slots:
            self._not_at(recent.popitem(last=False)[0], key)

    def forget(self, key: tuple[str, str]) -> None:
        for model in self._by_endpoint.pop(key, ()):
            self._not_at(model, key)
        self._slots.pop(key, None)

    def _not_at(self, model: str, key: tuple[str, str]) -> None:
        keys = self._by_model[model]
        keys.discard(key)
        if not keys:
            del self._by_model[model]

    def loads(self, model: str, pool: EndpointPool) -> Floats | None:
        """How often the time to load an adapter passes before each endpoint can begin; None if the model is no adapter.

        1 where a slot is free or nobody knows, one half where it is on its way, 2 where another adapter must leave first.
        """
        if model not in self._known:
            return None
        loads = pool.note(("adapter loads", model), _PublishedLoads).of(model, pool).copy()
        if model in self._by_model:
            rows = pool.row_by_key()
            loads[[rows[key] for key in self._by_model[model] if key in rows]] = 0.0
        return loads


class _PublishedLoads:
    """Holds what pages say of one adapter at some endpoints, until a page says something else."""

    def __init__(self) -> None:
        self._adapters: Sequence[Adapters] | None = None
        self._slots = self._loads = np.zeros(0)

    def of(self, model: str, pool: EndpointPool) -> Floats:
        """For each endpoint, not to be changed."""
        if self._adapters is not pool.adapters or not np.array_equal(self._slots, pool.max_lora):
            self._adapters, self._slots = pool.adapters, pool.max_lora.copy()
            both = zip(pool.adapters, self._slots.tolist(), strict=True)
            self._loads = np.array([_published(model, adapters, slots) for adapters, slots in both])
        return self._loads


def _published(model: str, adapters: Adapters, slots: float) -> float:
    if model in adapters.active:
        return 0.0
    if model in adapters.waiting:
        return _WAITING
    return 1.0 if not slots or len(adapters.active) + len(adapters.waiting) < slots else _FULL
