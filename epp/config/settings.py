"""The settings of a picker process: each flag is declared on the field that it sets, and nowhere else.

The parser, --help and shell completion follow, and by release/derived.py the page's table and the chart's schema.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from epp.config.declared_flags import (
    DEFAULT_MESSAGE_SIZE,
    Flag,
    FlagGroup,
    boolean,
    count,
    declared,
    duration,
    flag,
    host_port,
    message_size,
    metric,
    objective,
    port,
    processes,
    size,
)
from epp.config.metric_flags import METRIC_FLAGS
from epp.config.tls_rules import TlsRules
from epp.ext_proc.exchange_settings import ProtocolVersion
from epp.scraping.engines import Series

WORKERS, SERVING, PEERS, SECURITY, METRICS, LIMITS, PICKING, OBSERVING = FlagGroup

ALL_INTERFACES = "::"

CONFIG_FILE: Final = "ADSUM_EPP_CONFIG_FILE"
"""The environment variable that names the configuration file where arguments must stay as they are."""

HEALTH_INTERVAL = 1.0
"""Seconds between a data plane's health checks of a picker."""
HEALTH_FAILURES = 2
"""Failed checks in a row after which a data plane sends no new streams."""
LAME_DUCK = HEALTH_INTERVAL * (HEALTH_FAILURES + 1)
"""Seconds that a picker still serves after it became NOT_SERVING: longer than a data plane takes to notice."""

LEAST_INTERVAL = 0.05
"""The least seconds between two scrapes of a metrics page, as in the Go picker."""


class TransportKind(StrEnum):
    """`http2`: our own server. `grpc`: grpc.aio, which takes many times the processor time (benchmarks/picking/README.md)."""

    HTTP2 = "http2"
    GRPC = "grpc"


def _static_url(endpoints: Sequence[str]) -> str:
    """The source of fixed workers; raises ValueError for the first one that is not `host:port`."""
    from discovery.static.endpoints_file import parse_host  # imports pydantic, which --help need not wait for

    for endpoint in endpoints:
        parse_host(endpoint)
    return "static://" + ",".join(endpoints)


