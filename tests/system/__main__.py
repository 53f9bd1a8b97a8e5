"""`python -m tests.system [pytest arguments]`: builds what the tests run, then runs them, three files at a time.

Each pytest process is in a network namespace of its own: no test shares its fixed ports and addresses with another. There
10.244.0.0/16 lives on the loopback interface, so that any of these addresses is a pod that a process can be.
`--numprocesses=0` runs all in one process, for a debugger.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.system.building import BuildError, build_all, install_packages

ROOT = Path(__file__).parents[2]
INSIDE = 'ip link set lo up && ip addr add 10.244.0.1/16 dev lo && exec "$@"'
PYTHON = ("unshare", "--net", "sh", "-c", INSIDE, "sh", sys.executable)
"""An interpreter in a network namespace of its own."""
# three for two processors: of their time most tests wait more than half
SHARED_OUT = ("--dist=loadfile", "--no-loadscope-reorder", f"--tx=3*popen//python={shlex.join(PYTHON)}")


def main(arguments: list[str]) -> int:
    """pytest's exit code; 2 when something is missing."""
    try:
        check_machine()
        install_packages()
        build_all()
    except BuildError as error:
        print(f"tests.system: {error}", file=sys.stderr)
        return 2
    pytest = [*PYTHON, "-m", "pytest", "tests/system", *SHARED_OUT, *arguments]
    # as `make test`: hundreds of processes need not read the machine's certificate authorities at their start
    return subprocess.run(pytest, cwd=ROOT, env=os.environ | {"SSL_CERT_FILE": "/dev/null"}).returncode


def check_machine() -> None:
    """BuildError that says what to do, unless we are root on Linux with iproute2."""
    if os.geteuid() != 0:
        raise BuildError("network namespaces need root: run `make test-system` as root")
    for program, package in (("unshare", "util-linux"), ("ip", "iproute2")):
        if shutil.which(program) is None:
            raise BuildError(f"there is no `{program}`: install the package {package}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
