"""How much memory and how many processors this process may use: what its control group leaves of the machine."""

import contextlib
import os
from pathlib import Path
from typing import Final

_MAX_FILE: Final = 4096
"""Characters that are read of a file."""


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes; None: unknown. `root`: of the file system that has /proc and /sys."""
    found = _control_group_texts(root, "memory", "memory.max", "memory.limit_in_bytes")
    limits = [int(text) for text in found if text.isdecimal() and len(text) < 20]  # `max`: none
    with contextlib.suppress(ValueError, OSError):  # a system without these names
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min((limit for limit in limits if limit > 0), default=None)


def cpu_limit(root: Path = Path("/")) -> int:
    """How many processors it may keep busy, at least 1; a quota of one and a half is one. `root`: see `memory_limit`."""
    try:
        limits = [len(os.sched_getaffinity(0))]
    except (AttributeError, OSError):  # a system without it
        limits = [os.cpu_count() or 1]
    # version 1 has the quota and its period in two files, and the period is 0.1 s unless somebody changed it
    for text in _control_group_texts(root, "cpu", "cpu.max", "cpu.cfs_quota_us"):
        quota, _, period = text.partition(" ")
        if quota.isdecimal() and len(quota) < 20 and (period or "100000").isdecimal():
            limits.append(int(quota) // max(1, int(period[:20] or "100000")))
    return max(1, min(limits))


def _control_group_texts(root: Path, controller: str, name: str, old_name: str) -> list[str]:
    """The texts of one file in the process's groups, and in those above them. `old_name`: its name in version 1.

    Version 2 has a line `0::/path`, version 1 one with the controller for each hierarchy (man 7 cgroups). In a container the path
    may be that of the host, and the folder of the group is then the topmost one.
    """
    texts = []
    # bounded: a file of the kernel, cut
    for line in _read(root / "proc/self/cgroup").split("\n"):
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        # bounded: a part of that line
        controllers = names.split(",")
        if number == "0" and not names:
            top, file = root / "sys/fs/cgroup", name
        elif controller in controllers:
            top, file = root / "sys/fs/cgroup" / controller, old_name
        else:
            continue
        group = top / path.strip("/")
        for folder in {top, group, *(one for one in group.parents if one.is_relative_to(top))}:
            texts.append(_read(folder / file).strip())
    return texts


def _read(file: Path) -> str:
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            return opened.read(_MAX_FILE)
    except OSError:
        return ""
