"""Puts flow control into force, changes its settings and switches it off while requests wait. Pure."""

from collections.abc import Callable
from dataclasses import replace

from epp.endpoints.datastore import Datastore
from epp.flow_control.controller import FlowController
from epp.flow_control.settings import FlowControlSettings
from epp.scheduling.director import Director
from epp.scheduling.saturation import SaturationDetector


class FlowControlSwitch:
    """`memory`: bytes that all request bodies of the picker may hold together; those that wait get a part of it."""

    def __init__(self, director: Director, datastore: Datastore, memory: int) -> None:
        self._director = director
        self._datastore = datastore
        self._memory = memory
        self.controller: FlowController | None = None
        """None: it is off."""

    def use(self, settings: FlowControlSettings | None, detector: SaturationDetector, now: float) -> None:
        """Use these settings from now on, None: no flow control, and what waits goes. The queue stays otherwise."""
        if settings is None:
            self._end()
        elif self.controller is None:
            self._begin(FlowController(self._bounded(settings), detector, self._datastore.pool))
        else:
            self.controller.reconfigure(self._bounded(settings), detector, now)
            self._director.waiting.wake()
        evicts = self.controller is not None and self.controller.settings.eviction
        self._director.picks.evictable = self.controller.eviction if evicts and self.controller else None
        self._director.use_admission(self.controller)

    def _begin(self, controller: FlowController) -> None:
        self.controller = controller
        self._hook: Callable[[], None] = controller.endpoints_changed
        self._datastore.on_change.append(self._hook)

    def _end(self) -> None:
        if self.controller is not None:
            self._datastore.on_change.remove(self._hook)
            self.controller = None

    def _bounded(self, settings: FlowControlSettings) -> FlowControlSettings:
        """Bodies that wait leave a quarter of the memory to those that still arrive, or nothing could be read any more."""
        most = self._memory - self._memory // 4
        return replace(settings, max_bytes=min(settings.max_bytes or most, most))
