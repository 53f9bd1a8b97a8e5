"""What scheduling knows of one request beside what its client sent. Pure."""

from collections.abc import Mapping

from adsum.tracing.span import Span
from epp.request.inference_request import InferenceRequest
from epp.request.subset import Subset
from epp.scheduling.decision import Decision


class SchedulingContext:
    """Made by the director for each request, and used until the request has its pick.

    `subset`: the endpoints that the data plane allows, None: all. `span`: the part of its trace in which it is scheduled,
    None: its trace is not recorded. `decision`: where its pick is noted, if it is. `scores`: of the candidates by
    destination, from a profile that reports them.
    """

    __slots__ = ("decision", "request", "scores", "span", "subset")

    def __init__(
        self, request: InferenceRequest, subset: Subset | None = None, span: Span | None = None
    ) -> None:
        self.request = request
        self.subset = subset
        self.span = span
        self.decision: Decision | None = None
        self.scores: Mapping[str, float] | None = None

    def clear_scores(self) -> None:
        """Forget them before another profile runs. Where the caller assigns None, mypyc takes a later read for None too."""
        self.scores = None
