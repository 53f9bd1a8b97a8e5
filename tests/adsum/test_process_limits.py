import os
from pathlib import Path

import pytest

from adsum.process_limits import cpu_limit, memory_limit

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
PROCESSORS = len(os.sched_getaffinity(0))


def write(root: Path, groups: str, files: dict[str, str]) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/pod/picker\n", {"pod/picker/memory.max": "max", "pod/memory.max": "4096000"}, 4096000),
        ("0::/pod/picker\n", {"pod/picker/memory.max": "1024", "pod/memory.max": "4096000"}, 1024),
        ("0::/\n", {"memory.max": "2048\n"}, 2048),
        ("0::/of/the/host\n", {"memory.max": "2048\n"}, 2048),
        ("3:cpu,memory:/docker/1\n0::/\n", {"memory/memory.limit_in_bytes": "8192\n"}, 8192),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, MACHINE),
        ("0::/\n", {"memory.max": "max\n"}, MACHINE),
        ("0::/\n", {"memory.max": "0\n"}, MACHINE),
        ("0::/\n", {"memory.max": "-5 and no number"}, MACHINE),
        ("no such line\n", {}, MACHINE),
    ],
)
def test_the_smallest_limit_counts(tmp_path: Path, groups: str, files: dict[str, str], expected: int) -> None:
    write(tmp_path, groups, files)
    assert memory_limit(tmp_path) == expected


def test_without_control_groups_the_machine_s_memory(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) == MACHINE


def test_of_this_process() -> None:
    limit = memory_limit()
    assert limit is not None
    assert 0 < limit <= MACHINE


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/pod/picker\n", {"pod/picker/cpu.max": "100000 100000", "pod/cpu.max": "max 100000"}, 1),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, PROCESSORS),
        ("0::/\n", {"cpu.max": "no number"}, PROCESSORS),
        ("0::/\n", {"cpu.max": "99999900000 100000"}, PROCESSORS),
        ("3:cpu,cpuacct:/docker/1\n", {"cpu/docker/1/cpu.cfs_quota_us": "150000\n"}, 1),
        ("3:cpu,cpuacct:/\n", {"cpu/cpu.cfs_quota_us": "-1\n"}, PROCESSORS),
    ],
)
def test_the_quota_counts_or_the_processors(
    tmp_path: Path, groups: str, files: dict[str, str], expected: int
) -> None:
    write(tmp_path, groups, files)
    assert cpu_limit(tmp_path) == expected
