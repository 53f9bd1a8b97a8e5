"""The contract suite over the source and the registry of docs/extending.md, as that page tells a reader to run it."""

import os
import subprocess
from pathlib import Path

from tests.stories.test_extending import PROJECT, ROOT, Installed


def test_the_contract_suite_passes_over_the_source_of_a_package(tmp_path: Path) -> None:
    installed = Installed(tmp_path / "environment")
    installed.install(PROJECT)
    suite = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/contract"]
    where = ["--contract-url", "acme-table://TMP/workers.db"]
    command = [str(installed.python), *suite, *where]
    env = os.environ | {"SSL_CERT_FILE": "/dev/null"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
