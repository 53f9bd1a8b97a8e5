"""Parses the values of flags, strictly: ports, sizes, booleans, objectives."""

import argparse
import re
from collections.abc import Callable

from adsum.addresses import authority, check_host, split_authority
from adsum.command_line import argument
from adsum.quoting import quoted
from adsum.units import parse_go_duration, parse_quantity
from epp.config.metric_flags import parse_metric
from epp.scraping.engines import Series

duration = argument(parse_go_duration)
metric: Callable[[str], tuple[Series, ...]] = argument(parse_metric)
quantity = argument(parse_quantity)


def port(text: str) -> int:
    """A TCP port; 0 is any free one."""
    number = _number(text, 65535)
    if number is None:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a port, 0 to 65535")
    return number


@argument
def host_port(text: str) -> str:
    """A host, which may be a name, and a port; 0 is any free one."""
    host, number = split_authority(text, min_port=0)
    return authority(check_host(host), number)


def count(text: str) -> int:
    """A number of things, up to a million."""
    number = _number(text, 1_000_000)
    if number is None:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a whole number from 0 to 1000000")
    return number


def size(text: str, most: int = 2**63 - 1) -> int:
    """Bytes, with or without a unit: 4194304, 10Mi."""
    number = quantity(text)
    if not 1 <= number <= most:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a size from 1 to {most} bytes")
    return number


def message_size(text: str) -> int | None:
    """A size in bytes that fits a gRPC channel option; None, the default, for 0 and an empty text, as in the Go picker."""
    return None if text in ("", "0") else size(text, 2**31 - 1)


def _number(text: str, most: int) -> int | None:
    """None if `text` is not a whole number from 0 to `most`."""
    if not re.fullmatch("[0-9]{1,19}", text) or int(text) > most:
        return None
    return int(text)


def boolean(text: str) -> bool:
    """The texts of Go's strconv.ParseBool."""
    if text in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if text in ("0", "f", "F", "false", "FALSE", "False"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")


def objective(text: str) -> tuple[str, int]:
    """Parse `NAME=PRIORITY`, the priority an integer; raises ArgumentTypeError."""
    name, equals, priority = text.partition("=")
    try:
        number = int(priority)
    except ValueError:
        number, equals = 0, ""
    if not name or not equals:
        raise argparse.ArgumentTypeError(
            f"{quoted(text)} is not NAME=PRIORITY with a whole number, as batch=-1"
        )
    return name, number
