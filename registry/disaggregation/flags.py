"""The flags of `registry pd-sidecar`: the names of llm-d's sidecar where both have them, so that its arguments fit."""

import argparse
import os
from collections.abc import Callable
from typing import Final

from adsum.command_line import CommandParser, add_log_format, argument, program
from adsum.units import parse_go_duration, parse_size

CONNECTORS: Final = ("nixlv2", "sglang", "trtllm", "shared-storage")
STAGES: Final = ("prefiller", "decoder")
_ONLY_LLM_DS: Final = ("mooncake", "offloading")
POOL_GROUP: Final = "inference.networking.k8s.io"
_WITHOUT_EFFECT: Final = (
    *(
        "-v",
        "--v",
        "--zap-devel",
        "--zap-encoder",
        "--zap-log-level",
        "--zap-stacktrace-level",
        "--zap-time-encoding",
    ),
    *("--enable-prefiller-sampling", "--max-idle-conns-per-host", "--tracing"),
    *("--mooncake-bootstrap-port", "--p2p-connector-port"),
)
"""Flags of llm-d's sidecar that change no answer here: of its log and its pools, and of connectors that are not built."""


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog=f"{program('registry')} pd-sidecar",
        description="Stand in front of a decode worker: have each prompt computed by the prefill worker that the picker named "
        "in x-prefiller-host-port, then pass the request on. Everything else passes as it is.",
    )
    add_log_format(parser)
    _add_port_flags(parser)
    _add_prefill_flags(parser)
    _add_tls_flags(parser)
    parser.set_defaults(without_effect=[])
    for name in _WITHOUT_EFFECT:
        parser.add_argument(name, action=_WithoutEffect, nargs="?", help=argparse.SUPPRESS)
    return parser


class _WithoutEffect(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        name: str | None = None,
    ) -> None:
        namespace.without_effect = [*namespace.without_effect, name]


def _add_port_flags(parser: argparse.ArgumentParser) -> None:
    ports = parser.add_argument_group("ports")
    ports.add_argument("--port", type=_port, default=8000, help="the sidecar's (default: 8000)")
    ports.add_argument("--address", default="::", help="where it listens (default: ::, every interface)")
    ports.add_argument(
        "--model-server-port", "--vllm-port", type=_port, default=8200, metavar="PORT", help="(default: 8200)"
    )
    ports.add_argument(
        "--model-server-host", default="localhost", metavar="HOST", help="(default: localhost)"
    )
    ports.add_argument(
        "--data-parallel-size",
        type=_at_least(1),
        default=1,
        metavar="N",
        help="ranks of the model server: as many ports from --port on, each for the model server's port with the same offset",
    )
    ports.add_argument(
        "--metrics-port", type=_port, default=0, metavar="PORT", help="of its own metrics; 0: none (default)"
    )
    ports.add_argument(
        "--max-request-bytes",
        type=argument(parse_size),
        default=64 * 1024 * 1024,
        metavar="SIZE",
        help="of a request's body (default: 64MiB)",
    )
    ports.add_argument(
        "--drain-timeout",
        type=argument(parse_go_duration),
        default=60.0,
        metavar="TIME",
        help="after SIGTERM, for requests that run (default: 60s)",
    )


def _add_prefill_flags(parser: argparse.ArgumentParser) -> None:
    prefill = parser.add_argument_group("prefill workers")
    prefill.add_argument(
        "--kv-connector",
        "--connector",
        type=_connector,
        default=CONNECTORS[0],
        metavar="NAME",
        help=f"how the KV cache moves: {', '.join(CONNECTORS)} (default: {CONNECTORS[0]})",
    )
    _add_whom_it_asks(prefill)
    prefill.add_argument(
        "--prefill-timeout",
        type=argument(parse_go_duration),
        default=60.0,
        metavar="TIME",
        help="until the prefill worker has answered (default: 60s)",
    )
    prefill.add_argument(
        "--prefill-max-retries",
        type=_at_least(0),
        default=0,
        metavar="N",
        help="after a refused or broken connection, and 502, 503 or 504 (default: 0)",
    )
    prefill.add_argument(
        "--prefill-retry-backoff",
        type=argument(parse_go_duration),
        default=0.2,
        metavar="TIME",
        help="before each (default: 200ms)",
    )
    prefill.add_argument(
        "--sglang-bootstrap-port",
        type=_port,
        default=_port_of_environment("SGLANG_BOOTSTRAP_PORT", 8998),
        metavar="PORT",
        help="of the prefill workers; default $SGLANG_BOOTSTRAP_PORT, else 8998",
    )


