"""The one record of a pick: what was known when a request was scheduled, and what became of it. Pure.

Metrics, the spans of a trace, the last decisions and explanations are all read from it (`epp.decisions.recorder`). Most
picks are noted in short: they keep who was chosen, and pay for nothing else. The others are noted whole: with all
candidates, what each plugin said of them, and how long it took. No record refers to a request's body or headers.
"""

from collections.abc import Callable, Mapping, Sequence, Sized
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np

from adsum.tracing.span import Span
from epp.endpoints.endpoint import Column, Endpoint, EndpointPool, Indices, Key, Mask
from epp.request.control_headers import MOST_TEXT, REQUEST_ID
from epp.request.inference_request import InferenceRequest, request_path, tokens_in
from epp.request.rejection import Rejection

T = TypeVar("T")
_KEPT_TEXT: Final = slice(MOST_TEXT)
NOT_YET: Final = -1.0
KEPT_ROWS: Final = int(Column.SCRAPED_AT) + 1
"""The rows of a pool's matrix that are kept as numbers: the first ones."""

FEW: Final = 8
"""Scores that are kept by row; more are kept as a column."""

KeptScores: TypeAlias = Sequence[Any]
"""The scores of each scorer: a column, or by row those that are not 0, FEW at most."""
Steps: TypeAlias = Sequence[tuple[str, Indices | None]]
"""The steps that left endpoints out, and the rows that each left; None: all."""
PluginLabels: TypeAlias = tuple[str, str, str]
"""Extension point, type and name."""


class PluginCall:
    """One call of a plugin; times of the recorder's clock."""

    __slots__ = ("began", "ended", "labels")

    def __init__(self, labels: PluginLabels, began: float, ended: float) -> None:
        self.labels = labels
        self.began = began
        self.ended = ended


class ProfilePlan:
    """Describes a profile in words. `scorers`: with their weights. The `published` ones are computed once for each state of
    the pool, `by_request` for each request; both are numbers of scorers.

    `takes_best`: the picker takes the highest sum of scores. `most_columns`: that a `ProfileRun` keeps if no endpoint is
    late or stale.
    """

    def __init__(
        self,
        filters: Sequence[PluginLabels],
        scorers: Sequence[tuple[PluginLabels, float]],
        picker: PluginLabels,
        *,
        published: Sequence[int],
        by_request: Sequence[int],
        takes_best: bool,
    ) -> None:
        self.filters = filters
        self.scorers = scorers
        self.picker = picker
        self.published = published
        self.by_request = by_request
        self.takes_best = takes_best
        steps = len(filters) + 1 if filters else 0  # the late ones are left out before filters
        self.most_columns = steps + len(scorers)

    @property
    def plugins(self) -> Sequence[PluginLabels]:
        return (*self.filters, *[labels for labels, _ in self.scorers], self.picker)


