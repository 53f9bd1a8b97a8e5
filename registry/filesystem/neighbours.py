"""Another registration at our address: to whoever routes, one server is then two."""

import logging
from collections.abc import Iterable

from discovery.instance import Instance, InstanceStatus
from discovery.same_address import sharing

log = logging.getLogger(__name__)

_NAMED = 3


def warn_of_neighbours(instance: Instance, others: Iterable[Instance]) -> None:
    """Say it, if any of `others`, who live, is at the instance's address and not on its way out."""
    living = [one for one in others if one.id != instance.id and one.status is not InstanceStatus.DRAINING]
    found = sharing([instance, *living]).get(instance.id)
    if not found:
        return
    named = ", ".join(found[:_NAMED]) + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")
    log.warning(
        "%s serves the same address as %s (%s): one server is registered %d times, and counted so. Several processes "
        "that share a port (uvicorn --workers) register once: run one process for each port, or register the server "
        "from outside (python -m registry --server URL)",
        instance.id,
        named,
        instance.authority,
        len(found) + 1,
    )
