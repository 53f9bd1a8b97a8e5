"""`python -m release`: builds the archives of a version in dist/, checks them, and installs each into a fresh environment."""

import sys

from release.archives import DIST, build
from release.fresh_environment import try_out
from release.shell import ReleaseError, run


def main() -> None:
    try:
        archives = build()
        run([sys.executable, "-m", "twine", "check", "--strict", *map(str, archives)])
        for archive in archives:
            for line in try_out(archive):
                print(f"{archive.name}: {line}")
    except ReleaseError as fault:
        sys.exit(f"error: {fault}")
    print(f"{len(archives)} archives in {DIST}")


main()
