"""Why candidates are no instances: asked of the workers and of the source, only while somebody looks, and not too often."""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Final

from adsum.tasks import cancel_and_wait
from discovery.errors import AdsumError
from discovery.explanation import Explanation, is_faultless
from discovery.instance import Instance
from discovery.service import SourceDiscovery
from discovery.source import ComponentKey

log = logging.getLogger("discovery.serve")

_EVERY: Final = 5.0
"""Seconds between two explanations, at least: each asks the workers that are not ready, and the source once more."""
_SHARE: Final = 10
"""At most a tenth of the time is spent on explanations: of a slow source they are made less often."""


class CandidateReasons:
    """The open watch's knowledge of each candidate, and over it the findings of the last explanation."""

    def __init__(self, service: SourceDiscovery, key: ComponentKey) -> None:
        self._service = service
        self._key = key
        self._explanation: Explanation | None = None
        self._explained_at: object = None
        self._next = 0.0
        self._task: asyncio.Task[None] | None = None

    async def aclose(self) -> None:
        if self._task is not None:
            await cancel_and_wait(self._task)

    def look(self, state: object) -> None:
        """Somebody looks: begin another explanation if one is due. While all is well, none is, unless `state` changed."""
        faultless = self._explanation is not None and is_faultless(self._explanation)
        is_known = faultless and state == self._explained_at
        if self._task is None and not is_known and time.monotonic() >= self._next:
            self._task = asyncio.create_task(self._explain(state), name=f"explain {self._key}")

    async def settled(self, timeout: float) -> None:
        """Returns when no explanation is under way, at the latest after `timeout` seconds."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout)

    @property
    def version(self) -> object:
        """It differs once an answer of `of` or `remarks` does."""
        return self._explanation, self.watched()

    def of(self, known: Mapping[str, Instance], published: Mapping[str, Instance]) -> dict[str, str]:
        """By id. What was explained counts for candidates that are still as they were then."""
        reasons = self.watched()
        for found in () if self._explanation is None else self._explanation.candidates:
            now = known.get(found.id)
            as_it_was = now is None if found.instance is None else _same_life(now, found.instance)
            if found.reason is not None and as_it_was and found.is_instance == (found.id in published):
                reasons[found.id] = found.reason
        return reasons

    def remarks(self, known: Mapping[str, Instance]) -> tuple[str, ...]:
        """Sentences about the whole component."""
        if self._explanation is None or known or self._explanation.candidates:
            return ()
        return tuple(self._explanation.remarks())

    def watched(self) -> dict[str, str]:
        """The open watch's knowledge alone, without the explanation."""
        namespace, component = self._key
        return {
            **self._service.without_document(namespace, component),
            **self._service.missing(namespace, component),
        }

    async def _explain(self, state: object) -> None:
        started = time.monotonic()
        try:
            self._explanation = await self._service.explain(*self._key)
            self._explained_at = state
        except AdsumError as error:
            log.info("cannot explain %s: %s", self._key, error)
        finally:
            took = time.monotonic() - started
            self._next = time.monotonic() + max(_EVERY, _SHARE * took)
            self._task = None


def _same_life(now: Instance | None, explained: Instance) -> bool:
    return now is not None and (now.incarnation, now.status) == (explained.incarnation, explained.status)
