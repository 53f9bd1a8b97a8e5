"""The picker's command line: the Go picker's flags, and a few of our own."""

import argparse
import difflib
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from adsum.command_line import Parser, ShowVersion, program
from epp.config import go_flags, log_flags
from epp.config.flag_values import (
    boolean,
    count,
    duration,
    host_port,
    message_size,
    metric,
    objective,
    port,
    size,
)
from epp.config.log_flags import LogSettings
from epp.config.metric_flags import METRIC_FLAGS
from epp.config.settings import Settings, TransportKind
from epp.config.tls_rules import TlsRules
from epp.ext_proc.exchange_settings import ProtocolVersion

CONFIG_FILE: Final = "ADSUM_EPP_CONFIG_FILE"
"""The environment variable that names the configuration file where arguments must stay as they are."""


def parse(arguments: Sequence[str]) -> tuple[Settings, LogSettings, list[str]]:
    """Settings, the log's, and the names of given flags that have no effect. Exits with 2 on bad input."""
    parser = build_parser()
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(_unknown_flag(parser, unknown[0]))
    if fault := _exclusive_flags(given):
        parser.error(fault)
    values = {name: value for name, value in vars(given).items() if name in _FIELDS and value is not None}
    if given.config_file is None and given.config_text is None and (named := os.environ.get(CONFIG_FILE)):
        values["config_file"] = Path(named)
    values["models"] = frozenset(given.model)
    values["objectives"] = dict(given.objective)
    values["endpoint_target_ports"] = tuple(given.endpoint_target_ports)
    values["metric_names"] = {
        name: series
        for name in METRIC_FLAGS
        if (series := getattr(given, name.replace("-", "_"))) is not None
    }
    if given.endpoint:
        try:
            _check_hosts(given.endpoint)
        except ValueError as error:
            parser.error(f"--endpoint: {error}")
        values["discovery"] = "static://" + ",".join(given.endpoint)
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


def _check_hosts(endpoints: Sequence[str]) -> None:
    """Raise ValueError for the first endpoint that is not `host:port`."""
    from discovery.static.endpoints_file import parse_host  # imports pydantic, which --help need not wait for

    for endpoint in endpoints:
        parse_host(endpoint)


def _exclusive_flags(given: argparse.Namespace) -> str | None:
    """The problem of two flags that exclude each other; None if there is none."""
    if given.discovery is not None and given.endpoint:
        return "--discovery and --endpoint exclude each other: both name the source of workers"
    if given.config_file is not None and given.config_text is not None:
        return "--config-file and --config-text exclude each other"
    return log_flags.exclusive(given)


def _inconsistent_flags(settings: Settings) -> str | None:
    """The problem of flags that need or contradict each other; None if there is none."""
    if not settings.secure_serving and settings.client_ca_file is not None:
        return "--client-ca-file needs --secure-serving: without TLS there are no client certificates"
    if settings.transport is TransportKind.GRPC and settings.tls.minimum is not TlsRules().minimum:
        return "--tls-min-version VersionTLS13 needs --transport http2: grpc.aio has no such option"
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


_FIELDS: Final = frozenset(field.name for field in fields(Settings))


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=program("epp"),
        description=f"Endpoint picker for Envoy (ext_proc). `{program('epp')} envoy-config` prints the Envoy side, "
        f"`{program('epp')} validate FILE` checks a configuration.",
        allow_abbrev=False,
    )
    _workers(parser.add_argument_group("workers"))
    _serving(parser.add_argument_group("serving"))
    _security(parser.add_argument_group("security"))
    _metrics(parser.add_argument_group("numbers on the workers' pages"))
    _limits(parser.add_argument_group("limits"))
    _picking(parser.add_argument_group("picking"))
    _observing(parser.add_argument_group("observing"))
    parser.add_argument("--version", action=ShowVersion)
    for name in (*go_flags.ALWAYS_OFF, *go_flags.ALWAYS_ON):
        _switch(parser, name, argparse.SUPPRESS)
    for name, (kind, _) in go_flags.VALUES.items():
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    return parser


