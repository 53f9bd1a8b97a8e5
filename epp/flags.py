"""The command line: flags under the Go picker's names, and a few of our own."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from discovery.command_line import Parser
from epp.duration import parse_duration
from epp.protocol import ProtocolVersion
from epp.settings import Settings, TransportKind

IGNORED = (
    "allow-experimental-plugins",
    "cache-info-metric",
    "enable-grpc-stream-metrics",
    "enable-pprof",
    "endpoint-selector",
    "endpoint-target-ports",
    "grpc-max-send-msg-size",
    "ha-enable-leader-election",
    "health-checking",
    "kv-cache-usage-percentage-metric",
    "lora-info-metric",
    "metrics-cert-dir",
    "metrics-client-ca-file",
    "metrics-endpoint-auth",
    "pool-group",
    "pool-namespace",
    "refresh-prometheus-metrics-interval",
    "tls-cipher-suites",
    "tls-min-version",
    "total-queued-requests-metric",
    "tracing",
    "zap-devel",
    "zap-encoder",
    "zap-log-level",
    "zap-stacktrace-level",
    "zap-time-encoding",
)
"""Flags that a deployment may carry, most of them the Go picker's, and that change nothing here."""


def parse(arguments: Sequence[str]) -> tuple[Settings, int, list[str]]:
    """Settings, verbosity, and the names of flags that were given but change nothing. Exits with 2 on bad input."""
    parser = _parser()
    given = parser.parse_args(arguments)
    ignored = [name for name in IGNORED if getattr(given, name.replace("-", "_")) is not None]
    if given.discovery is not None and given.endpoint:
        parser.error("--discovery and --endpoint exclude each other: both say where the workers are")
    if given.config_file is not None and given.config_text is not None:
        parser.error("--config-file and --config-text exclude each other")
    values = {name: value for name, value in vars(given).items() if name in _FIELDS and value is not None}
    values["models"] = frozenset(given.model)
    values["objectives"] = dict(given.objective)
    settings = Settings()
    if values.get("client_ca_file") is not None and values.get("secure_serving") is False:
        parser.error("--client-ca-file needs --secure-serving: without TLS clients show no certificates")
    body = values.get("max_body_bytes", settings.max_body_bytes)
    if body > values.get("max_buffered_bytes", settings.max_buffered_bytes):
        parser.error("--max-buffered-bytes, of all bodies together, is less than --max-body-bytes, of one")
    if given.endpoint:
        values["discovery"] = "static://" + ",".join(given.endpoint)
    return Settings(**values), given.v, ignored


_FIELDS = frozenset(field.name for field in fields(Settings))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m epp",
        description="Endpoint picker for Envoy (ext_proc). `python -m epp envoy-config` prints the Envoy side.",
        allow_abbrev=False,
    )
    _workers(parser.add_argument_group("workers"))
    _serving(parser.add_argument_group("serving"))
    _limits(parser.add_argument_group("limits"))
    _picking(parser.add_argument_group("picking"))
    for name in IGNORED:
        parser.add_argument(f"--{name}", nargs="?", const="true", help=argparse.SUPPRESS)
    return parser


def _workers(group: Any) -> None:
    group.add_argument(
        "--discovery", metavar="URL", help="where workers announce themselves ($ADSUM_DISCOVERY)"
    )
    group.add_argument(
        "--endpoint", metavar="HOST:PORT", action="append", default=[], help="a fixed worker; repeatable"
    )
    group.add_argument("--namespace", help="of the workers (default: default)")
    group.add_argument("--component", help="of the workers (default: default)")
    group.add_argument(
        "--serving-port-name",
        metavar="NAME",
        help="the Service's port that serves, where the metadata do not say (default: the one of the metadata)",
    )
    group.add_argument("--pool-name", help="the pool's name on the metrics page")
    group.add_argument(
        "--refresh-metrics-interval",
        type=_duration,
        metavar="DURATION",
        help="the same for all endpoints, at least 50ms (default: 50ms where requests are, seldom elsewhere)",
    )
    group.add_argument(
        "--metrics-staleness-threshold", type=_duration, metavar="DURATION", help="default: 2s"
    )


