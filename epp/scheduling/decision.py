"""What was known when a request was scheduled, and what became of it: notes for whoever asks why. Pure.

The notes of a pick keep what it made anyway, as columns. Scores that it did not need are computed from them by who reads them
(`epp.decisions.scored_candidates`). They keep nothing that refers to a request's body or headers.
"""

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from epp.endpoints.endpoint import Column, Endpoint, EndpointPool, Indices
from epp.request.inference_request import InferenceRequest, request_path, tokens_in
from epp.request.rejection import Rejection

MOST_TEXT: Final = 200
"""Characters that are kept of a text that a client or a data plane chose."""
_KEPT_TEXT: Final = slice(MOST_TEXT)
NOT_YET: Final = -1.0
KEPT_ROWS: Final = int(Column.SCRAPED_AT) + 1
"""The rows of a pool's matrix that are kept as numbers: the first ones."""

FEW: Final = 8
"""Scores that are kept by row; more are kept as a column."""

KeptScores: TypeAlias = Sequence[Any]
"""Of several scorers: a column, or by row the scores that are not 0, FEW at most."""
Steps: TypeAlias = Sequence[tuple[str, Indices | None]]
"""What left endpoints out, and the rows that it left; None: all."""


@dataclass(frozen=True, slots=True)
class NamedScorer:
    """`name` and `type` as in the configuration."""

    name: str
    type: str
    weight: float


@dataclass(frozen=True, slots=True)
class ProfilePlan:
    """What a profile does, in words. Of `scorers`, `published` are computed once for each state of the pool, `by_request` for
    each request; `in_flight` are computed from the requests that no page shows yet: `requests / (requests + unreported)`.
    `takes_best`: the picker takes the highest sum of scores. `most_columns`: that a `ProfileRun` keeps if no endpoint is
    late or stale.
    """

    filters: Sequence[str]
    scorers: Sequence[NamedScorer]
    picker: str
    published: Sequence[int]
    by_request: Sequence[int]
    in_flight: Sequence[tuple[int, float]]
    takes_best: bool
    most_columns: int = field(init=False)

    def __post_init__(self) -> None:
        steps = len(self.filters) + 1 if self.filters else 0  # the late ones are left out before filters
        object.__setattr__(self, "most_columns", steps + len(self.scorers))


class ProfileRun:
    """One profile's part in a decision.

    `steps`: what left endpoints out, in order, with the rows that were left of all endpoints (None: all). `rows`: those that
    were scored. `fresh`: of these, those whose numbers were fresh, None: all. `published` and `scores`: by scorer of the plan,
    in the order of `fresh`; None: nothing was scored. `late`: the rows that come last, None: none. `columns`: how many
    these are at most. `chosen`: empty if the profile refused.
    """

    # class defaults: every pick makes such an object, and few of its attributes differ from these
    steps: Steps = ()
    rows: Indices | None = None
    late: Indices | None = None
    fresh: Indices | None = None
    published: KeptScores | None = None
    scores: KeptScores = ()
    chosen: tuple[Endpoint, ...] = ()

    def __init__(self, name: str, plan: ProfilePlan) -> None:
        self.name = name
        self.plan = plan
        self.columns = plan.most_columns

    def begin_filters(self, pool: EndpointPool, late: Any, *, skips_late: bool) -> None:
        """`late`: mask of `pool`, which the filters do not see."""
        self.steps = ()
        if skips_late:
            rows = np.flatnonzero(~late)
            left = rows if pool.selected_from is None else pool.selected_from[1][rows]
            self.steps = (("late", left),)

    def filtered(self, at: int, pool: EndpointPool) -> None:
        """What the filter with that number in the plan has left."""
        self.steps = (*self.steps, (self.plan.filters[at], rows_of_all(pool)))

    def scored(
        self, pool: EndpointPool, late: Any, fresh: Indices | None, published: KeptScores, scores: Any
    ) -> None:
        if pool.selected_from is not None:
            self.rows = rows_of_all(pool)
        if late is not None:
            late_rows = np.flatnonzero(late)
            self.late = late_rows if self.rows is None else self.rows[late_rows]
            self.columns += 1
        if fresh is not None:
            self.fresh = fresh
            self.columns += 1
        self.published = published
        if scores:
            self.scores = kept_scores(scores, pool.endpoints if fresh is None else fresh)


def rows_of_all(pool: EndpointPool) -> Indices | None:
    """Where the endpoints of a pool are among all endpoints; None: they are all of them, in their order."""
    return None if pool.selected_from is None else pool.selected_from[1]


def kept_scores(weighted_scores: Sequence[tuple[float, Any]], scored: Sized) -> KeptScores:
    """Copies, so that a plugin may use its column again; `scored`: the endpoints that have a score."""
    kept: list[Any] = []
    for _, score in weighted_scores:
        if not isinstance(score, dict) or len(score) <= FEW:
            kept.append(score.copy())
        else:
            column = np.zeros(len(scored))
            column[list(score)] = list(score.values())
            kept.append(column)
    return kept


