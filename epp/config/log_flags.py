"""The Go picker's flags of the log: its level, its form and its times."""

import argparse
import logging
from dataclasses import dataclass
from typing import Final

from adsum.command_line import LOG_FORMAT_HELP, LOG_FORMATS
from adsum.logs import TIMES, JsonForm, TextForm
from adsum.quoting import quoted
from epp.config.declared_flags import Flag, FlagGroup, boolean, declared

_ZAP_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "error": logging.ERROR,
    "panic": logging.CRITICAL,
}
_DEFAULT_VERBOSITY: Final = 2
_DEBUG_FROM: Final = 4
"""The verbosity from which everything is logged."""


def _level(text: str) -> int:
    """A name of zap's, or a number above 0, which is a verbosity (controller-runtime's pkg/log/zap/flags.go)."""
    if (named := _ZAP_LEVELS.get(text.lower())) is not None:
        return named
    if text.isascii() and text.isdecimal() and 0 < len(text) < 10 and int(text) > 0:
        return _level_of(int(text))
    raise argparse.ArgumentTypeError(
        f"{quoted(text)} is not a log level; expected debug, info, error, panic or a number above 0"
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """`level`: of Python's logging. `times`: the name of one of TIMES."""

    level: int = declared(
        logging.INFO,
        Flag(
            FlagGroup.OBSERVING,
            "0 warnings, 2 state changes, 4 debug (default: 2)",
            int,
            "LEVEL",
            name="v",
            short="-v",
        ),
        Flag(
            FlagGroup.OBSERVING,
            "debug, info, error, panic or a number as for -v",
            _level,
            "LEVEL",
            name="zap-log-level",
        ),
    )
    json: bool = declared(
        False,
        Flag(FlagGroup.OBSERVING, LOG_FORMAT_HELP, name="log-format", choices=LOG_FORMATS),
        Flag(
            FlagGroup.OBSERVING,
            "the Go picker's name of --log-format: console is text",
            name="zap-encoder",
            choices=("console", "json"),
        ),
        Flag(
            FlagGroup.OBSERVING,
            "false: the log is JSON, unless --zap-encoder says otherwise (default: true)",
            boolean,
            name="zap-devel",
        ),
    )
    times: str | None = declared(
        None,
        Flag(
            FlagGroup.OBSERVING,
            f"the times of the log: {', '.join(TIMES)}",
            metavar="NAME",
            name="zap-time-encoding",
            choices=TIMES,
        ),
    )

    def form(self) -> logging.Formatter:
        return JsonForm(self.times or "rfc3339") if self.json else TextForm(self.times)


def read(given: argparse.Namespace) -> LogSettings:
    verbosity = _DEFAULT_VERBOSITY if given.v is None else given.v
    level = _level_of(verbosity) if given.zap_log_level is None else given.zap_log_level
    if given.log_format is not None:
        return LogSettings(level, given.log_format == "json", given.zap_time_encoding)
    encoder = given.zap_encoder or ("json" if given.zap_devel is False else "console")
    return LogSettings(level, encoder == "json", given.zap_time_encoding)


def exclusive(given: argparse.Namespace) -> str | None:
    """The problem of two flags that say different things; None if there is none."""
    if given.log_format is None or given.zap_encoder is None:
        return None
    agree = (given.log_format == "json") == (given.zap_encoder == "json")
    return (
        None if agree else "--log-format and --zap-encoder name different forms of the log; give one of them"
    )


def _level_of(verbosity: int) -> int:
    if verbosity <= 0:
        return logging.WARNING
    return logging.INFO if verbosity < _DEBUG_FROM else logging.DEBUG
