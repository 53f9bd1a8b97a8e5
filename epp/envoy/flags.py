"""The command line of `python -m epp envoy-config`."""

import argparse
import random
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from adsum.command_line import Parser, argument, program
from adsum.config.problems import ConfigError
from adsum.entry_points import PluginError
from adsum.quoting import quoted
from adsum.units import parse_go_duration, write_duration
from epp.config.declared_flags import boolean, count, duration, port, size
from epp.envoy.json_values import Address
from epp.envoy.overload import connections_by_descriptors
from epp.envoy.settings import ACCESS_LOG, AUTO, EXT_PROC_STREAM, EnvoySettings

BODY_MODES = ("FULL_DUPLEX_STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "STREAMED", "NONE")


def parse(arguments: Sequence[str]) -> EnvoySettings:
    """Parse the arguments; bad input is one line on stderr and exit code 2."""
    parser = build_parser()
    given = parser.parse_args(arguments)
    # most flags are fields of the settings, by the same name
    values = {one.name: getattr(given, one.name) for one in fields(EnvoySettings) if hasattr(given, one.name)}
    values |= {
        "listen": Address(given.listen_address, given.listen_port),
        "admin": Address(given.admin_address, given.admin_port),
        "pickers": given.epp or EnvoySettings().pickers,
        "endpoints": given.endpoint,
        # bounded: the operator's flag
        "subset": None if given.subset is None else [item for item in given.subset.split(",") if item],
        "remove_request_headers": given.remove_request_header,
        "max_connections": given.max_connections or connections_by_descriptors(),
    }
    if given.status_port is not None:
        values["status"] = Address(given.listen_address, given.status_port)
    if given.usage_metrics and given.response_body == "NONE":
        values["response_body"] = "STREAMED"
    if given.picker_config is not None:
        values["needs_answers"] = _needs_answers(given.picker_config, parser)
    try:
        return EnvoySettings(**values)
    except ValueError as error:
        parser.error(str(error))


def _needs_answers(file: Path, parser: argparse.ArgumentParser) -> Sequence[str]:
    """Imports what reads the file only here, so that --help is fast."""
    from epp.config.picker_config import load_config
    from epp.config.validate import read_text

    try:
        return load_config(read_text(file), rng=random.Random()).needs_answers(usage_metrics=False)
    except (ConfigError, PluginError) as error:
        parser.error(
            f"--picker-config: {error.in_file(str(file)) if isinstance(error, ConfigError) else error}"
        )


class _Defaults(argparse.ArgumentDefaultsHelpFormatter):
    """Shows a default only if there is one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default in (None, []):
            return action.help
        if isinstance(action.default, bool):
            return f"{action.help} (default: {str(action.default).lower()})"
        return super()._get_help_string(action)


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=f"{program('epp')} envoy-config",
        description="Prints an Envoy bootstrap (YAML) that asks the picker about every request.",
        allow_abbrev=False,
        formatter_class=_Defaults,
    )
    _address_flags(parser)
    _routing_flags(parser)
    _processing_flags(parser)
    _limit_flags(parser)
    return parser


def _address_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--listen-address", default="127.0.0.1", metavar="ADDRESS", help="address that clients connect to")
    add("--listen-port", type=port, default=8080, metavar="PORT", help="0 is any free port")
    add("--admin-address", default="127.0.0.1", metavar="ADDRESS", help="address of Envoy's admin interface")
    add("--admin-port", type=port, default=9901, metavar="PORT", help="0 is any free port")
    add(
        "--status-port",
        type=port,
        metavar="PORT",
        help="serve /ready and /stats/prometheus at --listen-address",
    )
    pickers = "a picker; repeatable (127.0.0.1:9002)"
    add("--epp", type=argument(Address.parse), action="append", metavar="HOST:PORT", help=pickers)
    _boolean(parser, "--secure", "--secure-serving", default=True, effect="TLS to the picker")
    authority = "PEM, on Envoy's machine: who signs the pickers' certificates, which must name their --epp; without it any is accepted"
    add("--ca-file", metavar="FILE", help=authority)
    certificate = "PEM, on Envoy's machine: its certificate for a picker with --client-ca-file"
    add("--client-cert", metavar="FILE", help=certificate)
    add("--client-key", metavar="FILE", help="PEM, the key of --client-cert")


def _routing_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    how = "override-host: Envoy knows the workers, and has further attempts; original-dst: it follows each pick, once"
    add("--mode", choices=("override-host", "original-dst"), default="override-host", help=how)
    second = "original-dst: try the picker's second choice if the first cannot be reached"
    _boolean(parser, "--fallback", default=False, effect=second)
    worker = "override-host: a worker; these alone, instead of those that the pickers tell of"
    add(
        "--endpoint",
        type=argument(Address.parse),
        action="append",
        default=[],
        metavar="HOST:PORT",
        help=worker,
    )
    file = "override-host: the workers are in the file of `adsum discovery eds --out FILE`"
    add("--eds-file", metavar="FILE", help=file)
    server = "override-host: `adsum discovery eds --listen ADDRESS:PORT` tells of the workers"
    add("--eds-server", type=argument(Address.parse), metavar="HOST:PORT", help=server)
    tries = "override-host: of one request, each at another worker"
    add("--attempts", type=_attempts, default=3, metavar="NUMBER", help=tries)
    kept = "of a request, kept for another attempt; a larger request has one"
    add("--retry-buffer", type=size, default="16Mi", metavar="SIZE", help=kept)
    add("--subset", metavar="HOST:PORT,...", help="only these may be picked; an empty one allows none")
    answer = "of a whole answer; 0s is none"
    add("--route-timeout", type=_duration, default="0s", metavar="DURATION", help=answer)
    silent = "without a byte of the answer; one that is not streamed is silent until its end; 0s is none"
    add("--stream-idle-timeout", type=_duration, default="900s", metavar="DURATION", help=silent)
    said = "a client's x-envoy-upstream-rq-timeout-ms takes the place of --route-timeout; for clients that you trust"
    _boolean(parser, "--client-timeouts", default=False, effect=said)


def _processing_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    told = (
        "how pickers hear what became of requests: with their answers, which a picker that dies fails, or by Envoy's access "
        "log, which holds up and fails nothing. auto: the log, unless something needs ext-proc; stderr says what"
    )
    add("--outcomes", choices=(AUTO, EXT_PROC_STREAM, ACCESS_LOG), default=AUTO, help=told)
    known = (
        "the pickers have --peers, so that one --epp may name several of them, and auto is the log there too"
    )
    _boolean(parser, "--peers", default=False, effect=known)
    needs = "the --config-file of the pickers: auto is ext-proc if something in it needs answers"
    add("--picker-config", type=Path, metavar="FILE", help=needs)
    add("--request-body", choices=BODY_MODES, default="FULL_DUPLEX_STREAMED", help="request_body_mode")
    read = "response_body_mode; STREAMED for a picker that rewrites models"
    add("--response-body", choices=BODY_MODES, default="NONE", help=read)
    _boolean(
        parser,
        "--usage-metrics",
        default=False,
        effect="send response bodies, for a picker with --usage-metrics: --response-body STREAMED",
    )
    exact = "SEND: counts requests in flight until their last byte, at some cost"
    add("--response-trailer", choices=("SKIP", "SEND"), default="SKIP", help=exact)
    _boolean(parser, "--failure-mode-allow", default=False, effect="continue without a picker")
    one = "how long one answer of the picker may take"
    _boolean(parser, "--served-header", default=True, effect="a response header names the worker")
    add(
        "--remove-request-header",
        type=_header_name,
        action="append",
        default=[],
        metavar="NAME",
        help="a header that clients must not set, before the picker reads it; repeatable",
    )
    add("--access-log", default="/dev/stdout", metavar="FILE", help="on Envoy's machine; '' is none")
    add("--message-timeout", type=_message_timeout, default="10s", metavar="DURATION", help=one)


def _limit_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    sent = "of a whole request as its client sends it; 0s is none"
    add("--request-timeout", type=_duration, default="60s", metavar="DURATION", help=sent)
    open_at_once = (
        "of all clients together; give less than half of the files that Envoy may open "
        "(two fifths of those that this command may open, at most 10000)"
    )
    add("--max-connections", type=_connections, metavar="NUMBER", help=open_at_once)
    heap = "of Envoy; requests are refused shortly before"
    add("--max-heap", type=size, default="2Gi", metavar="SIZE", help=heap)


def _boolean(parser: argparse.ArgumentParser, *names: str, default: bool, effect: str) -> None:
    parser.add_argument(
        *names, nargs="?", const=True, default=default, type=boolean, metavar="BOOL", help=effect
    )


def _attempts(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) == 1 and text != "0"):
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a number from 1 to 9")
    return int(text)


def _header_name(text: str) -> str:
    if not re.fullmatch("[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}", text):  # RFC 9110 section 5.6.2
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not the name of a header")
    return text.lower()


def _connections(text: str) -> int:
    number = count(text)
    if not number:
        raise argparse.ArgumentTypeError("0 lets nobody connect; expected a number from 1 to 1000000")
    return number


def _duration(text: str) -> str:
    """Convert a duration from Go's syntax to Envoy's."""
    return write_duration(duration(text))


def _message_timeout(text: str) -> str:
    written = _duration(text)
    if parse_go_duration(written) > _LONGEST_MESSAGE_TIMEOUT:
        raise argparse.ArgumentTypeError(f"{text!r} is longer than an hour, Envoy's limit")
    return written


_LONGEST_MESSAGE_TIMEOUT = 3600.0
"""https://www.envoyproxy.io/docs/envoy/latest/api-v3/extensions/filters/http/ext_proc/v3/ext_proc.proto"""
