"""Runs a dispatcher in this process, over a broker that the test controls."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import yaml

from adsum.tracing.span import Tracer
from dispatcher.broker.clock import BrokerClock
from dispatcher.broker.contract.message import Request, Result
from dispatcher.broker.contract.queue import Broker, Queue
from dispatcher.config.config_file import Config, read_config
from dispatcher.delivery.sender import DispatchObserver
from dispatcher.gates.metering.meter import Meters
from dispatcher.pump.running_queues import RunnerContext, RunningQueues
from dispatcher.telemetry.metrics import DispatcherTelemetry

OPEN = {"type": "constant"}


def configured(url: str, *queues: dict[str, Any], broker: str = "memory://", **target: Any) -> Config:
    """One target "pool" at `url`; each queue's gate is open unless it says otherwise."""
    return read_config(document(url, *queues, broker=broker, **target), {})


def document(url: str, *queues: dict[str, Any], broker: str = "memory://", **target: Any) -> str:
    """The same as YAML."""
    listed = [{"target": "pool", "gate": OPEN, **queue} for queue in queues or ({"name": "batch"},)]
    pool = {"name": "pool", "url": url, **target}
    return yaml.safe_dump({"broker": broker, "http": {"port": 0}, "targets": [pool], "queues": listed})


@asynccontextmanager
async def dispatching(
    broker: Broker,
    config: Config,
    observer: Callable[[str, str], DispatchObserver] | None = None,
    tracer: Tracer | None = None,
) -> AsyncIterator[RunningQueues]:
    clock = BrokerClock(broker.now_ms)
    await clock.sample()
    async with broker.quotas() as quotas, Meters() as meters:
        shared = RunnerContext(
            broker, quotas, meters, observer or DispatcherTelemetry().of, clock.now_ms, "test", tracer
        )
        async with RunningQueues(shared) as queues:
            await queues.apply(config)
            yield queues


@asynccontextmanager
async def producer(broker: Broker, config: Config, name: str = "batch") -> AsyncIterator["Producer"]:
    """The queue as a producer opens it."""
    async with broker.queue(name, config.queue(name).rules) as queue:
        yield Producer(broker, queue)


class Producer:
    def __init__(self, broker: Broker, queue: Queue) -> None:
        self.broker = broker
        self.queue = queue

    async def submit(self, id: str, *, seconds: float = 60.0, **fields: Any) -> Request:
        """A small request, due in `seconds`."""
        deadline_ms = await self.broker.now_ms() + int(seconds * 1000)
        payload = json.dumps({"model": "m", "prompt": id}).encode()
        fields = {"payload": payload, "deadline_ms": deadline_ms} | fields
        return await self.queue.submit(Request(id=id, **fields))

    async def submit_all(self, ids: Sequence[str], **fields: Any) -> list[Request]:
        return [await self.submit(id, **fields) for id in ids]

    async def result(self, request: Request, within: float = 60.0) -> Result:
        """The result of a request; fails if there is none in time."""
        result = await self.queue.wait_result(request.id, request.token, timeout=within)
        assert result is not None, f"no result for {request.id} within {within} s"
        return result

    async def results(self, requests: Sequence[Request], within: float = 60.0) -> list[Result]:
        return [await self.result(request, within) for request in requests]
