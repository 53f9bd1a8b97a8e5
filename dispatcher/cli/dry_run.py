"""`--dry-run`: prints what each gate reads and which requests it would admit now; claims and sends nothing."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Final, NamedTuple

from adsum.entry_points import in_one_line
from dispatcher.broker.contract.ledger import Quotas
from dispatcher.broker.contract.message import DispatchCandidate
from dispatcher.broker.contract.queue import Broker, Queue, QueueError
from dispatcher.broker.opening import open_broker
from dispatcher.config.config_file import Config, QueueConfig
from dispatcher.gates.admission import HeldAdmissions
from dispatcher.gates.building import GateDependencies, build_gate, meter_states
from dispatcher.gates.gate import DispatchGate, RefusedError
from dispatcher.gates.metering.meter import Meters
from dispatcher.pump.running_queues import target_tls

MAX_SHOWN = 10
"""Requests of one queue that are printed."""
FIRST_READING_TIMEOUT = 10.0
"""Seconds for which a gate may take to read its metric."""


async def dry_run(config: Config) -> list[str]:
    """Returns one line for each metric that cannot be read. Raises ConfigError and QueueError."""
    unread = []
    async with open_broker(config.broker) as broker, broker.quotas() as quotas, Meters() as meters:
        for queue in config.queues:
            tried = await _try_queue(config, queue, broker, quotas, meters)
            print("\n".join(tried.lines))
            unread += tried.unread
    return unread


class _QueueReport(NamedTuple):
    lines: list[str]
    unread: list[str]


async def _try_queue(
    config: Config, queue_config: QueueConfig, broker: Broker, quotas: Quotas, meters: Meters
) -> _QueueReport:
    target = config.target(queue_config.target)
    target_tls(target)
    async with AsyncExitStack() as stack:
        queue = await stack.enter_async_context(broker.queue(queue_config.name, queue_config.rules))
        ledger = await stack.enter_async_context(broker.ledger(target.name))
        dependencies = GateDependencies(target.name, ledger, quotas, meters, target.concurrency)
        gate = await stack.enter_async_context(build_gate(queue_config.gate_spec(), dependencies))
        await _wait_for_reading(gate)
        totals = await queue.totals()
        head = f"queue {queue.name} → {target.name} ({target.url}{queue_config.route(target).request_path()})"
        about = f"  gate {queue_config.gate['type']}: budget {gate.budget():.4g}, {totals.pending} requests pending"
        lines = [head, about, *_metric_lines(gate), *await _would_send(queue, gate)]
        states = meter_states(gate)
        unread = [f"queue {queue.name}: {one.name}: {one.reason}" for one in states if not one.available]
        return _QueueReport(lines, unread)


async def _wait_for_reading(gate: DispatchGate) -> None:
    try:
        async with asyncio.timeout(FIRST_READING_TIMEOUT):
            while any(not state.available for state in meter_states(gate)):  # noqa: ASYNC110  # seconds, once
                await asyncio.sleep(0.1)
    except TimeoutError:
        return


def _metric_lines(gate: DispatchGate) -> Iterator[str]:
    for state in meter_states(gate):
        message = (
            f"reads {state.value:g}, the gate closes at {state.threshold:g}"
            if state.available and state.value is not None and state.threshold is not None
            else f"cannot be read: {state.reason}"
        )
        yield f"  metric {state.name}: {message}"


async def _would_send(queue: Queue, gate: DispatchGate) -> list[str]:
    """Ask the gate for the head of the queue, one request after the other; the slots are released unused.

    If nothing waits, it is asked for a request that does not exist: only `admit` says why a gate without a metric is closed.
    """
    lines = []
    waiting = await queue.peek(MAX_SHOWN)
    async with HeldAdmissions() as held:
        for candidate in waiting or [_NO_REQUEST]:
            if (refusal := await _refusal(held, gate, candidate)) is not None:
                lines.append(f"  would not send {_describe(candidate)}: {refusal}")
                break
            lines.append(f"  would send {_describe(candidate)}")
    return lines if waiting else ["  nothing waits", *(line for line in lines if "would not" in line)]


async def _refusal(held: HeldAdmissions, gate: DispatchGate, candidate: DispatchCandidate) -> str | None:
    """Why the gate refuses it; None: it is admitted, until `held` is left."""
    try:
        await held.enter(gate, candidate)
    except RefusedError as refusal:
        return refusal.reason
    except QueueError:
        raise
    except Exception as error:  # noqa: BLE001  # a gate of an installed package may raise anything; the other queues are shown
        return f"the gate failed: {in_one_line(error)}"
    return None


_NO_REQUEST: Final = DispatchCandidate(id="", token="", tenant="default", deadline_ms=0, size=0)


def _describe(candidate: DispatchCandidate) -> str:
    if candidate is _NO_REQUEST:
        return "a request"
    return f"{candidate.id!r} of tenant {candidate.tenant!r}, {candidate.size} bytes"
