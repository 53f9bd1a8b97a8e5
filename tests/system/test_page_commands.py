"""The commands on our pages, typed as they stand: each page in a network of its own, so that its ports are free."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.page_scenarios import SCENARIOS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", SCENARIOS)
def test_the_commands_of_a_page_do_what_it_says(page: str, tmp_path: Path) -> None:
    own = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    inside = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    read = [sys.executable, "-m", "tests.system.page_process", page, str(tmp_path)]
    done = subprocess.run([*own, *inside, *read], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr}"
