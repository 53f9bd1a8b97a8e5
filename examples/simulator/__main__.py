"""`python -m examples.simulator`: runs one simulated worker; parses its options."""

import argparse
import importlib.util
import logging
import secrets
import sys
from collections.abc import Sequence
from typing import Final

import anyio

import registry
from adsum.command_line import FAILED, Parser, print_error
from discovery.errors import AdsumError
from discovery.instance import check_component, check_instance_id, check_namespace
from examples.simulator.handover import TransferTimes
from examples.simulator.kv_messages import KvFormat
from examples.simulator.openai_api import Profile
from examples.simulator.scheduler_model import Limits
from examples.simulator.worker import Announcement, Settings, serve_until_stopped

ROLE_LABEL: Final = "llm-d.ai/role"
ROLES: Final = ("prefill", "decode", "both", "encode")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 after a drain, 1 if it cannot serve or register. argparse exits with 2 by itself."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        settings = _settings(options)
    except ValueError as error:
        parser.error(str(error))
    logging.basicConfig(level=logging.INFO, format=f"{settings.profile.instance_id}: %(message)s")
    code = 0
    try:
        anyio.run(serve_until_stopped, settings, lambda port: _say_ready(settings, port))
    except* (OSError, AdsumError) as group:
        for cause in group.exceptions:
            print_error(cause, FAILED)
        code = FAILED
    return code


def _say_ready(settings: Settings, port: int) -> None:
    print(f"ready http={settings.host}:{port} instance={settings.profile.instance_id}", flush=True)


def _settings(options: argparse.Namespace) -> Settings:
    limits = Limits(
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        block_size=options.block_size,
        num_blocks=options.num_gpu_blocks,
        max_lora=options.max_lora,
        adapter_load_seconds=options.adapter_load_seconds,
        step_seconds=options.step_seconds,
        sequence_seconds=options.sequence_seconds,
        token_seconds=options.token_seconds,
    )
    profile = _profile(options, limits)
    return Settings(
        profile=profile,
        limits=limits,
        announcement=_announcement(options, profile.instance_id),
        host=options.host,
        port=options.port,
        speed=options.speed,
        pad_metrics_bytes=options.pad_metrics_bytes,
        drain_timeout=options.drain_timeout,
        faults=options.faults,
        kv_events=_kv_format(options.kv_events),
        kv_ports=(options.kv_events_port, options.kv_replay_port),
        kv_buffer_steps=options.kv_buffer_steps,
        role=options.role,
        transfer=TransferTimes(
            options.transfer_seconds,
            options.transfer_token_seconds,
            options.kv_lease_seconds,
            recompute=options.kv_load_failure_policy == "recompute",
        ),
        reached_at=options.address or options.host,
        bootstrap_port=options.bootstrap_port,
        encode_seconds=options.encode_seconds,
        advertised_port=options.advertised_port,
    )


def _kv_format(given: str | None) -> KvFormat | None:
    """`auto`: what pickers find by themselves, if pyzmq is installed."""
    installed = importlib.util.find_spec("zmq") is not None
    if given is None or (given == "auto" and not installed):
        return None
    if not installed:
        raise ValueError("--kv-events needs pyzmq, which is not installed: pip install 'adsum[kv]'")
    return KvFormat.VLLM if given == "auto" else KvFormat(given)


def _profile(options: argparse.Namespace, limits: Limits) -> Profile:
    if not 0 < options.speed < float("inf"):
        raise ValueError(f"--speed must be more than 0, not {options.speed}")
    if options.adapter and not limits.max_lora:
        raise ValueError("--adapter needs --max-lora of at least 1")
    max_model_len = options.max_model_len or limits.kv_tokens
    if not 2 <= max_model_len <= limits.kv_tokens:
        raise ValueError(f"--max-model-len must be 2 to {limits.kv_tokens}, what the KV memory holds")
    check_namespace(options.namespace)
    check_component(options.component)
    instance_id = options.instance_id or f"{options.component}-{secrets.token_hex(4)}"
    adapters = tuple(dict.fromkeys(options.adapter))
    return Profile(check_instance_id(instance_id), options.model, adapters, max_model_len)


def _announcement(options: argparse.Namespace, instance_id: str) -> Announcement | None:
    if options.no_register:
        return None
    opened = registry.open(
        options.discovery,
        address=options.address,
        port=options.contract_port,
        instance_id=instance_id,
        labels=_labels(options),
    )
    return Announcement(opened, options.namespace, options.component)


def _labels(options: argparse.Namespace) -> dict[str, str]:
    role = {} if options.role is None else {ROLE_LABEL: options.role}
    return role | dict(_label(text) for text in options.label)


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"--label {text!r} is not KEY=VALUE")
    return key, value


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m examples.simulator",
        description="A model server without a model. Seconds are simulated ones: --speed 10 makes them pass faster.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_registration(parser)
    _add_serving(parser)
    _add_machine(parser)
    _add_kv_events(parser)
    _add_stages(parser)
    return parser


