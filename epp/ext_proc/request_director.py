"""The Protocols that an exchange depends on: a director that picks, an observer that counts. Pure."""

from collections.abc import Callable, Mapping
from typing import Protocol

from adsum.tracing.span import Span
from epp.outliers.settings import Failure
from epp.request.rejection import OwnAnswer, Rejection
from epp.request.subset import Subset
from epp.scheduling.pick import Pick


class Deferral(Protocol):
    """A pick that comes later, because the request waits for admission."""

    def subscribe(self, settle: Callable[[Pick | Exception, float], None]) -> None:
        """Call `settle` once, with the pick or the reason why there is none, and the time."""

    def abandon(self, now: float) -> None:
        """The client is gone; `settle` is not called after this."""


class RequestDirector(Protocol):
    """The part of `epp.scheduling.director.Director` that an exchange needs."""

    def direct(
        self,
        headers: Mapping[str, str],
        body: bytes | bytearray | memoryview | None,
        subset: Subset | None,
        now: float,
        span: Span | None = None,
    ) -> Pick | Deferral | OwnAnswer:
        """Pick and reserve; `body` None: there may be one, but the pick does not see it. Raises `Rejection`.

        `span`: given only if the trace is recorded.
        """

    def served(self, pick: Pick, destination: str, now: float) -> None:
        """The data plane reports which destination served the request."""

    def retried(self, pick: Pick, attempts: int, now: float) -> None:
        """The data plane made so many attempts before `served`."""

    def responded(self, pick: Pick, status: int, now: float, failure: Failure | None = None) -> None:
        """The response headers came; `failure`: the data plane answered in place of the worker."""

    def release(self, pick: Pick, now: float) -> None:
        """The stream is over."""


class Observer(Protocol):
    """Notified of the steps of each request, for metrics."""

    def picked(self, pick: Pick, now: float) -> None:
        """A request got its pick."""

    def rejected(self, rejection: Rejection, now: float) -> None:
        """A request was answered by the picker itself."""

    def evicted(self, pick: Pick, rejection: Rejection, now: float) -> None:
        """A request that had its pick was answered by the picker itself."""

    def responded(self, pick: Pick, status: int, now: float) -> None:
        """The response headers came."""

    def not_renamed(self) -> None:
        """An answer took too much work to give its client the name of the model that it asked for."""

    def released(self, pick: Pick, started: float, now: float) -> None:
        """The stream of a request that began at `started` is over."""