def _add_whom_it_asks(prefill: argparse._ArgumentGroup) -> None:
    prefill.add_argument(
        "--prefill-component",
        metavar="NAMESPACE/COMPONENT",
        type=_component,
        help="ask only workers that discovery knows under these names; without this and those below, any address is asked",
    )
    prefill.add_argument(
        "--discovery", metavar="URL", help="where they are; file:///path, ...; default $ADSUM_DISCOVERY"
    )
    prefill.add_argument(
        "--allow-prefill",
        action="append",
        default=[],
        type=argument(_listed),
        metavar="HOST[:PORT],...",
        help="may be asked too, without a port at every port; repeatable",
    )
    prefill.add_argument(
        "--enable-ssrf-protection",
        type=_boolean,
        nargs="?",
        const=True,
        default=False,
        metavar="BOOL",
        help="ask only Pods of --inference-pool (default: false)",
    )
    prefill.add_argument(
        "--inference-pool",
        default=os.environ.get("INFERENCE_POOL") or None,
        metavar="[NAMESPACE/]NAME",
        help="of that; the namespace is `default` without one; default $INFERENCE_POOL",
    )
    prefill.add_argument(
        "--pool-group", default=POOL_GROUP, metavar="GROUP", help=f"its API group (default: {POOL_GROUP})"
    )


def _add_tls_flags(parser: argparse.ArgumentParser) -> None:
    tls = parser.add_argument_group("TLS")
    tls.add_argument(
        "--secure-proxy",
        type=_boolean,
        nargs="?",
        const=True,
        default=False,
        metavar="BOOL",
        help="serve over TLS, with the certificate in --cert-path (default: false)",
    )
    tls.add_argument(
        "--cert-path", metavar="FOLDER", help="with tls.crt and tls.key; both are read again when they change"
    )
    for flag, help_text in (
        ("--enable-tls", "speak TLS to"),
        ("--tls-insecure-skip-verify", "accept any certificate of"),
    ):
        tls.add_argument(
            flag,
            action="append",
            default=[],
            type=_stages,
            metavar="STAGE,...",
            help=f"{help_text} these: {', '.join(STAGES)}; repeatable",
        )


def _listed(text: str) -> list[tuple[str, int | None]]:
    from registry.disaggregation.allowed_workers import read_listed

    # bounded: an argument
    return [read_listed(one) for one in text.split(",")]


def _component(text: str) -> tuple[str, str]:
    namespace, slash, component = text.partition("/")
    if not (namespace and slash and component):
        raise argparse.ArgumentTypeError(f"{text!r} names no workers; expected NAMESPACE/COMPONENT")
    return namespace, component


def _connector(text: str) -> str:
    if text in CONNECTORS:
        return text
    why = "is one of llm-d's sidecar only" if text in _ONLY_LLM_DS else "is no connector"
    raise argparse.ArgumentTypeError(f"{text!r} {why}; expected one of {', '.join(CONNECTORS)}")


def _stages(text: str) -> list[str]:
    # bounded: an argument
    stages = [one.strip() for one in text.split(",")]
    for stage in stages:
        if stage not in STAGES:
            raise argparse.ArgumentTypeError(f"{stage!r} is no stage; expected one of {', '.join(STAGES)}")
    return stages


def _boolean(text: str) -> bool:
    """As Go's flags have it."""
    if text.lower() in ("true", "t", "1"):
        return True
    if text.lower() in ("false", "f", "0"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 5 or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; expected a number from 0 to 65535")
    return int(text)


def _at_least(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > 4 or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to 9999")
        return int(text)

    return read


def _port_of_environment(name: str, default: int) -> int:
    """A value that is no port is left alone, as llm-d's sidecar does."""
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text[:6]) < 65536 else default
