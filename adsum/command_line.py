"""Errors, exit codes and help of all programs: one line on stderr, `error: problem; what was expected; what to do`.

The exit codes are those of argparse (2) and of shells (1, and 128 + signal), not those of sysexits.h: argparse and
Python use only these, and Kubernetes and systemd distinguish 0 from all others.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final, NoReturn, TypeVar

from adsum.errors import AdsumError

T = TypeVar("T")

LOG_FORMATS: Final = ("text", "json")
LOG_FORMAT_HELP: Final = "of the log, the ready line and errors: text, or JSON, a line each (default: text)"

SUCCEEDED: Final = 0
"""Also after a drain that a signal asked for."""
FAILED: Final = 1
"""A fault of the environment: a server does not answer, a port is taken, a permission is missing."""
WRONG_INPUT: Final = 2
"""A fault of the input: an argument, or a file that an argument names (missing, unreadable, malformed)."""
ANSWERS_ARE_ERRORS: Final = 3
"""The work is done, but some of the results are errors (`dispatcher submit`)."""
INTERRUPTED: Final = 130
"""Ctrl-C before the work was done: 128 + SIGINT, as shells report it."""


class Parser(argparse.ArgumentParser):
    """Reports wrong arguments in one line, without the usage text, with exit code 2."""

    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Remember the arguments: an error of one may have to be printed as another says."""
        self._given = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        as_json = _asks_for_json(self._given)
        sys.exit(print_error(f"{message}; see {self.prog} --help", WRONG_INPUT, as_json=as_json))


class CommandParser(Parser):
    """Parses one command of a program; an unknown argument is its error, so that the right help is named."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown


def add_log_format(parser: Any) -> None:
    """`parser`: one, or a group of one."""
    parser.add_argument("--log-format", choices=LOG_FORMATS, help=LOG_FORMAT_HELP)


def _asks_for_json(given: Sequence[str]) -> bool:
    words = f" {' '.join(given)} ".replace("=", " ")
    return " --log-format json " in words or " --zap-encoder json " in words


def program(package: str) -> str:
    """The command that starts a program, in the form in which this process was started: `adsum epp`, `python -m epp`."""
    started = PurePath(sys.argv[0] if sys.argv else "")
    if started.name == "adsum":
        return f"adsum {package}"
    if started.parts[-2:] == ("adsum", "__main__.py"):
        return f"python -m adsum {package}"
    return f"python -m {package}"


def with_commands(
    parser: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser]
) -> argparse.ArgumentParser:
    """Add commands that have parsers of their own to `parser`, so that shell completion sees all of them."""
    added = parser.add_subparsers(metavar="COMMAND")
    for name, command in commands.items():
        added.add_parser(
            name,
            parents=[command],
            add_help=False,
            help=command.description,
            formatter_class=command.formatter_class,
        )
    return parser


class ShowVersion(argparse.Action):
    """`--version`: prints the version of the installed adsum, the same for all programs."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="show adsum's version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        version = installed_version()
        if version is None:
            sys.exit(print_error("adsum is not installed, so its version is unknown", FAILED))
        print(f"adsum {version}")
        sys.exit(SUCCEEDED)


def argument(read: Callable[[str], T]) -> Callable[[str], T]:
    """A `type` for argparse whose error shows the text of a ValueError; argparse itself would hide it."""

    def value(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return value


def not_installed(missing: ModuleNotFoundError, extra: str) -> str:
    """The error text for a missing library that an extra installs."""
    return f"the module {missing.name!r} is not installed; {install_hint(extra)}"


def install_hint(extra: str) -> str:
    """How to install an extra. adsum is in no package index, so `pip install adsum[...]` would not work."""
    return (
        f"in a checkout of adsum run: pip install '.[{extra}]'; a wheel takes [{extra}] behind its file name"
    )


def print_error(error: BaseException | str, code: int | None = None, *, as_json: bool = False) -> int:
    """Print one line and return the exit code; `code` None: `exit_code(error)`. JSON if the log is, or with `as_json`."""
    from adsum.logs import error_line  # needed by a program that fails only, and --help has to be fast

    print(
        error_line(error if isinstance(error, str) else describe_error(error), as_json=as_json),
        file=sys.stderr,
    )
    return code if code is not None else exit_code(error)


def on_broken_pipe() -> int:
    """Returns the exit code after a BrokenPipeError (`| head`). Redirects stdout to /dev/null, as Python's documentation of
    SIGPIPE advises: the interpreter flushes it at exit and would fail again.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return SUCCEEDED


def exit_code(error: BaseException | str) -> int:
    """WRONG_INPUT for a ValueError and for a named file that cannot be read; FAILED for all other errors."""
    return WRONG_INPUT if isinstance(error, ValueError) or _named_file_error(error) is not None else FAILED


def describe_error(error: BaseException) -> str:
    """The error's text, without errno."""
    file_error = _named_file_error(error)
    if file_error is not None:
        return f"{file_error.filename} cannot be read: {file_error.strerror}; expected a file that this user can read"
    if isinstance(error, OSError) and error.strerror and not isinstance(error, AdsumError):
        return error.strerror
    return str(error) or type(error).__name__


def _named_file_error(error: BaseException | str) -> OSError | None:
    is_ours = isinstance(error, AdsumError)
    return error if isinstance(error, OSError) and error.filename is not None and not is_ours else None


def installed_version() -> str | None:
    """None: it runs from a checkout that nobody installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("adsum")
    except PackageNotFoundError:
        return None
