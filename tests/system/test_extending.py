"""The contract suites over the source and the broker of docs/extending*.md, as these pages tell a reader to run them."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.stories.test_extending import PROJECT, ROOT, Installed


@pytest.mark.parametrize(
    ("suite", "over"),
    [
        ("tests/contract", ("--contract-url", "acme-table://TMP/workers.db")),
        ("tests/dispatcher/broker/contract", ("--broker-url", "acme-sqlite://TMP/queues.db")),
    ],
)
def test_a_contract_suite_passes_over_what_a_package_adds(
    tmp_path: Path, suite: str, over: tuple[str, str]
) -> None:
    installed = Installed(tmp_path / "environment")
    installed.install(PROJECT)
    command = [str(installed.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", suite, *over]
    env = os.environ | {"SSL_CERT_FILE": "/dev/null"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
