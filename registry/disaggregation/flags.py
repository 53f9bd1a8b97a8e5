"""The flags of `registry pd-sidecar`: the names of llm-d's sidecar where both have them, so that its arguments fit."""

import argparse
import os
from collections.abc import Callable
from typing import Any, Final

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
_TIME: Final = argument(parse_go_duration)


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


def _add(
    group: argparse._ArgumentGroup,
    names: str | tuple[str, str],
    kind: Callable[[str], object],
    default: object,
    metavar: str,
    help_text: str,
    **how: Any,
) -> None:
    """`names`: the second is that of llm-d's sidecar. `how`: further arguments of argparse."""
    spelt = (names,) if isinstance(names, str) else names
    group.add_argument(*spelt, type=kind, default=default, metavar=metavar, help=help_text, **how)


def _add_port_flags(parser: argparse.ArgumentParser) -> None:
    ports = parser.add_argument_group("ports")
    _add(ports, "--port", _port, 8000, "PORT", "the sidecar's (default: 8000)")
    _add(ports, "--address", str, "::", "ADDRESS", "where it listens (default: ::, every interface)")
    _add(ports, ("--model-server-port", "--vllm-port"), _port, 8200, "PORT", "(default: 8200)")
    _add(ports, "--model-server-host", str, "localhost", "HOST", "(default: localhost)")
    ranks = "ranks of the model server: as many ports from --port on, each for the model server's port with the same offset"
    _add(ports, "--data-parallel-size", _at_least(1), 1, "N", ranks)
    _add(ports, "--metrics-port", _port, 0, "PORT", "of its own metrics; 0: none (default)")
    body = "of a request's body (default: 64MiB)"
    _add(ports, "--max-request-bytes", argument(parse_size), 64 * 1024 * 1024, "SIZE", body)
    _add(ports, "--drain-timeout", _TIME, 60.0, "TIME", "after SIGTERM, for requests that run (default: 60s)")


def _add_prefill_flags(parser: argparse.ArgumentParser) -> None:
    prefill = parser.add_argument_group("prefill workers")
    moves = f"how the KV cache moves: {', '.join(CONNECTORS)} (default: {CONNECTORS[0]})"
    _add(prefill, ("--kv-connector", "--connector"), _connector, CONNECTORS[0], "NAME", moves)
    _add_whom_it_asks(prefill)
    answered = "until the prefill worker has answered (default: 60s)"
    _add(prefill, "--prefill-timeout", _TIME, 60.0, "TIME", answered)
    again = "after a refused or broken connection, and 502, 503 or 504 (default: 0)"
    _add(prefill, "--prefill-max-retries", _at_least(0), 0, "N", again)
    _add(prefill, "--prefill-retry-backoff", _TIME, 0.2, "TIME", "before each (default: 200ms)")
    bootstrap = _port_of_environment("SGLANG_BOOTSTRAP_PORT", 8998)
    theirs = "of the prefill workers; default $SGLANG_BOOTSTRAP_PORT, else 8998"
    _add(prefill, "--sglang-bootstrap-port", _port, bootstrap, "PORT", theirs)


def _add_whom_it_asks(prefill: argparse._ArgumentGroup) -> None:
    known = "ask only workers that discovery knows under these names; without this and those below, any address is asked"
    _add(prefill, "--prefill-component", _component, None, "NAMESPACE/COMPONENT", known)
    there = "where they are; file:///path, ...; default $ADSUM_DISCOVERY"
    _add(prefill, "--discovery", str, None, "URL", there)
    too = "may be asked too, without a port at every port; repeatable"
    _add(prefill, "--allow-prefill", argument(_listed), [], "HOST[:PORT],...", too, action="append")
    pods = "ask only Pods of --inference-pool (default: false)"
    _add(prefill, "--enable-ssrf-protection", _boolean, False, "BOOL", pods, nargs="?", const=True)
    pool = "of that; the namespace is `default` without one; default $INFERENCE_POOL"
    named = os.environ.get("INFERENCE_POOL") or None
    _add(prefill, "--inference-pool", str, named, "[NAMESPACE/]NAME", pool)
    _add(prefill, "--pool-group", str, POOL_GROUP, "GROUP", f"its API group (default: {POOL_GROUP})")


def _add_tls_flags(parser: argparse.ArgumentParser) -> None:
    tls = parser.add_argument_group("TLS")
    served = "serve over TLS, with the certificate in --cert-path (default: false)"
    _add(tls, "--secure-proxy", _boolean, False, "BOOL", served, nargs="?", const=True)
    pair = "with tls.crt and tls.key; both are read again when they change"
    _add(tls, "--cert-path", str, None, "FOLDER", pair)
    for flag, what in (
        ("--enable-tls", "speak TLS to"),
        ("--tls-insecure-skip-verify", "accept any certificate of"),
    ):
        these = f"{what} these: {', '.join(STAGES)}; repeatable"
        _add(tls, flag, _stages, [], "STAGE,...", these, action="append")


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
