"""How many processors this process may keep busy: those that it may run on, or the quota of its control group."""

import os
from pathlib import Path

from adsum.memory_limit import control_group_texts


def cpu_limit(root: Path = Path("/")) -> int:
    """At least 1; a quota of one and a half is one. `root`: of the file system that has /proc and /sys."""
    try:
        limits = [len(os.sched_getaffinity(0))]
    except (AttributeError, OSError):  # a system without it
        limits = [os.cpu_count() or 1]
    # version 1 has the quota and its period in two files, and the period is 0.1 s unless somebody changed it
    for text in control_group_texts(root, "cpu", "cpu.max", "cpu.cfs_quota_us"):
        quota, _, period = text.partition(" ")
        if quota.isdecimal() and len(quota) < 20 and (period or "100000").isdecimal():
            limits.append(int(quota) // max(1, int(period[:20] or "100000")))
    return max(1, min(limits))