def _serving(group: Any) -> None:
    group.add_argument("--host", help="address that gRPC listens on (default: all)")
    group.add_argument("--grpc-port", type=port, metavar="PORT", help="default: 9002; 0 is any free one")
    group.add_argument("--grpc-health-port", type=port, metavar="PORT", help="default: 9003")
    group.add_argument(
        "--metrics-address", help="address that the metrics page listens on (default: as --host)"
    )
    group.add_argument("--metrics-port", type=port, metavar="PORT", help="default: 9090")
    group.add_argument(
        "--secure-serving", nargs="?", const=True, type=boolean, metavar="BOOL", help="default: true"
    )
    group.add_argument(
        "--cert-path", type=Path, metavar="FOLDER", help="tls.crt and tls.key (default: self-signed)"
    )
    group.add_argument(
        "--enable-cert-reload",
        nargs="?",
        const=True,
        type=boolean,
        metavar="BOOL",
        help="read them again when they change (default: false)",
    )
    group.add_argument(
        "--client-ca-file", type=Path, metavar="FILE", help="serve only clients with a certificate of these"
    )
    group.add_argument(
        "--transport",
        type=TransportKind,
        choices=list(TransportKind),
        help="what serves gRPC: our own server, or grpc.aio (default: http2)",
    )
    group.add_argument(
        "-v",
        "--v",
        type=int,
        default=2,
        metavar="LEVEL",
        help="0 warnings, 2 state changes, 4 debug (default: 2)",
    )


def _limits(group: Any) -> None:
    group.add_argument(
        "--drain-timeout", type=_duration, metavar="DURATION", help="after SIGTERM (default: 30s)"
    )
    group.add_argument("--grpc-max-recv-msg-size", type=_int32, metavar="BYTES", help="default: 4194304")
    group.add_argument(
        "--max-body-bytes", type=_size, metavar="BYTES", help="of one request (default: 67108864)"
    )
    group.add_argument(
        "--max-buffered-bytes",
        type=_size,
        metavar="BYTES",
        help="of all requests' unfinished bodies together (default: 1073741824)",
    )
    group.add_argument(
        "--body-timeout",
        type=_duration,
        metavar="DURATION",
        help="of one request's body, as it comes; 0s is none (default: 60s)",
    )


def _picking(group: Any) -> None:
    for name, effect in (
        ("disable-endpoint-subset-filter", "pick among all endpoints, whatever the data plane's hint says"),
        ("emit-endpoint-scores", "tell the data plane how each candidate was scored"),
    ):
        group.add_argument(
            f"--{name}",
            nargs="?",
            const=True,
            type=boolean,
            metavar="BOOL",
            help=f"{effect} (default: false)",
        )
    group.add_argument("--config-file", type=Path, metavar="FILE", help="EndpointPickerConfig YAML")
    group.add_argument("--config-text", metavar="YAML", help="the same, inline")
    group.add_argument(
        "--protocol-version",
        type=ProtocolVersion,
        choices=list(ProtocolVersion),
        help="of the endpoint picker protocol (default: 1.0.0)",
    )
    group.add_argument(
        "--model", metavar="NAME", action="append", default=[], help="others are answered 404; repeatable"
    )
    group.add_argument(
        "--objective",
        type=_objective,
        action="append",
        default=[],
        metavar="NAME=PRIORITY",
        help="repeatable",
    )


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def port(text: str) -> int:
    """A TCP port; 0 is any free one."""
    number = _number(text, 65535)
    if number is None:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not a port, 0 to 65535")
    return number


def _size(text: str, most: int = 2**63 - 1) -> int:
    number = _number(text, most)
    if not number:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not a number of bytes from 1 to {most}")
    return number


def _int32(text: str) -> int:
    """A size that gRPC takes as an option."""
    return _size(text, 2**31 - 1)


def _number(text: str, most: int) -> int | None:
    """None for what is no whole number from 0 to `most`."""
    if not re.fullmatch("[0-9]{1,19}", text) or int(text) > most:
        return None
    return int(text)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def boolean(text: str) -> bool:
    """As Go's strconv.ParseBool reads it."""
    if text in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if text in ("0", "f", "F", "false", "FALSE", "False"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")


def _objective(text: str) -> tuple[str, int]:
    name, equals, priority = text.partition("=")
    try:
        number = int(priority)
    except ValueError:
        number, equals = 0, ""
    if not name or not equals:
        raise argparse.ArgumentTypeError(
            f"{_shown(text)} is not NAME=PRIORITY with a whole number, as batch=-1"
        )
    return name, number
