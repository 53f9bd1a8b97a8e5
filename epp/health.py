"""The picker's health for grpc.health.v1: the answers of Check, Watch and List, as our own copy of its messages."""

import math
import time
from collections.abc import Callable
from typing import Any

from epp.ext_proc.protocol import EXT_PROC
from epp.wire.messages.health_pb2 import HealthCheckResponse, HealthListResponse

SERVICE = "grpc.health.v1.Health"
LIVENESS = "liveness"
READINESS = ("", EXT_PROC, "readiness", "inference-extension")
"""The empty name stands for the whole server (grpc's doc/health-checking.md)."""


class UnknownServiceError(Exception):
    """Check names an unknown service: NOT_FOUND (grpc's doc/health-checking.md)."""


class Health:
    """`liveness` is always SERVING, the services in READINESS while `serving`. `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.asked_at = -math.inf
        """When the last Check came, in the clock's seconds; -inf before the first."""
        self.watchers: set[Callable[[], None]] = set()
        """Called after a change of any status, and by `close`."""
        self.closed = False
        self.withheld: str | None = None
        """Why the picker is NOT_SERVING although `set_serving` was called; None: it is not."""
        self._serving = False

    @property
    def serving(self) -> bool:
        """Whether this picker should get traffic."""
        return self._serving and self.withheld is None

    def describe(self) -> dict[str, Any]:
        """For /status."""
        reason = None if self.serving else self.withheld or "it starts or drains"
        return {"serving": self.serving, "reason": reason}

    def set_serving(self, serving: bool) -> None:
        self._serving = serving
        self._notify()

    def withhold(self, reason: str | None) -> None:
        """Be NOT_SERVING for `reason` until it is None again."""
        if reason != self.withheld:
            self.withheld = reason
            self._notify()

    def close(self) -> None:
        """End all Watch streams, after their last status, so that a server can drain."""
        self.closed = True
        self._notify()

    def check(self, service: str) -> HealthCheckResponse:
        """The answer to Check; raises UnknownServiceError."""
        self.asked_at = self._clock()
        status = self.status(service)
        if status == HealthCheckResponse.SERVICE_UNKNOWN:
            raise UnknownServiceError(f"unknown service {service[:100]!r}")
        return HealthCheckResponse(status=status)

    def list(self) -> HealthListResponse:
        services = (LIVENESS, *READINESS)
        return HealthListResponse(
            statuses={service: HealthCheckResponse(status=self.status(service)) for service in services}
        )

    def status(self, service: str) -> HealthCheckResponse.ServingStatus:
        """The status that Watch sends: SERVICE_UNKNOWN for an unknown service."""
        if service == LIVENESS or (service in READINESS and self.serving):
            return HealthCheckResponse.SERVING
        return (
            HealthCheckResponse.NOT_SERVING if service in READINESS else HealthCheckResponse.SERVICE_UNKNOWN
        )

    def _notify(self) -> None:
        for watcher in list(self.watchers):
            watcher()
