"""`python -m epp`: the endpoint picker. `envoy-config`: the Envoy configuration that goes with it. `validate FILE`.
`decisions` and `explain`: ask a picker that runs.
"""

import argparse
import sys
from collections.abc import Sequence

from adsum.command_line import FAILED, WRONG_INPUT, not_installed, print_error, program, with_commands
from epp.config import flags


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 after SIGTERM or SIGINT, 1 after a failure, 2 for bad input."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        return _run(given)
    except ModuleNotFoundError as missing:  # they are installed with the extra `epp`
        return print_error(not_installed(missing, "epp"), FAILED)


def build_parser() -> argparse.ArgumentParser:
    """The picker's flags, and the commands with theirs; shell completion reads this parser."""
    from epp.decision_commands import flags as decision_flags
    from epp.envoy import flags as envoy_flags

    commands = {
        "envoy-config": envoy_flags.build_parser(),
        "validate": flags.validate_parser(),
        "decisions": decision_flags.decisions_parser(),
        "explain": decision_flags.explain_parser(),
    }
    return with_commands(flags.build_parser(), commands)


def _run(given: Sequence[str]) -> int:
    """Import what runs only after its flags are parsed, so that --help is fast."""
    if given[:1] == ["envoy-config"]:
        return _envoy_config(given[1:])
    if given[:1] == ["validate"]:
        file = flags.parse_validate(given[1:])
        from epp.config.validate import validate

        return validate(file)
    if given[:1] in (["decisions"], ["explain"]):
        return _question(given[0], given[1:])
    if given and not given[0].startswith("-"):
        problem = f"there is no command {given[0]!r}; there are envoy-config, validate, decisions and explain"
        return print_error(
            f"{problem}, without a command the picker starts; see {program('epp')} --help", WRONG_INPUT
        )
    settings, log_settings, ignored = flags.parse(given)
    from epp.config.sibling_processes import inherited

    siblings = inherited()
    if settings.processes > 1 and siblings is None:
        from epp.serve.processes import run as run_processes

        return run_processes(settings, log_settings, given)
    from epp.process import run

    return run(settings, log_settings, ignored, siblings)


def _question(name: str, given: Sequence[str]) -> int:
    from epp.decision_commands import flags as decision_flags

    parser = decision_flags.decisions_parser() if name == "decisions" else decision_flags.explain_parser()
    options = parser.parse_args(given)
    from epp.decision_commands import commands

    return commands.run(commands.decisions if name == "decisions" else commands.explain, options)


def _envoy_config(given: Sequence[str]) -> int:
    from epp.envoy import flags as envoy_flags

    settings = envoy_flags.parse(given)
    from epp.envoy.config import render

    sys.stdout.write(render(settings))
    if settings.why_ext_proc:
        print(
            f"{program('epp')} envoy-config: --outcomes is ext-proc: {settings.why_ext_proc}", file=sys.stderr
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
