"""How soon a worker counts as unreachable that has stopped while its connections stay open; `$ADSUM_SILENT_AFTER`.

Pure, but for reading the environment.
"""

import math
import os
from dataclasses import dataclass
from typing import Final, Self

VARIABLE: Final = "ADSUM_SILENT_AFTER"
DEFAULT: Final = 4.0
_SHORTEST: Final = 1.0
_LONGEST: Final = 3600.0


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
