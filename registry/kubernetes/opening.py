"""Opens the registry of the pod that this process runs in from a `kubernetes://` URL."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from discovery.kubernetes.api.transport import ApiTransport, ClusterTransport
from discovery.kubernetes.opening import PODS_PARAMETERS, find_cluster, parse_options
from discovery.kubernetes.slices.source import SERVICE_TEMPLATE, LabelSelection, Selection, ServiceSelection
from registry.kubernetes.membership import KubernetesMembership, ServiceCheck
from registry.registration import Announcement, MembershipRegistry

DEFAULT_PORT: Final = 8080
"""The port of Dynamo's probes and Services, where the contract is served by default."""


def open_pod(
    url: str, announcement: Announcement, environment: Mapping[str, str] = os.environ
) -> MembershipRegistry:
    """Takes discovery's URL, and `assert_service=false` in addition. Raises ValueError for an invalid URL.

    The address defaults to `POD_IP`, the port to 8080 on every interface.
    """
    parts = urlsplit(url)
    options = parse_options(parts, url)
    check = _service_check(options, url)
    address = environment.get("POD_IP") or announcement.address
    with_defaults = replace(announcement, address=address, port=announcement.port or DEFAULT_PORT)
    return MembershipRegistry(
        lambda: KubernetesMembership(
            check,
            namespace=parts.netloc or None,
            instance_id=announcement.instance_id,
            address=address,
            environment=environment,
        ),
        with_defaults,
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

    if wanted == "false" or options.keys() & PODS_PARAMETERS:
        return None
    return ServiceCheck(connect, selection, options.get("port", "http"))
