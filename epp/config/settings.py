"""The settings of a picker process, one field per flag; checked before anything is opened."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from epp.config.tls_rules import TlsRules
from epp.ext_proc.exchange_settings import ProtocolVersion
from epp.scraping.engines import Series

ALL_INTERFACES = "::"

HEALTH_INTERVAL = 1.0
"""Seconds between a data plane's health checks of a picker."""
HEALTH_FAILURES = 2
"""Failed checks in a row after which a data plane sends no new streams."""
LAME_DUCK = HEALTH_INTERVAL * (HEALTH_FAILURES + 1)
"""Seconds that a picker still serves after it became NOT_SERVING: longer than a data plane takes to notice."""

LEAST_INTERVAL = 0.05
"""The least seconds between two scrapes of a metrics page, as in the Go picker."""


class TransportKind(StrEnum):
    """`http2`: our own server. `grpc`: grpc.aio, which takes many times the processor time (benchmarks/README.md)."""

    HTTP2 = "http2"
    GRPC = "grpc"


@dataclass(frozen=True, slots=True)
class Settings:
    """Times in seconds, sizes in bytes; port 0 is any free port. Field names follow the flags.

    `endpoint_target_ports`: lists with commas, one for each time that the flag was given. `refresh_metrics_interval` None:
    short for endpoints with requests, longer for others. `metrics_endpoint_auth` None: as in the Go picker, if it is
    started like one (`worker_source.py`). `debug_address`: `host:port`.
    """

    discovery: str | None = None
    namespace: str = "default"
    component: str = "default"
    host: str = ALL_INTERFACES
    grpc_port: int = 9002
    grpc_health_port: int = 9003
    metrics_address: str | None = None
    metrics_port: int = 9090
    secure_serving: bool = True
    cert_path: Path | None = None
    enable_cert_reload: bool = False
    client_ca_file: Path | None = None
    transport: TransportKind = TransportKind.HTTP2
    config_file: Path | None = None
    config_text: str | None = None
    pool_name: str = ""
    pool_namespace: str | None = None
    pool_group: str | None = None
    endpoint_selector: str | None = None
    endpoint_target_ports: Sequence[str] = ()
    metric_names: Mapping[str, Sequence[Series]] = field(default_factory=dict)
    tls: TlsRules = field(default_factory=TlsRules)
    metrics_cert_dir: Path | None = None
    metrics_client_ca_file: Path | None = None
    metrics_endpoint_auth: bool | None = None
    debug_address: str | None = None
    debug_token_file: Path | None = None
    enable_pprof: bool = False
    tracing: bool = False
    enable_grpc_stream_metrics: bool = False
    disable_endpoint_subset_filter: bool = False
    emit_endpoint_scores: bool = False
    models_endpoint: bool = True
    usage_metrics: bool = False
    decisions: int = 1000
    refresh_metrics_interval: float | None = None
    metrics_staleness_threshold: float = 2.0
    serving_port_name: str | None = None
    drain_timeout: float = 30.0
    grpc_max_recv_msg_size: int = 4 * 1024 * 1024
    max_body_bytes: int = 64 * 1024 * 1024
    max_buffered_bytes: int = 1024 * 1024 * 1024
    body_timeout: float = 60.0
    protocol_version: ProtocolVersion = ProtocolVersion.V1_0
    models: frozenset[str] = frozenset()
    objectives: Mapping[str, int] = field(default_factory=dict)