class Decision:
    """One request: what it was, what the picker knew, where it went and what became of it.

    Times in seconds of the picker's clock, NOT_YET: that has not happened. `at`: the picker had the request. `picked_at`: it
    was scheduled or refused. `waited`: in the queue of flow control. `endpoints`: all of them at `picked_at`, candidates or
    not; `numbers`: their first KEPT_ROWS columns, before this request was counted.
    `steps`: as those of a `ProfileRun`, before all profiles. `status`, `responded_at`: of the response headers. `served_by`:
    the destination that the data plane names. `ended_by`: why the stream ended. `explained`: there is no such request;
    `would_wait`: it would not go at once.

    `request` and `pool` are only there until it has its pick.
    """

    # class defaults: every request makes such an object, and few of its attributes differ from these
    sequence = 0
    size = 0
    """In bytes of memory; this and `sequence` are set by who keeps it."""
    picked_at = NOT_YET
    responded_at = NOT_YET
    ended_at = NOT_YET
    waited = 0.0
    queued = False
    explained = False
    would_wait = False
    request_id = ""
    path = ""
    model = ""
    fairness_id = ""
    prompt_bytes = 0
    body_bytes = 0
    streaming = False
    priority = 0
    profile = ""
    primary = ""
    attempts = 0
    status = 0
    served_by = ""
    ended_by = ""
    refused_status = 0
    refused_code = ""
    refused_message = ""
    asked_model: str | None = None
    objective: str | None = None
    refused_reason: str | None = None
    request: InferenceRequest | None = None
    pool: EndpointPool | None = None
    endpoints: tuple[Endpoint, ...] = ()
    numbers: Any = None
    steps: Steps = ()
    runs: tuple[ProfileRun, ...] = ()
    chosen: tuple[Endpoint, ...] = ()
    helpers: Mapping[str, tuple[Endpoint, ...]] | None = None

    def __init__(self, at: float) -> None:
        self.at = at

    @property
    def prompt_tokens(self) -> int:
        return tokens_in(self.prompt_bytes)

    def of_headers(self, headers: Mapping[str, str]) -> None:
        """Note a request that was not parsed."""
        self.request_id = headers.get("x-request-id", "")[:MOST_TEXT]
        self.path = request_path(headers)[:MOST_TEXT]

    def _take_request(self) -> None:
        """Keep what is shown of the request, and nothing that refers to its body or its headers."""
        request, self.request = self.request, None
        if request is None:
            return
        self.request_id = request.request_id[_KEPT_TEXT]
        self.path = request.path[_KEPT_TEXT]
        self.model = request.model[_KEPT_TEXT]
        self.fairness_id = request.fairness_id[_KEPT_TEXT]
        if request.rewritten_from is not None:
            self.asked_model = request.rewritten_from[_KEPT_TEXT]
        if request.objective is not None:
            self.objective = request.objective[_KEPT_TEXT]
        if request.priority:
            self.priority = request.priority
        if request.streaming:
            self.streaming = True
        self.prompt_bytes = request.prompt_size
        self.body_bytes = request.body_size

    def narrowed(self, why: str, rows: Indices | None) -> None:
        self.steps = (*self.steps, (why, rows))

    def waits(self) -> None:
        """Its candidates are found again when it goes; till then it keeps none of them alive."""
        self.queued = True
        self.pool, self.steps = None, ()

    def run(self, plan: ProfilePlan) -> ProfileRun:
        """A profile begins; its name was set as `profile`."""
        made = ProfileRun(self.profile, plan)
        self.runs += (made,)
        return made

    def picked(
        self, chosen: tuple[Endpoint, ...], helpers: Mapping[str, tuple[Endpoint, ...]], primary: str
    ) -> None:
        """It was scheduled, and does not count anywhere yet."""
        self._take_request()
        self._take_numbers()
        self.chosen = chosen
        if helpers:
            self.helpers = helpers
        self.primary = primary or self.profile

    def _take_numbers(self) -> None:
        """Keep the numbers as they are now."""
        pool = self.pool
        if pool is not None:
            self.pool = None
            self.picked_at = pool.now
            self.endpoints = pool.endpoints
            self.numbers = pool.numbers[:KEPT_ROWS].copy()

    def served(self, destination: str) -> None:
        chosen = self.chosen[0].destination
        self.served_by = chosen if destination == chosen else destination[:MOST_TEXT]

    def refused(self, why: Exception, now: float) -> None:
        """A `Rejection`, or the fault of a plugin, of which only the type is kept: its text may quote the request.

        A plugin may fail when it is told of its pick: then nothing was chosen.
        """
        self._take_request()
        self._take_numbers()
        self.picked_at = self.ended_at = now
        self.chosen, self.helpers, self.primary = (), None, ""
        self._refused(why)

    def _refused(self, why: Exception) -> None:
        if isinstance(why, Rejection):
            self.refused_status = why.status
            self.refused_code = why.code
            self.refused_message = why.message[: 2 * MOST_TEXT]
            self.refused_reason = why.reason
        else:
            self.refused_code = type(why).__name__
            self.refused_message = "a plugin failed"

    def waits_for_endpoints(self, now: float) -> None:
        """An explained request that no endpoint is there for."""
        self._take_request()
        self.would_wait = True
        self.picked_at = now

    def abandoned(self, now: float) -> None:
        """Its client left while it waited."""
        self._take_request()
        self._take_numbers()
        self.picked_at = self.ended_at = now
        self.ended_by = "the client left while the request waited"

    def responded(self, status: int, now: float) -> None:
        self.status = status
        self.responded_at = now

    def evicted(self, why: Rejection) -> None:
        """It was taken back from its worker."""
        self._refused(why)

    def ended(self, cause: str, now: float) -> None:
        self.ended_at = now
        self.ended_by = cause


class DecisionLog(Protocol):
    """Keeps the last decisions."""

    def add(self, decision: Decision) -> None:
        """The request has its pick, or was refused; what becomes of it is noted in `decision` later."""
