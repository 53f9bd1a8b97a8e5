"""What grpc.health.v1 is answered: Check, Watch and List, over our own copy of its messages."""

import math
import time
from collections.abc import Callable

from epp.ext_proc.protocol import EXT_PROC
from epp.wire.messages.health_pb2 import HealthCheckResponse, HealthListResponse

SERVICE = "grpc.health.v1.Health"
LIVENESS = "liveness"
READINESS = ("", EXT_PROC, "readiness", "inference-extension")


class UnknownServiceError(Exception):
    """Asked for a service that is none of ours: NOT_FOUND for Check (grpc.health.v1)."""


class Health:
    """`liveness` serves as long as the process does; the other services serve while `serving` is set.

    A service that is none of these is SERVICE_UNKNOWN for Watch. `clock` gives monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.asked_at = -math.inf
        """When the last Check came."""
        self.watchers: set[Callable[[], None]] = set()
        """Called when something has changed."""
        self.closed = False
        self._serving = False

    @property
    def serving(self) -> bool:
        """Whether this picker should get traffic."""
        return self._serving

    def set_serving(self, serving: bool) -> None:
        self._serving = serving
        self._tell()

    def close(self) -> None:
        """End all Watch streams, so that a server can stop; they have been told what was set before."""
        self.closed = True
        self._tell()

    def check(self, service: str) -> HealthCheckResponse:
        """Raises UnknownServiceError."""
        self.asked_at = self._clock()
        status = self.status(service)
        if status == HealthCheckResponse.SERVICE_UNKNOWN:
            raise UnknownServiceError(f"unknown service {service[:100]!r}")
        return HealthCheckResponse(status=status)

    def list(self) -> HealthListResponse:
        """Every service there is."""
        services = (LIVENESS, *READINESS)
        return HealthListResponse(
            statuses={service: HealthCheckResponse(status=self.status(service)) for service in services}
        )

    def status(self, service: str) -> HealthCheckResponse.ServingStatus:
        """As Watch tells it."""
        if service == LIVENESS or (service in READINESS and self._serving):
            return HealthCheckResponse.SERVING
        return (
            HealthCheckResponse.NOT_SERVING if service in READINESS else HealthCheckResponse.SERVICE_UNKNOWN
        )

    def _tell(self) -> None:
        for watcher in list(self.watchers):
            watcher()
