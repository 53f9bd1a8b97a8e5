"""The snippets of seed 002, run as they are written.

The only edits are those that make them Python: `match` for `switch`, `case X():`, literals for `{...}`, a stub for
`set_up_nats_listener`, `await start_http_server()` without await (the registry serves the contract itself), and an end
for the watch, which has none by itself.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import discovery.blocking
import registry.blocking
from discovery import InstanceAddedEvent, InstanceRemovedEvent


@pytest.fixture(params=["memory", "filesystem"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {"memory": f"memory://{tmp_path.name}", "filesystem": f"file://{tmp_path}"}[request.param]


@pytest.fixture
def service_registry(url: str) -> Iterator[Any]:
    with registry.blocking.open(url) as opened:
        yield opened


@pytest.fixture
def service_discovery(url: str) -> Iterator[Any]:
    with discovery.blocking.open(url) as opened:
        yield opened


def set_up_nats_listener(instance_id: str) -> dict[str, Any]:
    return {"nats": {"subject": f"dynamo.decode.{instance_id}"}}


def start_http_server() -> None:
    """The registry serves `/metadata` and the probes."""


def decode_worker_set_up(service_registry: Any) -> Any:
    # Register the instance
    decode_worker = service_registry.register_instance("dynamo", "decode")
    instance_id = decode_worker.instance_id()  # Unique identifier for the instance

    # Start up NATS listener for the endpoints of this component (or other transport). We may or may not need the
    # instance id to setup the transport.
    comp_transport_details = set_up_nats_listener(instance_id)

    # Write metadata associated with the instance
    metadata = {
        "model": {"name": "Qwen3-32B"},  # Runtime Info
        "transport": comp_transport_details,  # Transport details for this component
        "mdc": {"context_length": 32768},  #  Model Deployment Card
    }

    decode_worker.set_metadata(metadata)
    decode_worker.set_ready("ready")
    return decode_worker


def test_frontend_discovers_decode_workers(service_registry: Any, service_discovery: Any) -> None:
    decode_worker_set_up(service_registry)
    models = []

    # Frontend start:
    decode_workers = service_discovery.list_instances("dynamo", "decode")
    for decode_worker in decode_workers:
        # Fetch the associated metadata for the instance to register the model in-memory model registry
        metadata = decode_worker.metadata()
        model = metadata["Model"]
        # map the instance to the model in the in-memory model registry ...
        models.append(model["name"])

    assert models == ["Qwen3-32B"]


def test_set_metadata_and_set_ready(service_registry: Any, service_discovery: Any) -> None:
    # Server-side: Register the instance
    decode_worker = service_registry.register_instance("dynamo", "decode")
    start_http_server()
    # Server-side: Set metadata for the instance
    metadata = {
        "Model": {
            "name": "Qwen3-32B",
            "type": "Completions",
            "runtime_config": {
                "total_kv_blocks": 24064,
                "max_num_seqs": 256,
                "max_num_batched_tokens": 2048,
            },
        },
        "Transport": {"http": {"port": 8000}},  # Transport details for this component
        "MDC": {},  # Model Deployment Card
    }
    decode_worker.set_metadata(metadata)
    assert service_discovery.list_instances("dynamo", "decode") == []
    # When the server is ready to serve, mark the instance as ready for discovery.
    decode_worker.set_ready("ready")

    # Client-side: Get metadata from a specific instance
    decode_workers = service_discovery.list_instances("dynamo", "decode")
    for decode_worker in decode_workers:
        # Fetch the associated metadata for the instance
        metadata = decode_worker.metadata()
        model = metadata["Model"]
        assert model["runtime_config"]["total_kv_blocks"] == 24064
        assert metadata["transport"] == {"http": {"port": 8000}}
    assert len(decode_workers) == 1


def test_watch(service_registry: Any, service_discovery: Any) -> None:
    models = []
    gone = []
    seen = threading.Event()

    # Context: frontend has watch setup on decode workers
    stream = service_discovery.watch("dynamo", "decode")
    worker = threading.Thread(target=lambda: worker_life(service_registry, seen))
    worker.start()
    for event in stream:
        match event:
            case InstanceAddedEvent():
                # Fetch the associated metadata for the instance
                metadata = event.instance.metadata()
                model = metadata["Model"]
                # register the model in-memory model registry
                # map the instance to the model
                models.append(model["name"])
                seen.set()
            case InstanceRemovedEvent():
                gone.append(event.instance_id)
                stream.close()
    worker.join()

    assert models == ["Qwen3-32B"]
    assert len(gone) == 1


def worker_life(service_registry: Any, seen: threading.Event) -> None:
    decode_worker = decode_worker_set_up(service_registry)
    assert seen.wait(10)
    decode_worker.set_ready("not_ready")


async def test_the_blocking_form_works_inside_a_running_loop(
    service_registry: Any, service_discovery: Any
) -> None:
    decode_worker_set_up(service_registry)
    [instance] = service_discovery.list_instances("dynamo", "decode")
    assert instance.metadata()["mdc"] == {"context_length": 32768}
