"""`python -m benchmarks [NAME ...]`: all of them, or those named."""

import argparse
import asyncio
import platform
import sys

from benchmarks import discovery_scale

_ALL = {"discovery": discovery_scale.main}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(_ALL)}; all without one")
    names = parser.parse_args().names or list(_ALL)
    if unknown := [name for name in names if name not in _ALL]:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(_ALL)}")
    print(f"CPython {platform.python_version()}, {platform.machine()}, {platform.system()}")
    for name in names:
        print(f"\n## {name}")
        asyncio.run(_ALL[name]())
    return 0


if __name__ == "__main__":
    sys.exit(main())
