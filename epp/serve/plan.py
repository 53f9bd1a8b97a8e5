"""Which commands `adsum serve` starts, with which arguments: those that a user could type."""

import argparse
import contextlib
import random
import shlex
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from adsum.addresses import authority, is_ip
from adsum.config.problems import ConfigError
from adsum.entry_points import PluginError
from epp.config import flags as picker_flags
from epp.config.picker_config import load_config
from epp.config.settings import Settings
from epp.config.validate import read_text
from epp.envoy import flags as envoy_flags
from epp.envoy.config import render
from epp.envoy.settings import AUTO, EXT_PROC_STREAM, EnvoySettings
from epp.serve.flags import MORE_PORTS

ENVOY_OPTIONS: Final = (
    "--disable-hot-restart",
    "--log-level",
    "warning",
    "--file-flush-interval-msec",
    "500",
)
_LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Plan:
    """`picker`, `dispatcher`: arguments of these programs. `envoy_config`: of `adsum epp envoy-config`. `outcomes`: how the picker
    hears what became of requests, and why.

    `local`: the address of this machine at which clients on it reach `host`.
    """

    host: str
    local: str
    ports: tuple[int, ...]
    picker: list[str]
    envoy_config: list[str]
    dispatcher: list[str] | None
    outcomes: str

    @classmethod
    def of(cls, given: argparse.Namespace) -> "Plan":
        """Exits with 2 where a flag that is passed on is wrong."""
        ports = _ports(given.port)
        openai, page, grpc = ports
        picker = [*_workers(given), *_listening(given, page, grpc), *_log(given), *given.picker]
        settings, _, _ = picker_flags.parse(picker)
        needed = _needs_answers(settings)
        envoy_config = [
            *("--listen-address", given.host, "--listen-port", str(openai), "--admin-port", "0"),
            *("--epp", f"{_LOOPBACK}:{grpc}", "--secure=false", "--access-log", ""),
            *("--outcomes", EXT_PROC_STREAM if needed else AUTO),
            *given.envoy,
        ]
        return cls(
            host=given.host,
            local=_local(given.host),
            ports=ports,
            picker=picker,
            envoy_config=envoy_config,
            dispatcher=None
            if given.with_dispatcher is None
            else ["--config", str(given.with_dispatcher), *_log(given)],
            outcomes=_outcomes_in_words(envoy_flags.parse(envoy_config), needed),
        )

    def bootstrap(self) -> str:
        """Envoy's configuration, YAML, as `adsum epp envoy-config` prints it with the same flags."""
        return render(envoy_flags.parse(self.envoy_config))

    def url(self, port: int) -> str:
        return f"http://{authority(self.local, port)}"


def as_script(plan: Plan) -> str:
    """A shell script that starts the same, without what supervises it."""
    commands = [["adsum", "epp", *plan.picker]]
    if plan.dispatcher is not None:
        commands.append(["adsum", "dispatcher", *plan.dispatcher])
    lines = [f"{shlex.join(command)} &" for command in commands]
    lines += ["cat > envoy.yaml <<'END'", plan.bootstrap().rstrip("\n"), "END"]
    lines.append(shlex.join(["envoy", "--config-path", "envoy.yaml", *ENVOY_OPTIONS]))
    return "\n".join(lines) + "\n"


def _needs_answers(settings: Settings) -> tuple[str, ...]:
    """The parts of the picker's configuration that need answers; none of one that cannot be read, which the picker reports."""
    text = settings.config_text
    with contextlib.suppress(ConfigError, PluginError, ValueError, OSError):
        if settings.config_file is not None:
            text = read_text(settings.config_file)
        config = load_config(text, rng=random.Random())
        return config.needs_answers(usage_metrics=settings.usage_metrics)
    return ()


def _outcomes_in_words(envoy: EnvoySettings, needed: Sequence[str]) -> str:
    if envoy.by_access_log:
        return "the picker lets go once it has picked: Envoy's access log tells what became of a request"
    reason = f"its configuration needs answers ({', '.join(needed)})" if needed else envoy.why_ext_proc
    why = f", since {reason}" if reason else ""
    return f"the picker takes part until an answer begins{why}: if it dies, requests without an answer fail"


def _workers(given: argparse.Namespace) -> list[str]:
    named = {"--discovery": given.discovery, "--namespace": given.namespace, "--component": given.component}
    flags = [word for name, value in named.items() if value is not None for word in (name, value)]
    flags += [word for endpoint in given.endpoint for word in ("--endpoint", endpoint)]
    return flags if given.config_file is None else [*flags, "--config-file", str(given.config_file)]


def _listening(given: argparse.Namespace, page: int, grpc: int) -> list[str]:
    """Only Envoy asks the picker, on this machine: in plain text, as nothing leaves it."""
    return [
        *("--host", _LOOPBACK, "--grpc-port", str(grpc), "--grpc-health-port", "0", "--secure-serving=false"),
        *("--metrics-address", given.host, "--metrics-port", str(page)),
        *("--drain-timeout", f"{given.drain_timeout:g}s"),
    ]


def _log(given: argparse.Namespace) -> list[str]:
    return [] if given.log_format is None else ["--log-format", given.log_format]


def _local(host: str) -> str:
    if not is_ip(host) or not (address := ip_address(host)).is_unspecified:
        return host
    return _LOOPBACK if address.version == 4 else "::1"


def _ports(first: int) -> tuple[int, ...]:
    if first:
        return tuple(range(first, first + MORE_PORTS + 1))
    probes = [socket.create_server((_LOOPBACK, 0)) for _ in range(MORE_PORTS + 1)]
    free = tuple(probe.getsockname()[1] for probe in probes)
    for probe in probes:
        probe.close()
    return free
