"""Where a request that was picked counts as in flight: at all that are at work on it. Pure but for the datastore."""

from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint
from epp.scheduling.pick import Pick


def reserve(pick: Pick, datastore: Datastore) -> None:
    """One more request in flight at each of them."""
    for endpoint in pick.at_work:
        datastore.reserve(endpoint)


def move(pick: Pick, server: Endpoint, datastore: Datastore) -> None:
    """Another endpoint answers; the helpers stay."""
    before, *helpers = pick.at_work
    if server.key != before.key:
        datastore.reserve(server)  # first: who hears of the release must see no room that is not there
        pick.at_work = (server, *helpers)
        datastore.release(before)


def release(pick: Pick, datastore: Datastore) -> None:
    """It is over at all of them; does nothing the second time."""
    at_work, pick.at_work = pick.at_work, ()
    for endpoint in at_work:
        datastore.release(endpoint)
