"""How soon a worker that has stopped, and whose connections stay open, is told to be unreachable. Pure but for `given`."""

import math
import os
from dataclasses import dataclass
from typing import Final, Self

VARIABLE: Final = "ADSUM_SILENT_AFTER"
DEFAULT: Final = 4.0
_LEAST: Final = 1.0
_MOST: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Silence:
    """A GET is held for `wait` seconds, others are sent every `poll` seconds; `margin` is what an answer may be late.

    `in_every_watch`: whether a watch without metadata looks too.
    """

    wait: float = 10.0
    margin: float = 2.0
    poll: float = 2.0
    in_every_watch: bool = True

    @classmethod
    def told_within(cls, seconds: float) -> Self:
        """So that silence is told within so many seconds; 0: in a watch with metadata only, and late.

        The longest time between two signs of life is wait + margin, or 1.1 poll + margin: pauses have a jitter.
        """
        if seconds == 0:
            return cls(in_every_watch=False)
        if not _LEAST <= seconds <= _MOST:
            raise ValueError(
                f"silent_after is {seconds:g}; expected 0 (do not look) or {_LEAST:g} to {_MOST:g} seconds"
            )
        return cls(wait=seconds / 2, margin=seconds * 0.4, poll=min(2.0, seconds / 2))


def given(seconds: float | None) -> Silence:
    """What was asked for, else what the environment says, else the default; ValueError names what is wrong."""
    if seconds is not None:
        return Silence.told_within(seconds)
    text = os.environ.get(VARIABLE) or str(DEFAULT)
    try:
        read = float(text)
    except ValueError:
        read = math.nan
    try:
        return Silence.told_within(read)
    except ValueError as error:
        raise ValueError(
            f"${VARIABLE} is {text!r}; expected seconds from {_LEAST:g} to {_MOST:g}, or 0"
        ) from error
