"""The hooks by which data producers follow the endpoints of a datastore. Pure."""

from collections.abc import Callable

from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint
from epp.scheduling.plugin import DataProducer


class Following:
    """Those of one data producer."""

    __slots__ = ("_forget", "_retain", "_sized", "producer")

    def __init__(self, producer: DataProducer, datastore: Datastore) -> None:
        self.producer = producer
        self._forget: Callable[[Endpoint], None] = producer.forget
        self._sized: Callable[[Endpoint, int], None] = producer.sized
        self._retain: Callable[[], None] = lambda: producer.retain(datastore.endpoints)
        datastore.on_reset.append(self._forget)
        datastore.on_cache_size.append(self._sized)
        datastore.on_change.append(self._retain)

    def end(self, datastore: Datastore) -> None:
        datastore.on_reset.remove(self._forget)
        datastore.on_cache_size.remove(self._sized)
        datastore.on_change.remove(self._retain)
