"""Reads the processor time and memory of processes from /proc, and computes percentiles."""

import os
from pathlib import Path


def processor_seconds(pid: int | None = None) -> float:
    """Returns the seconds that all threads of a process ran, in user and kernel mode."""
    tasks = Path(f"/proc/{pid or os.getpid()}/task")
    nanoseconds = (int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir())
    return sum(nanoseconds) / 1e9


def resident_megabytes(pid: int | None = None) -> float:
    """The resident set, in MB (10⁶ bytes)."""
    pages = int(Path(f"/proc/{pid or os.getpid()}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` (0..1) of the values lie; values need not be sorted."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
