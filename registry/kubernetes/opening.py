"""From a `kubernetes://` URL to the registry of the pod that this process runs in."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from discovery.kubernetes.opening import find_cluster, parse_options
from discovery.kubernetes.selection import SERVICE_TEMPLATE, LabelSelection, Selection, ServiceSelection
from discovery.kubernetes.transport import ApiTransport, ClusterTransport
from registry.kubernetes.membership import KubernetesMembership, ServiceCheck
from registry.registration import Announcement, MembershipRegistry

DEFAULT_PORT: Final = 8080
"""Where the usual probe and Service of a worker look for the contract."""


def open_pod(url: str, told: Announcement, environment: Mapping[str, str] = os.environ) -> MembershipRegistry:
    """The URL is the one that discovery takes; `assert_service=false` is the registry's own.

    What is not told is the pod's: its address (`POD_IP`), and port 8080, where the contract is served on every
    interface. ValueError for a URL that is none of ours.
    """
    parts = urlsplit(url)
    options = parse_options(parts, url)
    check = _service_check(options, url)
    address = environment.get("POD_IP") or told.address
    announced = replace(told, address=address, port=told.port or DEFAULT_PORT)
    return MembershipRegistry(
        lambda: KubernetesMembership(
            check,
            namespace=parts.netloc or None,
            instance_id=told.instance_id,
            address=address,
            environment=environment,
        ),
        announced,
    )


def _service_check(options: Mapping[str, str], url: str) -> ServiceCheck | None:
    wanted = options.get("assert_service", "true")
    if wanted not in ("true", "false"):
        raise ValueError(f"{url!r}: assert_service={wanted!r}; expected true or false")
    selection: Selection = ServiceSelection(options.get("service", SERVICE_TEMPLATE))
    if options.get("labels") == "true":
        selection = LabelSelection()

    async def connect() -> ApiTransport:
        return ClusterTransport(await find_cluster(options))

    return ServiceCheck(connect, selection, options.get("port", "http")) if wanted == "true" else None
