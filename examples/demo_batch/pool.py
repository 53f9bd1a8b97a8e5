"""The pool that the batch shares with interactive users: larger and slower than the demo's, as real ones are."""

from typing import Final

SEQUENCES: Final = 128
"""Requests that one worker computes at once."""

SIMULATOR: Final = (
    *("--max-num-seqs", str(SEQUENCES)),
    *("--num-gpu-blocks", "65536"),
    *("--step-seconds", "0.03"),
)
"""A request takes a few seconds, longer than it takes to be seen in the metrics."""