def _workers(group: Any) -> None:
    group.add_argument("--discovery", metavar="URL", help="the source of workers, a URL ($ADSUM_DISCOVERY)")
    group.add_argument(
        "--endpoint", metavar="HOST:PORT", action="append", default=[], help="a fixed worker; repeatable"
    )
    group.add_argument("--namespace", help="of the workers (default: default)")
    group.add_argument("--component", help="of the workers (default: default)")
    group.add_argument(
        "--serving-port-name",
        metavar="NAME",
        help="the Service's port of requests, if the metadata do not name one (default: the one of the metadata)",
    )
    _pool(group)
    group.add_argument(
        "--refresh-metrics-interval",
        type=duration,
        metavar="DURATION",
        help="the same for all endpoints, at least 50ms (default: 50ms for endpoints with requests, longer for others)",
    )
    group.add_argument("--metrics-staleness-threshold", type=duration, metavar="DURATION", help="default: 2s")


def _pool(group: Any) -> None:
    """The Go picker's flags that name workers; `worker_source.py` says what they exclude and need."""
    group.add_argument(
        "--pool-name",
        metavar="NAME",
        help="the workers are the Pods of this InferencePool; with --discovery, the pool's name on the metrics page",
    )
    group.add_argument(
        "--pool-namespace",
        metavar="NAME",
        help="of the InferencePool or the Pods ($NAMESPACE, default: default)",
    )
    group.add_argument(
        "--pool-group",
        metavar="GROUP",
        help="the InferencePool's API group (default: inference.networking.k8s.io)",
    )
    group.add_argument(
        "--endpoint-selector",
        metavar="LABELS",
        help="the workers are the Pods that this label selector selects, without an InferencePool: app=vllm",
    )
    group.add_argument(
        "--endpoint-target-ports",
        metavar="PORT,...",
        action="append",
        default=[],
        help="the ports of those Pods, each a worker of its own",
    )


def _metrics(group: Any) -> None:
    for name in METRIC_FLAGS:
        group.add_argument(
            f"--{name}",
            type=metric,
            metavar="SERIES",
            help="its name on the workers' metrics pages (default: vLLM's)",
        )


def _security(group: Any) -> None:
    group.add_argument(
        "--tls-min-version", metavar="VERSION", help="VersionTLS12 or VersionTLS13 (default: VersionTLS12)"
    )
    group.add_argument(
        "--tls-cipher-suites",
        metavar="NAME,...",
        help="for TLS 1.2, by Go's names (default: OpenSSL's choice)",
    )
    group.add_argument(
        "--metrics-cert-dir",
        type=Path,
        metavar="FOLDER",
        help="tls.crt and tls.key: serve the metrics page with TLS",
    )
    group.add_argument(
        "--metrics-client-ca-file",
        type=Path,
        metavar="FILE",
        help="serve the metrics page only to clients with a certificate signed by one of these",
    )
    _switch(
        group,
        "metrics-endpoint-auth",
        "the metrics port answers clients whose bearer token the API server accepts (default: true with --pool-name or --endpoint-selector)",
    )


def _switch(group: Any, name: str, effect: str) -> None:
    group.add_argument(f"--{name}", nargs="?", const=True, type=boolean, metavar="BOOL", help=effect)


