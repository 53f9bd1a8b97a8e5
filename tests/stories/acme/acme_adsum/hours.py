"""Sends batch requests during certain hours of the day."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, time
from typing import Annotated, Self

from pydantic import Field

from dispatcher.extension import (
    DispatchCandidate,
    DispatchGate,
    GateContext,
    GateDeclaration,
    Parameters,
    RefusedError,
    Scope,
    Slot,
)

TimeOfDay = Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]
"""In quotes in the configuration: YAML reads 22:00 without them as a number."""
LOOK = 10.0
"""Seconds between two looks at the clock, which may be set."""


class HoursParameters(Parameters):
    """In the local time of the dispatcher. The gate closes on the next day where `closes` is before `opens`."""

    opens: TimeOfDay
    closes: TimeOfDay


class HoursGate(DispatchGate):
    """Open between two times of day."""

    def __init__(self, opens: time, closes: time, now: Callable[[], datetime] = datetime.now) -> None:
        self._opens, self._closes, self._now = opens, closes, now

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """There is nothing to close."""

    def budget(self) -> float:
        return 1.0 if self._is_open() else 0.0

    @asynccontextmanager
    async def admit(self, candidate: DispatchCandidate) -> AsyncIterator[Slot]:
        if not self._is_open():
            raise RefusedError(f"closed until {self._opens:%H:%M}", Scope.QUEUE, self._changed)
        yield Slot()

    def _is_open(self) -> bool:
        now = self._now().time()
        if self._opens <= self._closes:
            return self._opens <= now < self._closes
        return now >= self._opens or now < self._closes

    async def _changed(self) -> None:
        while not self._is_open():
            await asyncio.sleep(LOOK)


def build_gate(given: HoursParameters, context: GateContext) -> HoursGate:
    if given.opens == given.closes:
        raise ValueError(f"the gate of {context.target} never opens: opens and closes are the same time")
    return HoursGate(time.fromisoformat(given.opens), time.fromisoformat(given.closes))


GATE = GateDeclaration(parameters=HoursParameters, build=build_gate)
