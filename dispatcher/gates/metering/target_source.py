"""Computes the dispatch budget of a target from a metric and the number of ready model servers."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Protocol

from dispatcher.broker.capacity.budget import ZERO, closing_point, spare, system_capacity
from dispatcher.gates.credentials import GateSourceError
from dispatcher.gates.metering.meter import Measurement


@dataclass(frozen=True, slots=True)
class Sample:
    """A number and its age in seconds."""

    value: Fraction
    age: float = 0.0


class SampleReader(Protocol):
    """Reads one number of a target."""

    async def read(self) -> Sample:
        """Take one sample; raises `dispatcher.gates.credentials.GateSourceError` if there is none to be had."""


@dataclass(frozen=True, slots=True)
class ConstantReader:
    """A number from the configuration."""

    value: Fraction

    async def read(self) -> Sample:
        return Sample(self.value)


@dataclass(frozen=True, slots=True)
class MetricKind:
    """What a metric means. `estimate`: D, from its value and max_SYS. `closes_at`: the value where D = B, from max_SYS and B.

    Values below 0 or above `max_value` are errors; None: any value is valid.
    """

    estimate: Callable[[Fraction, Fraction], Fraction]
    closes_at: Callable[[Fraction, Fraction], Fraction]
    max_value: int | None = None


@dataclass(frozen=True, slots=True)
class TargetSource:
    """A `MeterSource`: D from `value`, max_SYS from the number of `ready` model servers."""

    name: str
    value: SampleReader
    ready: SampleReader
    per_server: Fraction
    baseline: Fraction
    kind: MetricKind

    async def measure(self) -> Measurement:
        value, ready = await self.value.read(), await self.ready.read()
        if self.kind.max_value is not None:
            _check("the number read", value.value, self.kind.max_value)
        _check("the number of ready model servers", ready.value, _MAX_SERVERS)
        # Without ready servers there is no capacity: closed, whatever the load is. A load of 0 then means nothing.
        capacity = system_capacity(ready.value, self.per_server)
        free = spare(self.kind.estimate(value.value, capacity), self.baseline) if capacity > 0 else ZERO
        threshold = self.kind.closes_at(capacity, self.baseline)
        line = closing_point(capacity, self.baseline)
        # As old as the older of the two numbers: both decide how much is free.
        return Measurement(free, capacity, line, max(value.age, ready.age), value.value, threshold)


_MAX_SERVERS: Final = 1_000_000


def _check(what: str, value: Fraction, max_value: int) -> None:
    if not 0 <= value <= max_value:
        raise GateSourceError(f"{what} is {float(value):g}, expected one from 0 to {max_value}")
