"""Pools of endpoints in columns, workers with a role, and a request without a prompt."""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from discovery import Instance, InstanceAddedEvent
from epp.config.picker_config import PickerConfig, load_config
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import NO_ADAPTERS, NO_NUMBERS, ROLE_LABEL, Column, Endpoint, EndpointPool
from epp.endpoints.load import Load
from epp.request.inference_request import InferenceRequest
from epp.scheduling.director import Director
from epp.scheduling.pick import Pick
from epp.scheduling.request_reader import Policy


def pool_of(now: float = 100.0, **columns: list[float]) -> EndpointPool:
    """Endpoints 10.0.0.1, 10.0.0.2, ...; a column that is not given is as of an idle worker, scraped just now."""
    count = max(len(values) for values in columns.values())
    pool = unread([make_endpoint(f"w{i}", address=f"10.0.0.{i + 1}") for i in range(count)], now)
    pool.numbers[Column.SCRAPED_AT] = now
    for name, values in columns.items():
        pool.numbers[Column[name.upper()]] = values
    return pool


def make_endpoint(name: str = "e", port: int = 8000, **more: Any) -> Endpoint:
    """At 10.0.0.1, unless told otherwise."""
    fields = {"incarnation": "a", "address": "10.0.0.1", "metrics_port": 8000} | more
    return Endpoint(id=name, port=port, **fields)


def unread(endpoints: Sequence[Endpoint], now: float = 0.0) -> EndpointPool:
    """A pool of which nobody has read a page."""
    count = len(endpoints)
    return EndpointPool(endpoints, np.repeat(NO_NUMBERS, count, axis=1), [NO_ADAPTERS] * count, now)


REQUEST = InferenceRequest(request_id="r", path="/v1/completions", model="m", headers={})


def add_worker(
    store: Datastore,
    name: str = "",
    role: str = "",
    *,
    address: str = "",
    port: int = 8000,
    labels: Mapping[str, str] | None = None,
    document: Mapping[str, Any] | None = None,
    is_seen: bool = True,
    **more: Any,
) -> Instance:
    """The next of w0, w1, ... at 10.0.0.1, 10.0.0.2, ..., idle; scraped at 100 s, unless it `is_seen` by nobody.

    `more`: other fields of the instance.
    """
    number = len(store.endpoints)
    where = address or f"10.0.0.{number + 1}"
    carried = {**(labels or {}), **({ROLE_LABEL: role} if role else {})}
    added = Instance(name or f"w{number}", "ns", "c", where, port, "a", labels=carried, **more)
    store.apply(InstanceAddedEvent(added), document or {})
    if is_seen:
        idle(store)
    return added


def idle(store: Datastore, row: int = -1) -> None:
    """What the page of that worker says at 100 s, and for good."""
    store.observe(store.endpoints[row], Load(waiting=0, running=0, kv_usage=0), 100.0, period=1e9)


def config_of(*plugins: Mapping[str, Any], **sections: Any) -> PickerConfig:
    return load_config(text_of(*plugins, **sections), rng=random.Random(1))


def text_of(*plugins: Mapping[str, Any], **sections: Any) -> str:
    """Of a configuration file."""
    head = {"apiVersion": "llm-d.ai/v1", "kind": "EndpointPickerConfig"}
    return json.dumps(head | {"plugins": plugins} | sections)


def director_of(config: PickerConfig, store: Datastore) -> Director:
    return Director(store, config.scheduler, config.detector, Policy(), random.Random(2))


def picked(outcome: object) -> Pick:
    """What a director answers where it neither refuses nor lets wait."""
    assert isinstance(outcome, Pick)
    return outcome
