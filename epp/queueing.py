"""Flow control as the configuration in force says it, and what the log, the metrics page and /status tell of it."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Never

from epp.config.picker_config import PickerConfig
from epp.endpoints.datastore import Datastore
from epp.flow_control.band_log import BandLog
from epp.flow_control.controller import FlowController, FlowControlSwitch
from epp.flow_control.eviction import InFlightEviction
from epp.flow_control.fairness import FairnessPolicy
from epp.flow_control.pool_load import EFFECTIVE
from epp.flow_control.settings import FlowControlSettings
from epp.scheduling.director import Director
from epp.scheduling.plugin import UsageFollower
from epp.telemetry.counters import Telemetry
from epp.telemetry.flow_control_metrics import BandGauges, RevocationMetrics

_LOG_INTERVAL: Final = 1.0
"""Seconds between two looks whether requests still wait."""


class Queueing:
    """`memory`: bytes that all request bodies may hold together."""

    def __init__(
        self,
        director: Director,
        datastore: Datastore,
        telemetry: Telemetry,
        memory: int,
        clock: Callable[[], float],
    ) -> None:
        self._director = director
        self._datastore = datastore
        self._telemetry = telemetry
        self._clock = clock
        self._switch = FlowControlSwitch(director, datastore, memory)
        self._log = BandLog(telemetry, self._why)
        self._detector_name = ""
        self.fairness: list[FairnessPolicy] = []
        """The policies in force."""
        director.waiting.observer = self._log
        self._show(telemetry.pool_name)

    def use(self, config: PickerConfig) -> None:
        """Apply the settings of `config`; a picker that never had any stays as it is."""
        if config.flow_control is None and self._switch.controller is None:
            return
        self._switch.use(config.flow_control, config.detector, self._clock())
        settings = config.flow_control
        self._log.enabled = self._telemetry.flow_control.enabled = settings is not None
        self.fairness = [] if settings is None else _fairness_policies(settings)
        self._telemetry.on_usage = [one.used for one in self.fairness if isinstance(one, UsageFollower)]
        self._detector_name = config.detector_name

    @property
    def saturation(self) -> float:
        """The load of the pool now, as it decides whether requests go; 1.0 = full."""
        return self.saturations()[EFFECTIVE]

    def saturations(self) -> Mapping[str, float]:
        """The same, and with flow control that of each stage."""
        controller, now = self._switch.controller, self._clock()
        return (
            {EFFECTIVE: self._director.saturation(now)} if controller is None else controller.saturations(now)
        )

    @property
    def controller(self) -> FlowController | None:
        """None: flow control is off."""
        return self._switch.controller

    def describe(self) -> dict[str, Any]:
        """For /status: what waits at each priority; null without flow control."""
        controller, now = self._switch.controller, self._clock()
        return {"flow_control": None if controller is None else _describe(controller, now)}

    async def log_waits(self) -> Never:
        """Log when requests wait no more; nothing runs while none wait."""
        began = asyncio.Event()
        self._log.wake = began.set
        while True:
            await began.wait()
            began.clear()
            waiting = True
            while waiting:
                await asyncio.sleep(_LOG_INTERVAL)
                waiting = self._log.end_spells(self._clock())

    def _show(self, pool_name: str) -> None:
        bands = BandGauges(
            pool_name,
            lambda: self._switch.controller,
            lambda: self._datastore.pool(self._clock()),
            lambda: self._detector_name,
        )
        revocations = RevocationMetrics(pool_name, self._eviction, self._clock)
        for gauges in (bands, revocations):
            self._telemetry.gauges.register(gauges)

    def _eviction(self) -> InFlightEviction | None:
        controller = self._switch.controller
        return controller.eviction if controller is not None and controller.settings.eviction else None

    def _why(self) -> str:
        controller = self._switch.controller
        if controller is None or not self._datastore.endpoints:
            return "no endpoint is ready"
        return f"the saturation of the pool is {controller.saturation:.2f}"


def _describe(controller: FlowController, now: float) -> dict[str, Any]:
    return {
        "saturation": round(controller.saturations(now)[EFFECTIVE], 3),
        "priorities": [
            {
                "priority": band.priority,
                "ceiling": round(band.ceiling, 3),
                "waiting": len(band.waiting),
                "waiting_at_peers": controller.waiting_at_peers(band.priority),
                "bytes": band.bytes,
                "max_requests": band.settings.max_requests,
                "max_bytes": band.settings.max_bytes,
            }
            for band in controller.bands
        ],
    }


def _fairness_policies(settings: FlowControlSettings) -> list[FairnessPolicy]:
    """Each once: one may serve several bands."""
    bands = [*settings.bands.values(), settings.default_band]
    if settings.default_negative_band is not None:
        bands.append(settings.default_negative_band)
    return list({id(band.fairness): band.fairness for band in bands}.values())