class ProfileRun:
    """One profile's part in a decision that is noted whole.

    `steps`: what left endpoints out, in order, with the rows that were left of all endpoints (None: all). `rows`: those that
    were scored. `fresh`: of these, those whose numbers were fresh, None: all. `published` and `scores`: by scorer of the plan,
    in the order of `fresh`; None: nothing was scored. `late`: the rows that come last, None: none. `columns`: how many
    these are at most. `chosen`: empty if the profile refused.

    `unlearnt`: by labels of a scorer, its scores without what was learnt, in the same order; empty: nothing learnt was used.

    `given`: how many candidates it had. `calls` of plugins are forgotten once they were read. `scored_from`: when the
    filters were done. `picked_from`: when all was scored.
    """

    steps: Steps = ()
    rows: Indices | None = None
    late: Indices | None = None
    fresh: Indices | None = None
    published: KeptScores | None = None
    scores: KeptScores = ()
    unlearnt: Mapping[PluginLabels, Any] = MappingProxyType({})
    chosen: tuple[Endpoint, ...] = ()
    calls: Sequence[PluginCall] = ()
    scored_from = NOT_YET
    picked_from = NOT_YET
    ended = NOT_YET

    def __init__(self, name: str, plan: ProfilePlan, given: int, clock: Callable[[], float] | None) -> None:
        self.name = name
        self.plan = plan
        self.columns = plan.most_columns
        self.given = given
        self._clock = clock
        self.began = self.time()

    def time(self) -> float:
        return NOT_YET if self._clock is None else self._clock()

    def call(self, labels: PluginLabels, plugin: Callable[..., T], *arguments: Any) -> T:
        """Call a plugin, and note how long it took."""
        began = self.time()
        result = plugin(*arguments)
        self.calls = (*self.calls, PluginCall(labels, began, self.time()))
        return result

    def begin_filters(self, pool: EndpointPool, late: Mask | None) -> None:
        """`late`: mask of `pool`, which the filters do not see; None: they see all of it."""
        self.steps = ()
        if late is not None:
            self.steps = (("late", _rows_in_all(np.flatnonzero(~late), pool)),)

    def filtered(self, at: int, pool: EndpointPool) -> None:
        """Note the endpoints that the filter with that number in the plan has left."""
        self.steps = (*self.steps, (self.plan.filters[at][2], rows_of_all(pool)))

    def paired(self, pool: EndpointPool) -> None:
        """Note the endpoints that are left beside that of another profile."""
        self.columns += 1
        self.steps = (*self.steps, ("revision", rows_of_all(pool)))

    def scored_unlearnt(self, labels: PluginLabels, scores: Any) -> None:
        """None: nothing that was learnt was used."""
        if scores is not None:
            self.unlearnt = {**self.unlearnt, labels: scores}
            self.columns += 1

    def begin_scores(self) -> None:
        self.scored_from = self.time()

    def scored(
        self, pool: EndpointPool, late: Mask | None, fresh: Indices | None, published: KeptScores, scores: Any
    ) -> None:
        self.picked_from = self.time()
        self.rows = rows_of_all(pool)
        if late is not None:
            self.late = _rows_in_all(np.flatnonzero(late), pool)
            self.columns += 1
        if fresh is not None:
            self.fresh = fresh
            self.columns += 1
        self.published = published
        if scores:
            self.scores = kept_scores(scores, pool.endpoints if fresh is None else fresh)

    def end(self, chosen: tuple[Endpoint, ...]) -> None:
        self.chosen = chosen
        self.ended = self.time()
        self.calls = (*self.calls, PluginCall(self.plan.picker, self.picked_from, self.ended))


def rows_of_all(pool: EndpointPool) -> Indices | None:
    """Where the endpoints of a pool are among all endpoints; None: they are all of them, in their order."""
    return None if pool.selected_from is None else pool.selected_from[1]


def _rows_in_all(rows: Indices, pool: EndpointPool) -> Indices:
    return rows if pool.selected_from is None else pool.selected_from[1][rows]


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


class CacheEvidence(NamedTuple):
    """The source of what is known of an endpoint's cache, `events` or `estimate`; how far its events are believed, 0 to 1; how
    often they were compared with what it delivered.
    """

    by: str
    confidence: float
    checks: int