@dataclass(frozen=True, slots=True)
class Settings:
    """Times in seconds, sizes in bytes; port 0 is any free port. The fields of a group stand in the order of --help.

    `endpoint_target_ports`: lists with commas, one for each time that the flag was given. `refresh_metrics_interval` None:
    short for endpoints with requests, longer for others. `metrics_endpoint_auth` None: as in the Go picker, if it is
    started like one (`worker_source.py`). `debug_address`: `host:port`.
    """

    discovery: str | None = declared(
        None,
        Flag(WORKERS, "the source of workers, a URL ($ADSUM_DISCOVERY)", metavar="URL"),
        Flag(
            WORKERS, "a fixed worker; repeatable", metavar="HOST:PORT", name="endpoint", collect=_static_url
        ),
    )
    namespace: str = flag("default", WORKERS, "the workers' namespace (default: default)")
    component: str = flag("default", WORKERS, "the workers' component (default: default)")
    serving_port_name: str | None = flag(
        None,
        WORKERS,
        "the Service's port of requests, if the metadata do not name one (default: the one of the metadata)",
        metavar="NAME",
    )

    # the Go picker's flags that name workers; `worker_source.py` says what they exclude and need
    pool_name: str = flag(
        "",
        WORKERS,
        "the workers are the Pods of this InferencePool; with --discovery, the pool's name on the metrics page",
        metavar="NAME",
    )
    pool_namespace: str | None = flag(
        None, WORKERS, "of the InferencePool or the Pods ($NAMESPACE, default: default)", metavar="NAME"
    )
    pool_group: str | None = flag(
        None, WORKERS, "the InferencePool's API group (default: inference.networking.k8s.io)", metavar="GROUP"
    )
    endpoint_selector: str | None = flag(
        None,
        WORKERS,
        "the workers are the Pods that this label selector selects, without an InferencePool: app=vllm",
        metavar="LABELS",
    )
    endpoint_target_ports: Sequence[str] = declared(
        (),
        Flag(WORKERS, "the ports of those Pods, each a worker of its own", metavar="PORT,...", collect=tuple),
    )

    refresh_metrics_interval: float | None = flag(
        None,
        WORKERS,
        "the same for all endpoints, at least 50ms (default: 50ms for endpoints with requests, longer for others)",
        duration,
    )
    metrics_staleness_threshold: float = flag(
        2.0, WORKERS, "a worker whose metrics are older is picked last (default: 2s)", duration
    )

    host: str = flag(ALL_INTERFACES, SERVING, "address that gRPC listens on (default: all)")
    grpc_port: int = flag(
        9002, SERVING, "port of the endpoint picker protocol; 0 is any free one (default: 9002)", port
    )
    grpc_health_port: int = flag(9003, SERVING, "port of gRPC health checks (default: 9003)", port)
    metrics_address: str | None = flag(
        None, SERVING, "address that the metrics page listens on (default: as --host)", metavar="ADDRESS"
    )
    metrics_port: int = flag(9090, SERVING, "port of the metrics page (default: 9090)", port)
    secure_serving: bool = flag(True, SERVING, "serve gRPC over TLS (default: true)", boolean)
    cert_path: Path | None = flag(None, SERVING, "tls.crt and tls.key (default: self-signed)", Path, "FOLDER")
    enable_cert_reload: bool = flag(False, SERVING, "reload them when they change (default: false)", boolean)
    client_ca_file: Path | None = flag(
        None, SERVING, "serve only clients with a certificate signed by one of these", Path
    )
    transport: TransportKind = flag(
        TransportKind.HTTP2, SERVING, "the gRPC server: our own or grpc.aio (default: http2)", TransportKind
    )

    processes: int = flag(
        1,
        SERVING,
        "run as so many processes, which are peers of each other; auto: one for each processor (default: 1)",
        processes,
        "N",
    )

    peers: str | None = declared(
        None,
        Flag(
            PEERS,
            "where pickers find each other, a URL as for --discovery; they count what the others send (docs/peers.md)",
            metavar="URL",
        ),
        Flag(PEERS, "a fixed one; repeatable", metavar="HOST:PORT", name="peer", collect=_static_url),
    )
    peer_port: int = flag(9004, PEERS, "port that peers connect to; 0 is any free one (default: 9004)", port)
    peer_token_file: Path | None = flag(
        None,
        PEERS,
        "a secret that all peers know, 32 random characters; without it they need --cert-path and --client-ca-file, or stay on this machine",
        Path,
    )

    tls: TlsRules = declared(
        TlsRules(),
        Flag(
            SECURITY,
            "VersionTLS12 or VersionTLS13 (default: VersionTLS12)",
            metavar="VERSION",
            name="tls-min-version",
        ),
        Flag(
            SECURITY,
            "for TLS 1.2, by Go's names (default: OpenSSL's choice)",
            metavar="NAME,...",
            name="tls-cipher-suites",
        ),
    )
    metrics_cert_dir: Path | None = flag(
        None, SECURITY, "tls.crt and tls.key: serve the metrics page with TLS", Path, "FOLDER"
    )
    metrics_client_ca_file: Path | None = flag(
        None,
        SECURITY,
        "serve the metrics page only to clients with a certificate signed by one of these",
        Path,
    )
    metrics_endpoint_auth: bool | None = flag(
        None,
        SECURITY,
        "the metrics port answers clients whose bearer token the API server accepts "
        "(default: true with --pool-name or --endpoint-selector)",
        boolean,
    )

    metric_names: Mapping[str, Sequence[Series]] = declared(
        {},
        *[
            Flag(METRICS, "its name on the workers' metrics pages (default: vLLM's)", metric, name=name)
            for name in METRIC_FLAGS
        ],
    )

    drain_timeout: float = flag(30.0, LIMITS, "after SIGTERM (default: 30s)", duration)
    grpc_max_recv_msg_size: int = flag(
        DEFAULT_MESSAGE_SIZE, LIMITS, "the largest gRPC message (default: 4Mi)", message_size
    )
    max_body_bytes: int = flag(64 * 1024 * 1024, LIMITS, "most bytes of one request (default: 64Mi)", size)
    max_buffered_bytes: int = flag(
        1024 * 1024 * 1024, LIMITS, "most bytes of all unfinished bodies together (default: 1Gi)", size
    )
    body_timeout: float = flag(
        60.0, LIMITS, "longest time to receive one body; 0s: no limit (default: 60s)", duration
    )

    disable_endpoint_subset_filter: bool = flag(
        False, PICKING, "ignore the data plane's subset hint (default: false)", boolean
    )
    emit_endpoint_scores: bool = flag(
        False, PICKING, "send the scores of all candidates to the data plane (default: false)", boolean
    )
    models_endpoint: bool = flag(
        True, PICKING, "answer GET /v1/models with the models of all workers (default: true)", boolean
    )
    config_file: Path | None = flag(
        None, PICKING, f"EndpointPickerConfig YAML, read again when it changes (${CONFIG_FILE})", Path
    )
    config_text: str | None = flag(None, PICKING, "the same, inline", metavar="YAML")
    protocol_version: ProtocolVersion = flag(
        ProtocolVersion.V1_0, PICKING, "of the endpoint picker protocol (default: 1.0.0)", ProtocolVersion
    )
    models: frozenset[str] = declared(
        frozenset(),
        Flag(
            PICKING,
            "a served model; others are answered 404; repeatable",
            metavar="NAME",
            name="model",
            collect=frozenset,
        ),
    )
    objectives: Mapping[str, int] = declared(
        {},
        Flag(
            PICKING,
            "the priority of requests with the header x-llm-d-inference-objective: NAME; repeatable",
            objective,
            name="objective",
            collect=dict,
        ),
    )

    decisions: int = flag(
        1000,
        OBSERVING,
        "keep the last N decisions for /debug/decisions, in 64 MiB at most, with the scores of the first five of a "
        "second; 0: none (default: 1000)",
        count,
        "N",
    )
    enable_pprof: bool = flag(
        False, OBSERVING, "serve /debug/profile?seconds=5 on the metrics port (default: false)", boolean
    )
    debug_token_file: Path | None = flag(
        None,
        OBSERVING,
        "show the page and /debug/decisions to who sends this token too, not to this machine alone",
        Path,
    )
    debug_address: str | None = flag(
        None,
        OBSERVING,
        "a port of its own for them, served to all who reach it unless there is a token",
        host_port,
    )
    tracing: bool = flag(
        False,
        OBSERVING,
        "record traces with OpenTelemetry, as OTEL_* say; docs/tracing.md (default: false)",
        boolean,
    )
    usage_metrics: bool = flag(
        False,
        OBSERVING,
        "count tokens and times of answers; Envoy must send their bodies: envoy-config --usage-metrics (default: false)",
        boolean,
    )
    enable_grpc_stream_metrics: bool = flag(
        False, OBSERVING, "count ext_proc streams by how they end (default: false)", boolean
    )
