"""Reads where a worker publishes its KV events: of its port, as it says, or as the configuration does. Pure.

A worker names ports, never another host: its own address comes from discovery.
"""

import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from adsum.addresses import authority
from discovery.metadata.document import MOST_RANKS
from epp.endpoints.endpoint import KvEventPorts

VLLM_PATH: Final = "/kv_event_sources"
SGLANG_PATH: Final = "/server_info"
SLEEP_PATH: Final = "/is_sleeping"
"""Where vLLM says it, if it has `/sleep` at all (VLLM_SERVER_DEV_MODE)."""
# bounded: at most 256 characters
_ENDPOINT: Final = re.compile(r"tcp://(\*|\[[0-9a-fA-F:.]{2,45}\]|[0-9A-Za-z.:-]{1,253}):([0-9]{1,5})")
_ANY_HOST: Final = frozenset({"*", "0.0.0.0", "::", "[::]", ""})  # noqa: S104  # compared with, not bound
_MOST_TOPIC: Final = 256


class KvPublisher(NamedTuple):
    """One socket of a worker, as ZeroMQ's addresses. `replay` None: it sends nothing again. `loads` None: it pushes none."""

    events: str
    replay: str | None = None
    topic: str = ""
    loads: str | None = None
    load_topic: str = ""


def publisher_at(host: str, port: int, topic: str = "") -> KvPublisher:
    return KvPublisher(f"tcp://{authority(host, port)}", None, topic)


def publishers_said(ports: KvEventPorts, host: str) -> tuple[KvPublisher, ...]:
    """As the metadata of the worker at `host` say."""
    return tuple(
        KvPublisher(
            f"tcp://{authority(host, ports.port + rank)}",
            None if ports.replay is None else f"tcp://{authority(host, ports.replay + rank)}",
            ports.topic,
        )
        for rank in range(ports.ranks)
    )


def read_publishers(document: bytes | bytearray, path: str, host: str) -> tuple[KvPublisher, ...]:
    """The sockets that the answer of a worker at `host` names; none: it publishes nothing. Raises ValueError if it is no answer."""
    try:
        given = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON ({str(error)[:200]})") from error
    return _of_vllm(given, host) if path == VLLM_PATH else _of_sglang(given, host)


def read_sleep(document: bytes | bytearray) -> bool:
    """Whether it says that the worker sleeps."""
    try:
        given = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(given, dict) and given.get("is_sleeping") is True


def _of_vllm(given: Any, host: str) -> tuple[KvPublisher, ...]:
    """By rank; intermediate versions answered with a list, or with one under `sources`."""
    sources: Iterable[Any]
    if isinstance(given, dict):
        listed = given.get("sources")
        sources = listed if isinstance(listed, list) else given.values()
    elif isinstance(given, list):
        sources = given
    else:
        raise ValueError("neither an object nor a list")  # noqa: TRY004  # of the document, not of an argument
    found = []
    for source in list(sources)[:MOST_RANKS]:
        if not isinstance(source, dict) or source.get("publisher", "zmq") != "zmq":
            continue
        events = _own(source.get("endpoint"), host)
        if events is not None:
            found.append(
                KvPublisher(events, _own(source.get("replay_endpoint"), host), _topic(source.get("topic")))
            )
    return tuple(found)


def _of_sglang(given: Any, host: str) -> tuple[KvPublisher, ...]:
    source = given.get("kv_events") if isinstance(given, dict) else None
    if not isinstance(source, dict) or source.get("publisher") != "zmq":
        return ()
    if not _is_own(source.get("endpoint_host", "*"), host):
        return ()
    names = "dp_size", "endpoint_port_base", "replay_endpoint_port_base", "load_endpoint_port_base"
    ranks, base, replay, loads = (source.get(name) for name in names)
    count = min(ranks, MOST_RANKS) if isinstance(ranks, int) and ranks > 0 else 1
    found = []
    for rank in range(count):
        events = _port_of(base, rank, host)
        if events is not None:
            found.append(
                KvPublisher(
                    events,
                    _port_of(replay, rank, host),
                    _topic(source.get("topic")),
                    _port_of(loads, rank, host),
                    _topic(source.get("load_topic", "load")),
                )
            )
    return tuple(found)


def _own(endpoint: object, host: str) -> str | None:
    """The address of a socket that the worker has bound. It connects to an address of another host: nobody can subscribe."""
    found = _ENDPOINT.fullmatch(endpoint) if isinstance(endpoint, str) and len(endpoint) <= 256 else None
    if found is None or not _is_own(found[1], host):
        return None
    return _port_of(int(found[2]), 0, host)


def _is_own(named: object, host: str) -> bool:
    return named in _ANY_HOST or named in (host, f"[{host}]")


def _port_of(base: object, rank: int, host: str) -> str | None:
    if not isinstance(base, int) or not 1 <= base + rank <= 65_535:
        return None
    return f"tcp://{authority(host, base + rank)}"


def _topic(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= _MOST_TOPIC else ""
