"""The picker's command line: the Go picker's flags, and a few of our own."""

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from adsum.command_line import Parser, ShowVersion, program
from epp.config import go_flags, log_flags
from epp.config.declared_flags import Flag, add_flags, flags_of
from epp.config.log_flags import LogSettings
from epp.config.metric_flags import METRIC_FLAGS
from epp.config.settings import CONFIG_FILE, Settings, TransportKind
from epp.config.tls_rules import TlsRules


def parse(arguments: Sequence[str]) -> tuple[Settings, LogSettings, list[str]]:
    """Settings, the log's, and the names of given flags that have no effect. Exits with 2 on bad input."""
    parser = build_parser()
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(_unknown_flag(parser, unknown[0]))
    if fault := _exclusive_flags(given):
        parser.error(fault)
    values = _field_values(parser, given)
    if given.config_file is None and given.config_text is None and (named := os.environ.get(CONFIG_FILE)):
        values["config_file"] = Path(named)
    values["metric_names"] = {
        name: series
        for name in METRIC_FLAGS
        if (series := getattr(given, name.replace("-", "_"))) is not None
    }
    try:
        tls = TlsRules.from_flags(given.tls_min_version, given.tls_cipher_suites)
        values["tls"] = tls.without_tls() if given.secure_serving is False and tls != TlsRules() else tls
    except ValueError as error:
        parser.error(f"--tls-min-version, --tls-cipher-suites: {error}")
    settings = Settings(**values)
    if fault := _inconsistent_flags(settings):
        parser.error(fault)
    return settings, log_flags.read(given), go_flags.without_effect(vars(given))


def parse_validate(arguments: Sequence[str]) -> Path:
    """The file to check. Exits with 2 on bad input."""
    path: Path = validate_parser().parse_args(arguments).file
    return path


def validate_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=f"{program('epp')} validate",
        description="Reports all problems of an EndpointPickerConfig, or what a picker would do with it.",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="YAML or JSON")
    return parser


def _field_values(parser: argparse.ArgumentParser, given: argparse.Namespace) -> dict[str, Any]:
    """The fields of Settings that given flags set, but for those that are made of several flags."""
    values: dict[str, Any] = {}
    for field, flag in flags_of(Settings):
        value = getattr(given, flag.destination)
        if value is None:
            continue
        if flag.collect is not None:
            try:
                values[field] = flag.collect(value)
            except ValueError as error:
                parser.error(f"--{flag.name}: {error}")
        elif flag.destination == field:
            values[field] = value
    return values


def _exclusive_flags(given: argparse.Namespace) -> str | None:
    """The problem of two flags that exclude each other; None if there is none."""
    if given.discovery is not None and given.endpoint:
        return "--discovery and --endpoint exclude each other: both name the source of workers"
    if given.peers is not None and given.peer:
        return "--peers and --peer exclude each other: both say where the other pickers are"
    if given.config_file is not None and given.config_text is not None:
        return "--config-file and --config-text exclude each other"
    return log_flags.exclusive(given)


def _inconsistent_flags(settings: Settings) -> str | None:
    """The problem of flags that need or contradict each other; None if there is none."""
    if not settings.secure_serving and settings.client_ca_file is not None:
        return "--client-ca-file needs --secure-serving: without TLS there are no client certificates"
    if settings.transport is TransportKind.GRPC and settings.tls.minimum is not TlsRules().minimum:
        return "--tls-min-version VersionTLS13 needs --transport http2: grpc.aio has no such option"
    if settings.processes > 1 and settings.transport is TransportKind.GRPC:
        return (
            "--processes needs --transport http2: grpc.aio takes no connection that another process accepted"
        )
    if settings.processes > 1 and sys.platform != "linux":
        return "--processes needs Linux: elsewhere no socket passes connections and keeps them apart"
    if settings.metrics_client_ca_file is not None and settings.metrics_cert_dir is None:
        return (
            "--metrics-client-ca-file needs --metrics-cert-dir: without TLS there are no client certificates"
        )
    if settings.max_body_bytes > settings.max_buffered_bytes:
        return "--max-buffered-bytes, the limit of all bodies together, is less than --max-body-bytes, the limit of one"
    return None


_SIMILARITY: Final = 0.8
"""The least similarity of a suggested flag, 0 to 1 (difflib): --config-text is no suggestion for --kubeconfig."""


def _unknown_flag(parser: argparse.ArgumentParser, argument: str) -> str:
    name = argument.partition("=")[0][:60]
    if instead := go_flags.OLDER.get(name.removeprefix("--")):
        return f"{name} is a flag of older Go pickers; use {instead}"
    known = [option for action in parser._actions for option in action.option_strings]
    near = difflib.get_close_matches(name, known, n=1, cutoff=_SIMILARITY)
    return f"unknown argument {name}" + (f", did you mean {near[0]}?" if near else "")


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=program("epp"),
        description=f"Endpoint picker for Envoy (ext_proc). `{program('epp')} envoy-config` prints the Envoy side, "
        f"`{program('epp')} validate FILE` checks a configuration.",
        allow_abbrev=False,
    )
    add_flags(parser, [flag for settings in (LogSettings, Settings) for _, flag in flags_of(settings)])
    parser.add_argument("--version", action=ShowVersion)
    for name, ignored in go_flags.IGNORED.items():
        Flag(None, argparse.SUPPRESS, ignored.kind, name=name).add_to(parser)
    return parser
