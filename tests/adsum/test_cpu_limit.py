import os
from pathlib import Path

import pytest

from adsum.cpu_limit import cpu_limit

MACHINE = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/pod/picker\n", {"pod/picker/cpu.max": "100000 100000", "pod/cpu.max": "max 100000"}, 1),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, MACHINE),
        ("0::/\n", {"cpu.max": "no number"}, MACHINE),
        ("0::/\n", {"cpu.max": "99999900000 100000"}, MACHINE),
        ("3:cpu,cpuacct:/docker/1\n", {"cpu/docker/1/cpu.cfs_quota_us": "150000\n"}, 1),
        ("3:cpu,cpuacct:/\n", {"cpu/cpu.cfs_quota_us": "-1\n"}, MACHINE),
    ],
)
def test_the_quota_counts_or_the_processors(
    tmp_path: Path, groups: str, files: dict[str, str], expected: int
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert cpu_limit(tmp_path) == expected
