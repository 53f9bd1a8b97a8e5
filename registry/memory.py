"""Registers instances in the `MemoryStore` that the discovery of the same process reads."""

from urllib.parse import urlsplit

from discovery.errors import RegistrationError
from discovery.instance import Instance
from discovery.memory import MemoryStore, named_store
from registry.registration import Announcement, MembershipRegistry


def open_memory_registry(url: str, announcement: Announcement) -> MembershipRegistry:
    parts = urlsplit(url)
    store = named_store(parts.netloc + parts.path)
    return MembershipRegistry(lambda: MemoryMembership(store), announcement)


class MemoryMembership:
    """The membership of one instance in `store`."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._instance: Instance | None = None

    async def join(self, instance: Instance) -> Instance:
        """Raises `RegistrationError` if the id is taken."""
        if not self._store.put(instance):
            raise RegistrationError(
                f"the instance id {instance.id!r} is taken in {instance.namespace}/{instance.component}: "
                "choose another id, or none and one is made"
            )
        self._instance = instance
        return instance

    def update(self, instance: Instance) -> None:
        self._store.put(instance)

    async def leave(self) -> None:
        if self._instance is not None:
            self._store.remove(self._instance)
            self._instance = None
