"""What a simulated run asks: where does this request go? And what it tells: pages, and what became of requests."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.routing.turns import Turn
from epp.endpoints.load import Load
from examples.simulator.scheduler_model import Work


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """A request. `streamed`: response headers come before the first token, else with the last."""

    key: int
    turn: Turn
    work: Work
    streamed: bool


class Chooser:
    """Base class; `worker` is the worker's number, times are in seconds. Not every way to choose needs all it is told.

    At first no worker is there: `joined` is called for each.
    """

    def choose(self, wanted: Wanted, now: float) -> int:
        """The worker that this request goes to."""
        raise NotImplementedError

    def helper(self, wanted: Wanted) -> int | None:
        """Who computes the prompt for the worker that was just chosen; None: that worker does."""
        return None

    def roles(self, roles: Sequence[str]) -> None:
        """The role of each worker, before any is there."""

    def joined(self, worker: int, now: float) -> None:
        """The worker is there from now on."""

    def gone(self, worker: int, now: float) -> None:
        """It was killed or drains: it gets no further requests. `failed` follows for those that a kill ended."""

    def stopped(self, worker: int, now: float) -> None:
        """It computes nothing until `continued`. No real picker is told."""

    def continued(self, worker: int, now: float) -> None:
        """It computes again. No real picker is told."""

    def read(self, worker: int, page: Load, now: float, period: float) -> None:
        """A metrics page; the next one comes after `period`."""

    def sent(self, wanted: Wanted, worker: int, now: float) -> None:
        """This worker was chosen, and has the request in a few milliseconds."""

    def arrived(self, wanted: Wanted, worker: int, now: float) -> None:
        """The worker has the request."""

    def responded(self, wanted: Wanted, worker: int, now: float) -> None:
        """The response headers came, with status 200."""

    def first_token(self, wanted: Wanted, worker: int, now: float) -> None:
        """The first token came. Where responses are not streamed, no real picker sees that."""

    def computed(self, wanted: Wanted, now: float) -> None:
        """The helper has computed the prompt, and its KV cache is on its way."""

    def ended(self, wanted: Wanted, worker: int, now: float) -> None:
        """The response is complete."""

    def failed(self, wanted: Wanted, worker: int, now: float) -> None:
        """The connection broke: there will be no (further) answer."""
