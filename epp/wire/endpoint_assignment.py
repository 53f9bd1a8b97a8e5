"""Tells Envoys of the endpoints that picks choose among, by the endpoint discovery that each transport serves."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final, Never

from adsum.addresses import is_ip
from adsum.tasks import wait_at_most
from discovery.eds.assignment import Assignment, HealthStatus, LbEndpoint
from discovery.eds.subscription import Publication
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint

log = logging.getLogger(__name__)

_TOGETHER: Final = 0.1
"""Seconds in which changes go out together."""
_HEALTH_INTERVAL: Final = 1.0
"""Seconds between two looks at who answers. A pick knows it at once; this is for what Envoy does without one."""


def assigned(endpoints: Sequence[Endpoint], reachable: Sequence[bool]) -> Assignment:
    """Each address once. If none is reachable all count as healthy: then picks choose among them too."""
    any_reachable = any(reachable)
    found: dict[tuple[str, int], LbEndpoint] = {}
    without_ip: list[str] = []
    for endpoint, answers in zip(endpoints, reachable, strict=True):
        if not is_ip(endpoint.address):
            without_ip.append(endpoint.id)
            continue
        health = HealthStatus.HEALTHY if answers or not any_reachable else HealthStatus.UNHEALTHY
        place = endpoint.address, endpoint.port
        if place not in found or health is HealthStatus.HEALTHY:
            found[place] = LbEndpoint(endpoint.zone or "", *place, health)
    return Assignment(tuple(sorted(found.values())), tuple(sorted(without_ip)))


async def publish_endpoints(datastore: Datastore, publication: Publication) -> Never:
    """Until cancelled: the present endpoints at once, then each change."""
    changed = asyncio.Event()
    datastore.on_change.append(changed.set)
    told: tuple[tuple[Endpoint, ...], bytes] | None = None
    named: tuple[str, ...] = ()
    try:
        while True:
            changed.clear()
            endpoints, reachable = datastore.endpoints, datastore.pool(time.monotonic()).reachable
            if told is None or told[0] is not endpoints or told[1] != reachable.tobytes():
                told = endpoints, reachable.tobytes()
                assignment = assigned(endpoints, reachable.tolist())
                publication.publish(assignment)
                named = _warn_of_host_names(assignment.without_ip, named)
            await asyncio.sleep(_TOGETHER)
            await wait_at_most(_HEALTH_INTERVAL, changed)
    finally:
        datastore.on_change.remove(changed.set)


def _warn_of_host_names(without_ip: tuple[str, ...], before: tuple[str, ...]) -> tuple[str, ...]:
    if without_ip and without_ip != before:
        log.warning(
            "Envoys are not told of these, because EDS needs IP addresses and they registered a host name: %s",
            ", ".join(without_ip[:10]),
        )
    return without_ip
