"""An admission as somebody outside would write it: first in, first out, so many requests in flight at most."""

from collections import deque

from epp.endpoints.endpoint import EndpointPool
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.waiting import WaitingRequest


class Fifo:
    """A request goes while fewer than `most` are in flight where it may go; it waits `ttl` seconds at the longest."""

    def __init__(self, most: int, ttl: float = 60.0) -> None:
        self.queue: deque[WaitingRequest] = deque()
        self._most = most
        self._ttl = ttl

    @property
    def waits_for_endpoints(self) -> bool:
        return False

    def admit(self, request: InferenceRequest, candidates: EndpointPool, now: float) -> bool:
        return not self.queue and candidates.inflight.sum() < self._most

    def would_admit(self, request: InferenceRequest, candidates: EndpointPool, now: float) -> bool:
        return self.admit(request, candidates, now)

    def would_enqueue(self, request: InferenceRequest, now: float) -> None:
        """There is always room."""

    def enqueue(self, waiting: WaitingRequest, now: float) -> None:
        self.queue.append(waiting)

    def withdraw(self, waiting: WaitingRequest, now: float) -> None:
        self.queue.remove(waiting)

    def dispatch(self, now: float) -> float | None:
        while self.queue and self.queue[0].queued_at + self._ttl <= now:
            expired = Rejection(429, "ttl_expired", "it waited too long", reason="rejected-ttl-expired")
            self.queue.popleft().expire(expired, now)
        while self.queue and self._has_room(self.queue[0], now):
            self.queue.popleft().dispatch(now)
        return self.queue[0].queued_at + self._ttl if self.queue else None

    def close(self, now: float) -> float | None:
        while self.queue:
            self.queue.popleft().dispatch(now)
        return None

    def _has_room(self, waiting: WaitingRequest, now: float) -> bool:
        try:
            return bool(waiting.candidates(now).inflight.sum() < self._most)
        except Rejection:
            return True  # nobody may serve it now: dispatched, it is told why
