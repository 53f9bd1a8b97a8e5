"""`python -m tests.system [pytest arguments]`: builds what the tests run, then runs them in a network namespace of their own.

In it 10.244.0.0/16 lives on the loopback interface, so that any of these addresses is a pod that a process can be.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.system.building import BuildError, build_all, install_packages

ROOT = Path(__file__).parents[2]
INSIDE = 'ip link set lo up && ip addr add 10.244.0.1/16 dev lo && exec "$@"'


def main(arguments: list[str]) -> int:
    """pytest's exit code; 2 when something is missing."""
    try:
        check_machine()
        install_packages()
        build_all()
    except BuildError as error:
        print(f"tests.system: {error}", file=sys.stderr)
        return 2
    pytest = [sys.executable, "-m", "pytest", "tests/system", *arguments]
    return subprocess.run(["unshare", "--net", "sh", "-c", INSIDE, "sh", *pytest], cwd=ROOT).returncode


def check_machine() -> None:
    """BuildError that says what to do, unless we are root on Linux with iproute2."""
    if os.geteuid() != 0:
        raise BuildError("network namespaces need root: run `make test-system` as root")
    for program, package in (("unshare", "util-linux"), ("ip", "iproute2")):
        if shutil.which(program) is None:
            raise BuildError(f"there is no `{program}`: install the package {package}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
