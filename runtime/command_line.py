"""How our programs refuse: one line on stderr, `error: what was wrong; what was expected; what to do`, and an exit code.

The codes are those of argparse (2) and of shells (1, and 128 + signal), not those of sysexits.h: argparse and Python
know only these, and Kubernetes and systemd tell 0 from all others.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final, NoReturn, TypeVar

from runtime.errors import AdsumError

T = TypeVar("T")

SUCCEEDED: Final = 0
"""It is done; or a signal came, and the program drained."""
FAILED: Final = 1
"""What the world around can put right: nobody answers, a port is taken, a right is missing."""
WRONG_INPUT: Final = 2
"""What the user can put right: an argument, or a file that one names (missing, unreadable, malformed)."""
ANSWERS_ARE_ERRORS: Final = 3
"""All is done, but some of the answers that it brought are errors (`dispatcher submit`)."""
INTERRUPTED: Final = 130
"""Ctrl-C ended it before its work was done: 128 + SIGINT, as shells count."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments in one line, without the usage text; exit code 2."""

    def error(self, message: str) -> NoReturn:
        sys.exit(complain(f"{message}; see {self.prog} --help", WRONG_INPUT))


def program(package: str) -> str:
    """How to start a program of ours in the form in which this one was started: `adsum epp` or `python -m epp`."""
    started = PurePath(sys.argv[0] if sys.argv else "")
    if started.name == "adsum":
        return f"adsum {package}"
    if started.parts[-2:] == ("adsum", "__main__.py"):
        return f"python -m adsum {package}"
    return f"python -m {package}"


def with_commands(
    parser: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser]
) -> argparse.ArgumentParser:
    """`parser` with commands that have parsers of their own; shell completion reads all of it as one."""
    added = parser.add_subparsers(metavar="COMMAND")
    for name, command in commands.items():
        added.add_parser(name, parents=[command], add_help=False, help=command.description)
    return parser


class ShowVersion(argparse.Action):
    """`--version`: of adsum as it is installed, for all its programs the same."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="show adsum's version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        show_version()


def argument(read: Callable[[str], T]) -> Callable[[str], T]:
    """What argparse takes for `type`: the text of a ValueError is shown, where argparse would hide it."""

    def value(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return value


def show_version() -> NoReturn:
    """Print it and exit."""
    from importlib.metadata import PackageNotFoundError, version  # 10 ms, for who asks only

    try:
        print(f"adsum {version('adsum')}")
    except PackageNotFoundError:
        sys.exit(complain("adsum is not installed, so its version is not known", FAILED))
    sys.exit(SUCCEEDED)


def not_installed(missing: ModuleNotFoundError, extra: str) -> str:
    """What to do about a library that only comes with an extra."""
    return f"the module {missing.name!r} is not installed; {how_to_install(extra)}"


def how_to_install(extra: str) -> str:
    """An extra of adsum, which no package index has."""
    return (
        f"in a checkout of adsum run: pip install '.[{extra}]'; a wheel takes [{extra}] behind its file name"
    )


def complain(error: BaseException | str, code: int | None = None) -> int:
    """Print what was wrong and return the exit code; None: the one that follows from the error."""
    print(f"error: {error if isinstance(error, str) else in_words(error)}", file=sys.stderr)
    return code if code is not None else exit_code(error)


def output_unwanted() -> int:
    """After a BrokenPipeError: `| head` has seen enough. The exit code; the interpreter's own last flush is silenced."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return SUCCEEDED


def exit_code(error: BaseException | str) -> int:
    """WRONG_INPUT for a ValueError and for a file that was named and cannot be read; FAILED for all else."""
    return WRONG_INPUT if isinstance(error, ValueError) or _of_file(error) is not None else FAILED


def in_words(error: BaseException) -> str:
    """What it says, without a number that only the operating system knows."""
    failed = _of_file(error)
    if failed is not None:
        return f"{failed.filename} cannot be read: {failed.strerror}; expected a file that this user can read"
    if isinstance(error, OSError) and error.strerror and not isinstance(error, AdsumError):
        return error.strerror
    return str(error) or type(error).__name__


def _of_file(error: BaseException | str) -> OSError | None:
    is_ours = isinstance(error, AdsumError)
    return error if isinstance(error, OSError) and error.filename is not None and not is_ours else None
