"""The size and speed of the pool's workers: larger and slower than those of the interactive demo, as real ones are."""

from typing import Final

SEQUENCES: Final = 128
"""vLLM's `--max-num-seqs` of one worker: requests in one batch."""

SIMULATOR: Final = (
    *("--max-num-seqs", str(SEQUENCES)),
    *("--num-gpu-blocks", "65536"),
    *("--step-seconds", "0.03"),
)
"""With these a request takes a few seconds, longer than it takes to show in the metrics."""
