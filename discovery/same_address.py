"""Finds instances that share one address and port: one server that was registered several times (pure)."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from adsum.addresses import is_loopback
from discovery.instance import Instance


def find_same_address(instances: Iterable[Instance]) -> Mapping[str, list[str]]:
    """For each instance that shares its address: the ids of the others there, sorted."""
    groups: dict[tuple[str, int, str | None], list[str]] = defaultdict(list)
    for instance in instances:
        groups[_server_key(instance)].append(instance.id)
    return {
        one: sorted(other for other in ids if other != one)
        for ids in groups.values()
        if len(ids) > 1
        for one in ids
    }


def _server_key(instance: Instance) -> tuple[str, int, str | None]:
    """Loopback addresses of different machines are different servers."""
    port = instance.serving_port or instance.port
    return instance.address, port, instance.node if is_loopback(instance.address) else None
