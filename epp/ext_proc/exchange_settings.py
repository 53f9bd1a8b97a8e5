"""The operator's settings for all exchanges of a picker. Pure."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from adsum.tracing.span import Tracer
from epp.ext_proc.response_body import EarlyEnds, ResponseReaderOpener, UnreadBodies

if TYPE_CHECKING:  # `--help` reads these settings, and must not load numpy
    from epp.scheduling.pick import Pick

ResponseHeaders: TypeAlias = Callable[["Pick", str | None], Mapping[str, str]]
"""Headers to set on the answer to a request; the second argument: the destination that served it, if the data plane says."""


class ProtocolVersion(StrEnum):
    """The versions of the endpoint picker protocol that differ on the wire."""

    V1_0 = "1.0.0"
    V0_3 = "0.3.0"
    FEBRUARY_2025 = "2025-02"


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """Settings of all exchanges. `max_body_bytes`: the largest request body.

    `use_subset_hint` False: the data plane's hint about which endpoints may be picked is ignored. `response_readers`: each
    may read the bodies of responses. `passing_readers`: the same, where the data plane sends every body to the picker; nothing
    waits for them. `unread_bodies` hears of a body that had to be read and does not come.
    `tracer`: None if no traces are recorded. `response_headers`: None if no plugin sets any. `early_ends` hears how long
    streamed answers last; None: nobody counts them. `chance`: from 0 to 1, it spreads the times of Retry-After.
    """

    version: ProtocolVersion = ProtocolVersion.V1_0
    max_body_bytes: int = 64 * 1024 * 1024
    use_subset_hint: bool = True
    response_readers: tuple[ResponseReaderOpener, ...] = ()
    passing_readers: tuple[ResponseReaderOpener, ...] = ()
    unread_bodies: UnreadBodies = field(default_factory=UnreadBodies)
    response_headers: ResponseHeaders | None = None
    early_ends: EarlyEnds | None = None
    tracer: Tracer | None = None
    chance: Callable[[], float] = random.random

    @property
    def reads_subset_hint(self) -> bool:
        """Whether a subset hint counts; protocol 2025-02 has none."""
        return self.use_subset_hint and self.version is not ProtocolVersion.FEBRUARY_2025

    @property
    def reads_responses(self) -> bool:
        """Whether the body of any response may be read."""
        return bool(self.response_readers or self.passing_readers)
