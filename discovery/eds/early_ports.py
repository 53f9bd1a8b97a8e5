"""Asks workers that are not ready yet on which port they will serve.

A watch reads the documents of ready workers only, when the picker may name them at once; Envoy must know them before.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from discovery.instance import Instance, InstanceStatus, MetadataReader
from discovery.metadata.lookup import MetadataLookup, look_up_all
from discovery.watch import Truth

_INTERVAL: Final = 2.0
"""Seconds between two questions to a worker; loading a model takes longer."""
_AT_A_TIME: Final = 50


class EarlyPorts:
    """`known`: serving ports by id and incarnation, of candidates that are not published yet."""

    def __init__(self, truth: Truth, reader: MetadataReader, changed: Callable[[], None]) -> None:
        self.known: dict[tuple[str, str], int] = {}
        self._truth = truth
        self._reader = reader
        self._changed = changed

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._forget()
            waiting = iter([c for c in self._truth.known.values() if self._is_asked(c)])
            while some := list(itertools.islice(waiting, _AT_A_TIME)):
                found = _ports(await look_up_all(replace(c, reader=self._reader) for c in some))
                if found:
                    self.known |= found
                    self._changed()
            await asyncio.sleep(_INTERVAL)

    def _is_asked(self, candidate: Instance) -> bool:
        """One rank of several has the port that its source names."""
        is_new = (candidate.id, candidate.incarnation) not in self.known
        return candidate.status is InstanceStatus.NOT_READY and candidate.rank is None and is_new

    def _forget(self) -> None:
        lives = {(c.id, c.incarnation) for c in self._truth.known.values()}
        self.known = {life: port for life, port in self.known.items() if life in lives}


def _ports(lookups: Iterable[MetadataLookup]) -> dict[tuple[str, str], int]:
    return {
        (one.instance.id, one.instance.incarnation): one.instance.serving_port
        for one in lookups
        if one.instance.serving_port is not None
    }
