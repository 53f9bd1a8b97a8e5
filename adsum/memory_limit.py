"""How much memory this process may use: the limit of its control group, or the memory of the machine."""

import contextlib
import os
from pathlib import Path
from typing import Final

_MAX_FILE: Final = 4096
"""Characters that are read of a file."""


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes; None: unknown. `root`: of the file system that has /proc and /sys."""
    found = control_group_texts(root, "memory", "memory.max", "memory.limit_in_bytes")
    limits = [int(text) for text in found if text.isdecimal() and len(text) < 20]  # `max`: none
    with contextlib.suppress(ValueError, OSError):  # a system without these names
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min((limit for limit in limits if limit > 0), default=None)


def control_group_texts(root: Path, controller: str, name: str, old_name: str) -> list[str]:
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
