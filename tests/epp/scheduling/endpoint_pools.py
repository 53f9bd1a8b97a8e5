"""Pools of endpoints in columns, workers with a role, and a request without a prompt."""

import numpy as np

from discovery import Instance, InstanceAddedEvent
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import NO_ADAPTERS, NO_NUMBERS, Column, Endpoint, EndpointPool
from epp.endpoints.load import Load
from epp.request.inference_request import InferenceRequest


def pool_of(now: float = 100.0, **columns: list[float]) -> EndpointPool:
    """Endpoints 10.0.0.1, 10.0.0.2, ...; a column that is not given is as of an idle worker, scraped just now."""
    count = max(len(values) for values in columns.values())
    numbers = np.repeat(NO_NUMBERS, count, axis=1)
    numbers[Column.SCRAPED_AT] = now
    for name, values in columns.items():
        numbers[Column[name.upper()]] = values
    endpoints = [
        Endpoint(id=f"w{i}", incarnation="a", address=f"10.0.0.{i + 1}", port=8000, metrics_port=8000)
        for i in range(count)
    ]
    return EndpointPool(endpoints, numbers, [NO_ADAPTERS] * count, now)


REQUEST = InferenceRequest(request_id="r", path="/v1/completions", model="m", headers={})


def add_worker(store: Datastore, name: str, role: str, address: str = "10.0.0.1", port: int = 8000) -> None:
    """One that is idle and was scraped at 100 s."""
    instance = Instance(name, "ns", "c", address, port, "a", labels={"llm-d.ai/role": role})
    store.apply(InstanceAddedEvent(instance), {})
    store.observe(store.endpoints[-1], Load(waiting=0, running=0, kv_usage=0), 100.0, period=1e9)
