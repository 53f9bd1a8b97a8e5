"""Counts a picked request as in flight at the endpoint that answers and at its helpers."""

from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint
from epp.scheduling.pick import Pick


def reserve(pick: Pick, datastore: Datastore) -> None:
    for endpoint in pick.in_flight_at:
        datastore.reserve(endpoint)


def move(pick: Pick, server: Endpoint, datastore: Datastore) -> None:
    """Another endpoint answers than was picked; the helpers stay."""
    before, *helpers = pick.in_flight_at
    if server.key != before.key:
        # Before the release, whose hooks must not see a slot that is taken again at once
        datastore.reserve(server)
        pick.in_flight_at = (server, *helpers)
        datastore.release(before)


def release(pick: Pick, datastore: Datastore) -> None:
    """The request is over at all of them. May be called twice."""
    in_flight_at, pick.in_flight_at = pick.in_flight_at, ()
    for endpoint in in_flight_at:
        datastore.release(endpoint)