def _serving(group: Any) -> None:
    group.add_argument("--host", help="address that gRPC listens on (default: all)")
    group.add_argument("--grpc-port", type=port, metavar="PORT", help="default: 9002; 0 is any free one")
    group.add_argument("--grpc-health-port", type=port, metavar="PORT", help="default: 9003")
    group.add_argument(
        "--metrics-address",
        metavar="ADDRESS",
        help="address that the metrics page listens on (default: as --host)",
    )
    group.add_argument("--metrics-port", type=port, metavar="PORT", help="default: 9090")
    _switch(group, "secure-serving", "default: true")
    group.add_argument(
        "--cert-path", type=Path, metavar="FOLDER", help="tls.crt and tls.key (default: self-signed)"
    )
    _switch(group, "enable-cert-reload", "reload them when they change (default: false)")
    group.add_argument(
        "--client-ca-file",
        type=Path,
        metavar="FILE",
        help="serve only clients with a certificate signed by one of these",
    )
    group.add_argument(
        "--transport",
        type=TransportKind,
        choices=list(TransportKind),
        help="the gRPC server: our own or grpc.aio (default: http2)",
    )


def _observing(group: Any) -> None:
    log_flags.add(group)
    group.add_argument(
        "--decisions",
        type=count,
        metavar="N",
        help="keep the last N decisions for /debug/decisions, in 64 MiB at most, with the scores of the first five of a "
        "second; 0: none (default: 1000)",
    )
    _switch(group, "enable-pprof", "serve /debug/profile?seconds=5 on the metrics port (default: false)")
    group.add_argument(
        "--debug-token-file",
        type=Path,
        metavar="FILE",
        help="show the page and /debug/decisions to who sends this token too, not to this machine alone",
    )
    group.add_argument(
        "--debug-address",
        type=host_port,
        metavar="HOST:PORT",
        help="a port of its own for them, served to all who reach it unless there is a token",
    )
    _switch(
        group, "tracing", "record traces with OpenTelemetry, as OTEL_* say; docs/tracing.md (default: false)"
    )
    usage = "count tokens and times of answers; Envoy must send their bodies: envoy-config --usage-metrics"
    _switch(group, "usage-metrics", f"{usage} (default: false)")
    _switch(group, "enable-grpc-stream-metrics", "count ext_proc streams by how they end (default: false)")


def _limits(group: Any) -> None:
    group.add_argument(
        "--drain-timeout", type=duration, metavar="DURATION", help="after SIGTERM (default: 30s)"
    )
    group.add_argument(
        "--grpc-max-recv-msg-size",
        type=message_size,
        metavar="SIZE",
        help="the largest gRPC message (default: 4Mi)",
    )
    group.add_argument("--max-body-bytes", type=size, metavar="SIZE", help="of one request (default: 64Mi)")
    group.add_argument(
        "--max-buffered-bytes",
        type=size,
        metavar="SIZE",
        help="of all requests' unfinished bodies together (default: 1Gi)",
    )
    group.add_argument(
        "--body-timeout",
        type=duration,
        metavar="DURATION",
        help="to receive the body of one request; 0s is none (default: 60s)",
    )


def _picking(group: Any) -> None:
    for name, effect in (
        ("disable-endpoint-subset-filter", "ignore the data plane's subset hint"),
        ("emit-endpoint-scores", "send the scores of all candidates to the data plane"),
    ):
        _switch(group, name, f"{effect} (default: false)")
    _switch(group, "models-endpoint", "answer GET /v1/models with the models of all workers (default: true)")
    group.add_argument(
        "--config-file",
        type=Path,
        metavar="FILE",
        help=f"EndpointPickerConfig YAML, read again when it changes (${CONFIG_FILE})",
    )
    group.add_argument("--config-text", metavar="YAML", help="the same, inline")
    group.add_argument(
        "--protocol-version",
        type=ProtocolVersion,
        choices=list(ProtocolVersion),
        help="of the endpoint picker protocol (default: 1.0.0)",
    )
    group.add_argument(
        "--model",
        metavar="NAME",
        action="append",
        default=[],
        help="a served model; others are answered 404; repeatable",
    )
    group.add_argument(
        "--objective",
        type=objective,
        action="append",
        default=[],
        metavar="NAME=PRIORITY",
        help="the priority of requests with the header x-llm-d-inference-objective: NAME; repeatable",
    )
