"""How much memory this process may use: the limit of its control group, or the memory of the machine."""

import contextlib
import os
from pathlib import Path
from typing import Final

_MAX_FILE: Final = 4096
"""Characters that are read of a file."""


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes; None: unknown. `root`: of the file system that has /proc and /sys."""
    limits = [*_control_group_limits(root)]
    with contextlib.suppress(ValueError, OSError):  # a system without these names
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min((limit for limit in limits if limit > 0), default=None)


def _control_group_limits(root: Path) -> list[int]:
    """The limits, in bytes, of the process's groups and of those above them.

    Version 2 has a line `0::/path`, version 1 one with `memory` for each hierarchy (man 7 cgroups). In a container the path
    may be that of the host, and the folder of the group is then the topmost one.
    """
    limits = []
    # bounded: a file of the kernel, cut
    for line in _read(root / "proc/self/cgroup").split("\n"):
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        # bounded: a part of that line
        controllers = names.split(",")
        if number == "0" and not names:
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers:
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.strip("/")
        for folder in {top, group, *(one for one in group.parents if one.is_relative_to(top))}:
            text = _read(folder / name).strip()
            if text.isdecimal() and len(text) < 20:  # `max`: none
                limits.append(int(text))
    return limits


def _read(file: Path) -> str:
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            return opened.read(_MAX_FILE)
    except OSError:
        return ""
