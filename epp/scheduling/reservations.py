"""Where each request that was picked counts as in flight. Pure but for the datastore."""

from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint
from epp.scheduling.pick import Pick


class Reservations:
    """The endpoint that serves each pick, and the helpers: counted in the datastore until they are released."""

    __slots__ = ("_datastore", "_servers")

    def __init__(self, datastore: Datastore) -> None:
        self._datastore = datastore
        self._servers: dict[Pick, Endpoint] = {}

    def reserve(self, pick: Pick) -> None:
        """One more request in flight at the choice and at each helper."""
        for endpoint in pick.at_work(pick.endpoints[0]):
            self._datastore.reserve(endpoint)
        self._servers[pick] = pick.endpoints[0]

    def server(self, pick: Pick) -> Endpoint | None:
        """Who serves it as far as is known; None: it is over."""
        return self._servers.get(pick)

    def move(self, pick: Pick, server: Endpoint) -> None:
        """Another endpoint serves it; the helpers stay."""
        before = self._servers[pick]
        if server.key != before.key:
            self._datastore.reserve(
                server
            )  # first: who hears of the release must see no room that is not there
            self._servers[pick] = server
            self._datastore.release(before)

    def release(self, pick: Pick) -> bool:
        """It is over at all of them; False where it was already."""
        server = self._servers.pop(pick, None)
        if server is None:
            return False
        for endpoint in pick.at_work(server):
            self._datastore.release(endpoint)
        return True
