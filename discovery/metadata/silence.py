"""Whether a worker still answers: what each answer, reset or silence of its GETs says of it, and how soon it counts as
unreachable (`$ADSUM_SILENT_AFTER`). Pure, but for reading the environment.
"""

import math
import os
from dataclasses import dataclass, field, replace
from typing import Final, Self

from discovery.errors import MetadataUnavailableError, WorkerUnreachableError
from discovery.instance import Instance, MetadataReader
from discovery.metadata.document import NO_DOCUMENT, MetadataDocument, serving_port
from discovery.metadata.schedule import FetchSchedule

VARIABLE: Final = "ADSUM_SILENT_AFTER"
DEFAULT: Final = 4.0
_SHORTEST: Final = 1.0
_LONGEST: Final = 3600.0
_LEAVE_DELAY: Final = 1.0
"""Seconds by which a closed connection is reported later: a worker that leaves closes its port before its source says so."""


@dataclass(frozen=True, slots=True)
class SilenceTimings:
    """All in seconds. `wait`: how long a worker holds a GET. `poll`: between two GETs that are not held.

    `margin`: how much later than that an answer may come before the worker counts as unreachable.
    `in_every_watch`: a watch without metadata detects silence too.
    """

    wait: float = 10.0
    margin: float = 2.0
    poll: float = 2.0
    in_every_watch: bool = True

    @classmethod
    def detected_within(cls, seconds: float) -> Self:
        """Timings by which silence is detected within `seconds`; 0: only in a watch with metadata, within 12 s.

        The longest time between two signs of life is wait + margin, or 1.1 * poll + margin: polls have a jitter of a
        tenth. With wait and poll at most 0.5 * seconds and margin at 0.4, that is at most 0.95 * seconds.
        """
        if seconds == 0:
            return cls(in_every_watch=False)
        if not _SHORTEST <= seconds <= _LONGEST:
            raise ValueError(
                f"silent_after is {seconds:g}; expected 0 (off) or {_SHORTEST:g} to {_LONGEST:g} seconds"
            )
        return cls(wait=seconds / 2, margin=seconds * 0.4, poll=min(2.0, seconds / 2))


def silence_timings(seconds: float | None) -> SilenceTimings:
    """The timings for `seconds`; None: those of `$ADSUM_SILENT_AFTER`, else the default. Raises ValueError."""
    if seconds is not None:
        return SilenceTimings.detected_within(seconds)
    text = os.environ.get(VARIABLE) or str(DEFAULT)
    try:
        read = float(text)
    except ValueError:
        read = math.nan
    try:
        return SilenceTimings.detected_within(read)
    except ValueError as error:
        raise ValueError(
            f"${VARIABLE} is {text!r}; expected seconds from {_SHORTEST:g} to {_LONGEST:g}, or 0"
        ) from error


@dataclass(slots=True, eq=False)
class SilenceMonitor:
    """Monitors one worker: its last valid document, or why there is none, and whether it still answers.

    `needs_document`: it registered itself, so it is published once its document has arrived. A listed instance is
    published whatever it answers, and its silence counts only after its first answer: many model servers have no
    `/metadata`.
    """

    instance: Instance
    needs_document: bool = True
    document: MetadataDocument | None = None
    reachable: bool = True
    has_answered: bool = False
    """Any HTTP answer counts."""
    silent: bool = False
    """It has answered, and does not any more."""
    schedule: FetchSchedule = field(default_factory=FetchSchedule)
    problem: str | None = "it has not answered yet"

    @property
    def is_published(self) -> bool:
        """Whether watches with metadata have it."""
        return self.document is not None

    def published_instance(self, reader: MetadataReader) -> Instance | None:
        """The instance as watches with metadata have it; None before it is published."""
        if self.document is None:
            return None
        return replace(
            self.instance,
            revision=self.document.revision,
            serving_port=self._serving_port(self.document),
            reachable=self.reachable,
            reader=reader,
        )

    def _serving_port(self, document: MetadataDocument) -> int | None:
        try:
            return serving_port(self.instance, document.metadata())
        except RecursionError:  # `read_document` accepted it on a stack that was less deep
            return None

    def accepted_connection(self) -> bool:
        """Publish a listed instance: its server accepts connections. Returns whether watches with metadata change."""
        if self.needs_document:
            return False
        before = self.document, self.reachable
        # the last document stays: a listed server that fails for a moment keeps its models
        self.document = self.document or NO_DOCUMENT
        self.reachable = self.document.ready
        return before != (self.document, self.reachable)

    def answered(self, document: MetadataDocument) -> bool:
        """A document arrived. Returns whether watches with metadata change."""
        self.has_answered, self.silent = True, False
        self.problem = None if document.ready else "the worker itself says that it is not ready"
        if document == self.document and self.reachable == document.ready:
            return False
        if document.ready and self.document is not None and not self.document.ready:
            self.schedule.reset_holding()  # a draining worker refuses to hold GETs
        self.document, self.reachable = document, document.ready
        return True

    def failed(self, error: MetadataUnavailableError, problem: str) -> bool:
        """No document arrived, `problem` says why. Returns whether watches with metadata change."""
        self.problem = problem
        if isinstance(error, WorkerUnreachableError):
            return self._unreachable(error)
        if not error.connected:
            return False
        self.has_answered, self.silent = True, False
        return self.accepted_connection()

    def _unreachable(self, error: WorkerUnreachableError) -> bool:
        """Nothing answered. A listed server that accepts connections and never answered may not know `/metadata`."""
        self.silent = self.has_answered
        if error.connected and not self.has_answered and not self.needs_document:
            return self.accepted_connection()
        was, self.reachable = self.reachable, False
        return was and self.is_published

    def silence_delay(self, error: MetadataUnavailableError) -> float | None:
        """Seconds after which its silence is reported, unless it is heard meanwhile; None: it is not silent."""
        if not self.silent or not isinstance(error, WorkerUnreachableError):
            return None
        return 0.0 if error.silent else _LEAVE_DELAY

    def retry_delay(self, error: MetadataUnavailableError) -> float:
        """Seconds until the next GET."""
        if isinstance(error, WorkerUnreachableError):
            return self.schedule.failed(unreachable=True, frozen=error.silent and error.connected)
        if self.is_published and not self.needs_document:
            self.schedule.answered()  # a listed server without /metadata is healthy: poll, do not back off
            return self.schedule.next_poll()
        return self.schedule.failed(unreachable=False)