class Decision:
    """One request: what it was, what the picker knew, where it went and what became of it.

    Times in seconds of the picker's clock, NOT_YET: that has not happened. `at`: the picker had the request. `picked_at`: it
    was scheduled or refused. `waited`: in the queue of flow control. `endpoints`: all of them at `picked_at`, candidates or
    not. `status`, `responded_at`: of the response headers. `expected`: seconds from the pick to the first byte of a streamed
    answer, negative: not known; `first_byte_at`: it came. `served_by`: the destination that the data plane names. `ended_by`:
    why the stream ended. `explained`: there is no such request; `would_wait`: it would not go at once.

    Only what is noted whole, and every refusal, has `numbers`, the first KEPT_ROWS columns of `endpoints` before this request
    was counted, and `steps`, as those of a `ProfileRun`, before all profiles. `runs` and `calls`, of data producers, are of
    what is noted whole; `clock` measures its plugins, and `span` is the part of a trace in which it is scheduled.

    `stages`: as of a `Pick`. `request` and `pool` are only there until it has its pick.
    """

    # class defaults: every request makes such an object, and few of its attributes differ from these
    sequence = 0
    size = 0
    """In bytes of memory; this and `sequence` are set by who keeps it."""
    picked_at = NOT_YET
    responded_at = NOT_YET
    first_byte_at = NOT_YET
    ended_at = NOT_YET
    waited = 0.0
    expected = NOT_YET
    whole = False
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
    stages = ""
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
    calls: Sequence[PluginCall] = ()
    clock: Callable[[], float] | None = None
    span: Span | None = None
    learnt: Mapping[str, Any] | None = None
    """The knowledge of the data producer; only of an explained request."""
    caches: Mapping[Key, CacheEvidence] | None = None
    """By whose word the data producer goes, by endpoint that publishes events; only of an explained request."""
    chosen: tuple[Endpoint, ...] = ()
    helpers: Mapping[str, tuple[Endpoint, ...]] | None = None

    def __init__(self, at: float) -> None:
        self.at = at

    @property
    def prompt_tokens(self) -> int:
        return tokens_in(self.prompt_bytes)

    def of_headers(self, headers: Mapping[str, str]) -> None:
        """Note a request that was not parsed."""
        self.request_id = headers.get(REQUEST_ID, "")[:MOST_TEXT]
        self.path = request_path(headers)[:MOST_TEXT]

    def take_request(self) -> None:
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

    def found(self, pool: EndpointPool) -> None:
        """All endpoints, before anything leaves some of them out."""
        self.pool, self.steps = pool, ()

    def narrowed(self, why: str, rows: Any) -> None:
        """`rows`: those that were left, or a mask of them, or None: all."""
        self.steps = (*self.steps, (why, rows))

    def waits(self) -> None:
        """Its candidates are found again when it goes; till then it keeps none of them alive."""
        self.queued = True
        self.pool, self.steps = None, ()

    def run(self, plan: ProfilePlan, candidates: int) -> ProfileRun:
        """A profile begins; its name was set as `profile`."""
        made = ProfileRun(self.profile, plan, candidates, self.clock)
        self.runs += (made,)
        return made

    def call(self, labels: PluginLabels, plugin: Callable[..., None], *arguments: Any) -> None:
        """Call a data producer, and note how long it took."""
        began = NOT_YET if self.clock is None else self.clock()
        plugin(*arguments)
        ended = NOT_YET if self.clock is None else self.clock()
        self.calls = (*self.calls, PluginCall(labels, began, ended))

    def forget_calls(self) -> None:
        """Metrics and spans were read from it; what is left is what an operator may ask for."""
        self.calls, self.clock, self.span = (), None, None
        for run in self.runs:
            run.calls = ()

    def picked(
        self,
        chosen: tuple[Endpoint, ...],
        helpers: Mapping[str, tuple[Endpoint, ...]],
        primary: str,
        stages: str = "",
    ) -> None:
        """It was scheduled, and does not count anywhere yet."""
        self.take_request()
        if self.whole:
            self._take_numbers()
        elif self.pool is not None:
            self.picked_at, self.endpoints = self.pool.now, self.pool.endpoints
            self.pool, self.steps = None, ()
        self.chosen = chosen
        if helpers:
            self.helpers = helpers
        self.primary = primary or self.profile
        if stages:
            self.stages = stages

    def _take_numbers(self) -> None:
        """Keep the numbers as they are now."""
        pool = self.pool
        if pool is not None:
            self.pool = None
            self.picked_at = pool.now
            self.endpoints = pool.endpoints
            self.numbers = pool.numbers[:KEPT_ROWS].copy()
            self.steps = tuple([(why, _as_rows(rows)) for why, rows in self.steps])

    def refused(self, why: Exception, now: float) -> None:
        """A `Rejection`, or the fault of a plugin, of which only the type is kept: its text may quote the request.

        A plugin may fail when its pick is reported to it: then nothing was chosen.
        """
        self.take_request()
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
        self.take_request()
        self.would_wait = True
        self.picked_at = now

    def abandoned(self, now: float) -> None:
        """Its client left while it waited."""
        self.take_request()
        self._take_numbers()
        self.picked_at = self.ended_at = now
        self.ended_by = "the client left while the request waited"

    def evicted(self, why: Rejection) -> None:
        """It was taken back from its worker."""
        self._refused(why)


def _as_rows(rows: Any) -> Indices | None:
    found: Indices | None = np.flatnonzero(rows) if rows is not None and rows.dtype == np.bool_ else rows
    return found
