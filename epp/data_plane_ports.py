"""The gRPC ports: data planes open ext_proc streams, ask for endpoints and check the health of the picker."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import Any, Final, Never

from adsum.serving.handing import HandedSocket
from adsum.serving.sockets import ListenError
from adsum.tasks import ResourceOwner
from adsum.tracing.span import Tracer
from epp.config.picker_config import PickerConfig
from epp.config.settings import LAME_DUCK, Settings
from epp.config.sibling_processes import Siblings
from epp.ext_proc.exchange import Exchange
from epp.ext_proc.exchange_settings import ExchangeSettings
from epp.ext_proc.outcome_ledger import TICK, OutcomeLedger
from epp.ext_proc.response_body import EarlyEnds
from epp.health import Health
from epp.picking import Picking
from epp.request.body import MemoryBudget
from epp.telemetry.counters import Telemetry
from epp.telemetry.picker_metrics import OutcomeMetrics, StreamCounts
from epp.wire.opening import grpc_address, open_transport
from epp.wire.transport import ListenAddress, Listener, Transport

RECENT: Final = 5.0
"""Seconds within which a data plane that uses this picker sends a stream or a health check."""
_EXPIRE_INTERVAL: Final = 1.0
"""The most seconds between two checks for request bodies that take too long."""

log = logging.getLogger(__name__)


class DataPlanePorts(ResourceOwner):
    """An async context manager; once entered, --grpc-health-port is open, with `listening` also --grpc-port. A `ConfiguredPart`."""

    def __init__(
        self,
        settings: Settings,
        config: PickerConfig,
        picking: Picking,
        telemetry: Telemetry,
        tracer: Tracer | None,
        siblings: Siblings | None = None,
    ) -> None:
        self._settings = settings
        self._handed: Mapping[str, HandedSocket] = {} if siblings is None else siblings.ports
        self._picking = picking
        self._telemetry = telemetry
        self._clock = picking.clock
        self._memory = MemoryBudget(settings.max_buffered_bytes)
        self.health = Health(picking.clock)
        self._exchanges = ExchangeSettings(
            settings.protocol_version,
            settings.max_body_bytes,
            not settings.disable_endpoint_subset_filter,
            response_readers=(telemetry.read_answer,) if settings.usage_metrics else (),
            passing_readers=() if settings.usage_metrics else (telemetry.read_usage,),
            tracer=tracer,
        )
        self.outcomes = OutcomeLedger(_name(siblings), picking.director.picks.heard_late)
        self._use(config)
        self.transport = self._open_transport()
        self.transport.await_outcomes(self.outcomes)
        telemetry.registry.register(OutcomeMetrics(self.outcomes))

    @property
    def addresses(self) -> str:
        """For the ready line."""
        return f"grpc={self._listener.address} health={self._health_listener.address}"

    def describe(self) -> dict[str, Any]:
        """For /status: the health that data planes are told, and by which way outcomes of picks come."""
        asked = isfinite(self.transport.opened_at)
        return {**self.health.describe(), **self.outcomes.describe(self._clock(), asked=asked)}

    def prepare(self, config: PickerConfig) -> Callable[[], None]:
        return partial(self._use, config)

    def _use(self, config: PickerConfig) -> None:
        early_ends = EarlyEnds() if config.detector.counts_in_flight else None
        headers = config.response_headers
        self._exchanges = replace(self._exchanges, response_headers=headers, early_ends=early_ends)
        self.outcomes.without = config.needs_answers(usage_metrics=self._settings.usage_metrics)

    def _open_transport(self) -> Transport:
        settings = self._settings
        streams = StreamCounts(lambda: self.transport.open_streams)
        if settings.enable_grpc_stream_metrics:
            self._telemetry.registry.register(streams)
        ended = streams.ended if settings.enable_grpc_stream_metrics else None

        def exchange() -> Exchange:
            return Exchange(self._picking.director, self._exchanges, self._telemetry, self._memory)

        return open_transport(settings.transport, exchange, self.health, self._memory, self._clock, ended)

    async def _open(self) -> None:
        settings = self._settings
        self._address = replace(grpc_address(settings, self._start), handed=self._handed.get("grpc"))
        if settings.body_timeout:
            self._start(self._expire_bodies(settings.body_timeout))
        self._start(self._expect_news())
        handed = self._handed.get("health")
        health = ListenAddress(settings.host, settings.grpc_health_port, handed=handed)
        self._health_listener = await self._listen(self._stack, "--grpc-health-port", health)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Process requests and be SERVING in the block."""
        async with AsyncExitStack() as stack:
            stack.callback(lambda: self.outcomes.close(self._clock()))
            self._listener = await self._listen(stack, "--grpc-port", self._address, processing=True)
            stack.callback(self.health.close)
            self.health.set_serving(True)
            yield

    async def _listen(
        self, stack: AsyncExitStack, flag: str, address: ListenAddress, *, processing: bool = False
    ) -> Listener:
        try:
            return await stack.enter_async_context(self.transport.listener(address, processing=processing))
        except ListenError as error:
            raise ListenError(f"{error} ({flag})") from error

    async def drain(self) -> None:
        """Become NOT_SERVING, serve until data planes notice, then close streams (docs/shutdown.md).

        Answered streams end, requests that wait for admission are rejected, and the others get the rest of the drain
        timeout. The wait is skipped if no data plane sent anything for RECENT seconds.
        """
        self.health.set_serving(False)
        came_at = max(self.transport.opened_at, self.health.asked_at)
        lame_duck = min(LAME_DUCK, self._settings.drain_timeout) if self._clock() - came_at < RECENT else 0.0
        log.info(
            "draining: serving for %g s more, until data planes use another picker; %d streams are open",
            lame_duck,
            self.transport.open_streams,
        )
        await asyncio.sleep(lame_duck)
        self.transport.drain()
        self._picking.director.waiting.drain(self._clock())
        self.health.close()
        await self._listener.drain(self._settings.drain_timeout - lame_duck)

    async def _expect_news(self) -> Never:
        """Release picks of which the data plane's log says nothing."""
        while True:
            await asyncio.sleep(TICK)
            self.outcomes.tick(self._clock())

    async def _expire_bodies(self, allowed: float) -> Never:
        """Refuse request bodies that are not complete after `allowed` seconds."""
        while True:
            await asyncio.sleep(min(_EXPIRE_INTERVAL, allowed))
            self._memory.expire(self._clock() - allowed, allowed)


def _name(siblings: Siblings | None) -> str:
    """16 characters that no other picker has; those of one of several processes begin with its place."""
    return secrets.token_hex(8) if siblings is None else f"{siblings.place:02x}{secrets.token_hex(7)}"
