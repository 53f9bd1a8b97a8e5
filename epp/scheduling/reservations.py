"""Where a request that was picked counts as in flight: at all that are at work on it. Pure but for the datastore."""

from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint
from epp.scheduling.pick import Pick


def reserve(pick: Pick, datastore: Datastore) -> None:
    """One more request in flight at each of them."""
    for endpoint in pick.in_flight_at:
        datastore.reserve(endpoint)


def move(pick: Pick, server: Endpoint, datastore: Datastore) -> None:
    """Another endpoint answers; the helpers stay."""
    before, *helpers = pick.in_flight_at
    if server.key != before.key:
        datastore.reserve(server)  # first: who hears of the release must see no room that is not there
        pick.in_flight_at = (server, *helpers)
        datastore.release(before)


def release(pick: Pick, datastore: Datastore) -> None:
    """It is over at all of them; does nothing the second time."""
    in_flight_at, pick.in_flight_at = pick.in_flight_at, ()
    for endpoint in in_flight_at:
        datastore.release(endpoint)