def _add_stages(parser: argparse.ArgumentParser) -> None:
    times, group = TransferTimes(), parser.add_argument_group("stages on workers of their own")
    group.add_argument(
        "--role", choices=ROLES, help=f"the label {ROLE_LABEL} of this worker; default: it has none"
    )
    for name, default, text in (
        ("transfer_seconds", times.seconds, "each transfer of a KV cache takes"),
        ("transfer_token_seconds", times.token_seconds, "more for each token of the prompt"),
        ("kv_lease_seconds", times.lease, "after which blocks that nobody fetched are free"),
        ("encode_seconds", 0.2, "to encode an image or the like"),
    ):
        group.add_argument(f"--{name.replace('_', '-')}", type=_seconds, default=default, help=text)
    group.add_argument(
        "--kv-load-failure-policy",
        choices=["fail", "recompute"],
        default="fail",
        help="of a request whose KV cache cannot be fetched",
    )
    group.add_argument(
        "--advertised-port", type=_port, help="of a sidecar in front of it, for requests; default: none"
    )
    group.add_argument(
        "--bootstrap-port", type=_port, help="a further port, for SGLang's form; default: none"
    )


def _add_kv_events(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("KV events")
    group.add_argument(
        "--kv-events",
        choices=["auto", *KvFormat],
        help="publish what the prefix cache holds, as vLLM, SGLang or TensorRT-LLM do, or their older versions; "
        "auto: as vLLM, if pyzmq is installed; default: not at all",
    )
    for name, text in (("events", "of events"), ("replay", "of what is sent again")):
        group.add_argument(
            f"--kv-{name}-port", type=_port, default=0, help=f"the port {text}; 0: any free one"
        )
    group.add_argument(
        "--kv-buffer-steps",
        type=int,
        default=10_000,
        metavar="N",
        help="batches that can be sent again; 0: none",
    )


def _add_registration(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("registration")
    group.add_argument("--discovery", metavar="URL", help="where to register, as registry.open takes it")
    group.add_argument("--namespace", default="default", help="a DNS-1123 label")
    group.add_argument("--component", default="default", help="a DNS-1123 label")
    group.add_argument("--instance-id", metavar="ID", help="default: the component and a random part")
    group.add_argument("--address", help="what others reach this worker by, as registry.open takes it")
    group.add_argument(
        "--contract-port", type=_port, default=0, help="where /metadata is served, 0: any free port"
    )
    group.add_argument("--label", metavar="KEY=VALUE", action="append", default=[], help="may be repeated")
    group.add_argument("--no-register", action="store_true", help="only serve")


def _add_serving(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("serving")
    group.add_argument("--model", default="tiny", help="the name of the model")
    group.add_argument(
        "--adapter", metavar="NAME", nargs="+", action="extend", default=[], help="LoRA adapters"
    )
    group.add_argument(
        "--max-model-len", type=int, help="prompt and answer in tokens; default: the KV memory"
    )
    group.add_argument("--host", default="127.0.0.1", help="the interface to listen on")
    group.add_argument("--port", type=_port, default=0, help="0: any free port")
    group.add_argument(
        "--drain-timeout", type=_seconds, default=30.0, metavar="SECONDS", help="after SIGTERM"
    )
    group.add_argument(
        "--faults",
        action="store_true",
        help="a POST to /fault chooses one, by its name as the body: curl -d stall http://127.0.0.1:PORT/fault; "
        "error (500 to everything), stall (no answer), flap (error every other second), none; with --kv-events also "
        "lost-batches, no-events, forgets, sleep, restart, sparse-groups",
    )
    group.add_argument(
        "--pad-metrics-bytes", type=int, default=0, metavar="N", help="47000 is a real vLLM's page"
    )


def _add_machine(parser: argparse.ArgumentParser) -> None:
    machine, group = Limits(), parser.add_argument_group("the simulated machine")
    group.add_argument("--speed", type=float, default=1.0, help="how many simulated seconds pass in one")
    group.add_argument("--max-num-seqs", type=int, default=machine.max_num_seqs, help="requests in one batch")
    group.add_argument(
        "--max-num-batched-tokens",
        type=int,
        default=machine.max_num_batched_tokens,
        help="tokens in one step",
    )
    group.add_argument("--block-size", type=int, default=machine.block_size, help="tokens in a KV block")
    group.add_argument("--num-gpu-blocks", type=int, default=machine.num_blocks, help="KV blocks")
    group.add_argument("--max-lora", type=int, default=machine.max_lora, help="adapters in memory at a time")
    for name, text in (
        ("adapter_load_seconds", "to load an adapter"),
        ("step_seconds", "each step takes"),
        ("sequence_seconds", "more for each request in the batch"),
        ("token_seconds", "more for each token computed: the inverse of the prefill rate"),
    ):
        group.add_argument(
            f"--{name.replace('_', '-')}", type=_seconds, default=getattr(machine, name), help=text
        )


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds: 0 or more")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
