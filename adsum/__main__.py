"""`adsum discovery|registry|epp|dispatcher|serve ...`: runs the same code as `python -m NAME`, and imports only that program."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Final, NoReturn

from adsum.command_line import (
    FAILED,
    SUCCEEDED,
    WRONG_INPUT,
    Parser,
    ShowVersion,
    install_hint,
    on_broken_pipe,
    print_error,
    with_commands,
)
from adsum.imports import ShadowedPackageError, check_not_shadowed
from adsum.quoting import quoted

PROGRAMS: Final = {
    "discovery": "who is there? list, watch and explain the instances of a component, check a worker",
    "registry": "I am here: register a model server that is not ours, from beside it",
    "epp": "which one gets this request? the endpoint picker for Envoy",
    "dispatcher": "when? send queued requests while the pool has room for them",
    "serve": "all on one machine: the picker and an Envoy in front of your workers",
}
_PACKAGES: Final = {"serve": "epp.serve"}
"""Programs whose package has another name."""
SHELLS: Final = ("bash", "zsh", "fish")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code of the program that the first argument names."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if not given or given[0].startswith("-"):
        build_parser().parse_args(given)  # --help, --version and --print-completion end the process
        expected = ", ".join(PROGRAMS)
        return print_error(f"a program is missing; expected one of {expected}; see adsum --help", WRONG_INPUT)
    name, *rest = given
    if name not in PROGRAMS:
        return print_error(_unknown(name), WRONG_INPUT)
    module = package_of(name)
    # bounded: a name of ours
    package = module.partition(".")[0]
    try:
        check_not_shadowed(package, "discovery")
        code: int = import_module(f"{module}.__main__").main(rest)
    except ShadowedPackageError as error:
        return print_error(str(error), FAILED)
    except ModuleNotFoundError as missing:
        if missing.name != package:
            raise
        return print_error(f"{package} is not installed; {install_hint(name)}", FAILED)
    return code


def build_parser() -> argparse.ArgumentParser:
    """The parser of the options before the program's name."""
    width = max(map(len, PROGRAMS)) + 2
    listed = "\n".join(f"  {name:{width}}{about}" for name, about in PROGRAMS.items())
    parser = Parser(
        prog="adsum",
        usage="adsum [--help] [--version] [--print-completion SHELL] PROGRAM ...",
        description="Service discovery and request routing for LLM inference.",
        epilog=f"programs:\n{listed}\n\nadsum PROGRAM --help says what each one takes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=ShowVersion)
    parser.add_argument(
        "--print-completion",
        action=_PrintCompletion,
        choices=SHELLS,
        metavar="SHELL",
        help="print what completes adsum's arguments in bash, zsh or fish",
    )
    return parser


class _PrintCompletion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, _: object, shell: Any, *__: Any) -> NoReturn:

        try:
            print(_completion(parser, shell), flush=True)
        except BrokenPipeError:
            on_broken_pipe()
        sys.exit(SUCCEEDED)


def package_of(program: str) -> str:
    """Return the package that has the program's `__main__`."""
    return _PACKAGES.get(program, program)


def _unknown(name: str) -> str:
    import difflib  # needed for a mistyped name only

    near = difflib.get_close_matches(name, PROGRAMS, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return (
        f"there is no program {quoted(name)}; expected one of {', '.join(PROGRAMS)}; {meant}see adsum --help"
    )


def _completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for bash, zsh or fish, from the parsers of all programs. Completing with it starts no process."""
    import shtab  # needed for this script only

    everything = with_commands(parser, {name: _parser_of(name, about) for name, about in PROGRAMS.items()})
    for action in _actions(everything):
        if action.metavar == "FILE":
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # how shtab is told what a value is
    return shtab.complete(everything, shell=shell)


def _parser_of(program: str, about: str) -> argparse.ArgumentParser:
    """Only the name of a program that is not installed is completed."""
    try:
        parser: argparse.ArgumentParser = import_module(f"{package_of(program)}.__main__").build_parser()
    except ModuleNotFoundError:
        parser = Parser()
    parser.description = about
    return parser


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # argparse has no public way to walk a parser
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)


if __name__ == "__main__":
    sys.exit(main())
