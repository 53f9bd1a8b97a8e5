"""Runs a group of parts until a signal or a failure: drains it then, and kills it at the second signal."""

import logging
from typing import Protocol

from adsum.command_line import INTERRUPTED, SUCCEEDED
from adsum.signals import stop_signals, until_signalled

log = logging.getLogger("serve")


class Group(Protocol):
    async def serve(self) -> None:
        """Lasts until a part fails for good: raises PartError then."""

    async def drain(self) -> bool:
        """True once all have ended."""

    async def kill(self) -> None: ...


async def supervise(group: Group) -> int:
    """Returns the exit code; raises what `serve` raises."""
    with stop_signals() as signals:
        try:
            await until_signalled(signals, group.serve())
            if await until_signalled(signals, group.drain()) is None:
                log.warning("a second signal: the parts are killed")
                return INTERRUPTED
        finally:
            await group.kill()
    return SUCCEEDED
