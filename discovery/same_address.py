"""Instances that are one server to whoever asks: several registrations name one address and one port (pure)."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from discovery.instance import Instance
from runtime.addresses import is_loopback


def sharing(instances: Iterable[Instance]) -> Mapping[str, list[str]]:
    """The ids of the others at its address, for each instance that is not alone there."""
    groups: dict[tuple[str, int, str | None], list[str]] = defaultdict(list)
    for instance in instances:
        groups[_place(instance)].append(instance.id)
    return {
        one: sorted(other for other in ids if other != one)
        for ids in groups.values()
        if len(ids) > 1
        for one in ids
    }


def _place(instance: Instance) -> tuple[str, int, str | None]:
    """A loopback address means another server on each machine."""
    port = instance.serving_port or instance.port
    return instance.address, port, instance.node if is_loopback(instance.address) else None
