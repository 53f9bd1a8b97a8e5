"""How a flag is declared, on the field that it sets, and how values are parsed: ports, sizes, booleans, objectives."""

import argparse
import copy
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

from adsum.addresses import authority, check_host, split_authority
from adsum.command_line import argument
from adsum.process_limits import cpu_limit
from adsum.quoting import quoted
from adsum.units import parse_go_duration, parse_quantity
from epp.config.metric_flags import parse_metric
from epp.scraping.engines import Series

T = TypeVar("T")

DEFAULT_MESSAGE_SIZE: Final = 4 * 1024 * 1024

MOST_PROCESSES: Final = 64
"""Each has a stream to each other one."""

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


def processes(text: str) -> int:
    """How many; `auto`: as many as there are processors."""
    if text == "auto":
        return min(cpu_limit(), MOST_PROCESSES)
    number = _number(text, MOST_PROCESSES)
    if not number:
        raise argparse.ArgumentTypeError(
            f"{quoted(text)} is neither auto nor a whole number from 1 to {MOST_PROCESSES}"
        )
    return number


def size(text: str, most: int = 2**63 - 1) -> int:
    """Bytes, with or without a unit: 4194304, 10Mi."""
    number = quantity(text)
    if not 1 <= number <= most:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a size from 1 to {most} bytes")
    return number


def message_size(text: str) -> int:
    """A size in bytes that fits a gRPC channel option; the default for 0 and an empty text, as in the Go picker."""
    return DEFAULT_MESSAGE_SIZE if text in ("", "0") else size(text, 2**31 - 1)


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


class FlagGroup(Enum):
    """The titles in --help, in its order."""

    WORKERS = "workers"
    SERVING = "serving"
    PEERS = "other pickers"
    SECURITY = "security"
    METRICS = "numbers on the workers' pages"
    LIMITS = "limits"
    PICKING = "picking"
    OBSERVING = "observing"


_METAVARS: Final[dict[Callable[[str], Any], str]] = {
    Path: "FILE",
    boolean: "BOOL",
    count: "N",
    duration: "DURATION",
    host_port: "HOST:PORT",
    message_size: "SIZE",
    metric: "SERIES",
    objective: "NAME=PRIORITY",
    port: "PORT",
    size: "SIZE",
}


@dataclass(frozen=True, slots=True)
class Flag:
    """`kind` parses the value; that of a `boolean` may be left out, and an Enum is a choice.

    `collect`: the flag may be repeated, and this makes its field of the list of values. `name` empty: that of its field.
    `group` None: it is not shown. `short`: another spelling.
    """

    group: FlagGroup | None
    help: str
    kind: Callable[[str], Any] = str
    metavar: str | None = None
    name: str = ""
    collect: Callable[[list[Any]], Any] | None = None
    choices: Sequence[str] | None = None
    short: str = ""

    @property
    def destination(self) -> str:
        return self.name.replace("-", "_")

    def add_to(self, parser: Any) -> None:
        """`parser`: one, or a group of one."""
        kind: Any = self.kind
        more: dict[str, Any] = {"nargs": "?", "const": True} if kind is boolean else {}
        if self.collect is not None:
            more["action"] = "append"
        parser.add_argument(
            *([self.short] if self.short else []),
            f"--{self.name}",
            type=kind,
            choices=list(kind) if isinstance(kind, type) and issubclass(kind, Enum) else self.choices,
            metavar=self.metavar or _METAVARS.get(kind),
            help=self.help,
            **more,
        )


def flag(
    default: T,
    group: FlagGroup,
    help: str,
    kind: Callable[[str], T] | None = None,
    metavar: str | None = None,
) -> T:
    """A field of a dataclass that the flag of the same name sets; `kind` None: to its text."""
    return declared(default, Flag(group, help, str if kind is None else kind, metavar))


def declared(default: T, *flags: Flag) -> T:
    """A field that these flags set: one of its own name, and those that collect; what else is code of who parses."""
    metadata = {"flags": flags}
    if default.__hash__ is None:  # a dict, which a dataclass refuses as a default
        return field(default_factory=lambda: copy.copy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def flags_of(settings: type[Any]) -> Iterator[tuple[str, Flag]]:
    """Each flag of a dataclass, with the field that it sets."""
    for one in fields(settings):
        for declaration in one.metadata.get("flags", ()):
            yield one.name, replace(declaration, name=declaration.name or one.name.replace("_", "-"))


def add_flags(parser: argparse.ArgumentParser, flags: Iterable[Flag]) -> None:
    flags = list(flags)
    for group in FlagGroup:
        shown = parser.add_argument_group(group.value)
        for one in flags:
            if one.group is group:
                one.add_to(shown)
