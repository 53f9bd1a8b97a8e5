"""The memory source: instances in one process, for tests and for programs that both register and discover."""

import asyncio
import threading
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from discovery.instance import Instance
from discovery.source import Candidate, ComponentKey, Report, Snapshot, Source


class MemoryStore:
    """Written by memory registries, read by memory sources. Safe for use from several threads and event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._components: dict[ComponentKey, dict[str, Instance]] = {}
        self._listeners: dict[Callable[[], object], ComponentKey] = {}

    def put(self, instance: Instance) -> bool:
        """Add or change an instance; returns False, without effect, if another incarnation has its id."""
        key = ComponentKey(instance.namespace, instance.component)
        with self._lock:
            members = self._components.setdefault(key, {})
            holder = members.get(instance.id)
            if holder is not None and holder.incarnation != instance.incarnation:
                return False
            members[instance.id] = instance
        self._notify(key)
        return True

    def remove(self, instance: Instance) -> None:
        """Remove this incarnation, if present."""
        key = ComponentKey(instance.namespace, instance.component)
        with self._lock:
            members = self._components.get(key, {})
            holder = members.get(instance.id)
            if holder is None or holder.incarnation != instance.incarnation:
                return
            del members[instance.id]
        self._notify(key)

    def snapshot(self, key: ComponentKey) -> Snapshot:
        with self._lock:
            members = tuple(self._components.get(key, {}).values())
        return Snapshot(tuple(Candidate(instance.id, instance) for instance in members))

    def components(self) -> list[ComponentKey]:
        with self._lock:
            return [key for key, members in self._components.items() if members]

    def listen(self, key: ComponentKey, listener: Callable[[], object]) -> Callable[[], None]:
        """Call `listener` after each change of `key`, in the thread that made it; call the result to stop."""
        with self._lock:
            self._listeners[listener] = key

        def stop() -> None:
            with self._lock:
                self._listeners.pop(listener, None)

        return stop

    def _notify(self, key: ComponentKey) -> None:
        with self._lock:
            listeners = [listener for listener, wanted in self._listeners.items() if wanted == key]
        for listener in listeners:  # outside the lock: a listener may read the store
            listener()


class MemorySource(Source):
    """Reports what is in a `MemoryStore`."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def run(self, key: ComponentKey, report: Report) -> None:
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        stop = self._store.listen(key, lambda: loop.call_soon_threadsafe(changed.set))
        try:
            while True:
                changed.clear()
                report(self._store.snapshot(key))
                await changed.wait()
        finally:
            stop()

    async def components(self) -> list[ComponentKey]:
        return self._store.components()


# bounded: weak: the stores that somebody uses
_named_stores: Final[WeakValueDictionary[str, MemoryStore]] = WeakValueDictionary()
_named_lock: Final = threading.Lock()


def named_store(name: str) -> MemoryStore:
    """The store of `memory://name`, the same for all uses of that URL in this process, for as long as one uses it."""
    with _named_lock:
        store = _named_stores.get(name)
        if store is None:
            store = _named_stores[name] = MemoryStore()
        return store


def open_memory(url: str) -> MemorySource:
    parts = urlsplit(url)
    return MemorySource(named_store(parts.netloc + parts.path))
