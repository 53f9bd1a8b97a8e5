"""Runs one scheduling profile: filters, then the weighted sum of the scores, then the picker."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from epp.endpoints.endpoint import Endpoint, EndpointPool, Floats, Mask
from epp.request.inference_request import InferenceRequest
from epp.scheduling.best_endpoint import BestEndpoint
from epp.scheduling.cached_scores import (
    TIE_BREAK,
    CachedScores,
    ScoreCache,
    WeightedScorer,
    WeightedScores,
    add_scores,
    run_scorers,
)
from epp.scheduling.candidates import no_endpoints
from epp.scheduling.context import SchedulingContext
from epp.scheduling.decision import NamedScorer, ProfilePlan, ProfileRun
from epp.scheduling.plugin import BestPicker, DataProducer, Filter, InFlightReader, Picker
from epp.scheduling.published_only import is_published_only


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerProfile:
    """Chooses up to `max_endpoints` endpoints for a request: the choice and its fallbacks.

    `producers`: the data producers that its scorers read; the scheduler lets them prepare each request.
    `staleness`: seconds; an endpoint with older numbers, or none, ranks behind all with fresh numbers. None: the scorers
    read no metrics. Whatever it is, an endpoint whose page is late (`EndpointPool.late`) comes after all others: it may be
    stopped. `reports_scores`: sets `SchedulingContext.scores`. `names`: type and name of each filter, then of each
    scorer, then of the picker, where a configuration names them. `takes_best`: whether the picker takes the highest sum, for
    one that stands for another; None: as its type says.
    """

    picker: Picker
    producers: Sequence[DataProducer] = ()
    filters: Sequence[Filter] = ()
    scorers: Sequence[WeightedScorer] = ()
    max_endpoints: int = 1
    staleness: float | None = None
    reports_scores: bool = False
    names: Sequence[tuple[str, str]] = ()
    takes_best: bool | None = None
    _score_cache: ScoreCache = field(init=False, repr=False, compare=False)
    _request_scorers: Sequence[WeightedScorer] = field(init=False, repr=False, compare=False)
    _in_flight_scorers: Sequence[WeightedScorer] = field(init=False, repr=False, compare=False)
    _best_picker: BestPicker | None = field(init=False, repr=False, compare=False)
    _best_endpoint: BestEndpoint | None = field(init=False, repr=False, compare=False)
    _plan: ProfilePlan = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        published = [one for one in self.scorers if is_published_only(one.scorer)]
        object.__setattr__(self, "_score_cache", ScoreCache(published, self.staleness))
        in_flight = [one for one in self.scorers if isinstance(one.scorer, InFlightReader)]
        separate = [*published, *in_flight]
        object.__setattr__(self, "_request_scorers", [one for one in self.scorers if one not in separate])
        object.__setattr__(self, "_in_flight_scorers", in_flight)
        best_picker = self.picker if isinstance(self.picker, BestPicker) else None
        object.__setattr__(self, "_best_picker", best_picker)
        object.__setattr__(self, "_best_endpoint", self._make_best_endpoint())
        object.__setattr__(self, "_plan", self._make_plan())

    @property
    def is_best_taken(self) -> bool:
        return isinstance(self.picker, BestPicker) if self.takes_best is None else self.takes_best

    def run(self, context: SchedulingContext, pool: EndpointPool) -> tuple[Endpoint, ...]:
        """The choice first, then the fallbacks; raises `Rejection` if the filters leave no endpoint."""
        if context.decision is None:
            return self._run(context, pool, None)
        notes = context.decision.run(self._plan)
        notes.chosen = self._run(context, pool, notes)
        return notes.chosen

    def _run(
        self, context: SchedulingContext, pool: EndpointPool, notes: ProfileRun | None
    ) -> tuple[Endpoint, ...]:
        request = context.request
        late = pool.late()
        if self.filters:
            pool, late = self._filter(request, pool, late, notes), None
        cached = self._score_cache.get(request, pool)
        if cached.rows is not None:  # some numbers are stale: rank those endpoints last
            return self._pick(context, pool, self._rank_with_stale(request, pool, cached, late, notes), late)
        weighted_scores = run_scorers(self._request_scorers, request, pool)
        if notes is not None:
            notes.scored(pool, late, None, cached.kept(), weighted_scores)
        if (
            self._best_endpoint is not None
            and (row := self._best_endpoint.find(cached, weighted_scores, pool, late)) is not None
        ):
            return (pool.endpoints[row],)
        weighted_scores = [*weighted_scores, *run_scorers(self._in_flight_scorers, request, pool)]
        return self._pick(context, pool, add_scores(cached.scores.copy(), weighted_scores), late)

    def _filter(
        self, request: InferenceRequest, pool: EndpointPool, late: Mask | None, notes: ProfileRun | None
    ) -> EndpointPool:
        """What the filters leave of the endpoints that are not late; if that is nothing, of all of them."""
        if notes is not None:
            notes.begin_filters(pool, late, skips_late=late is not None)
        kept = self._run_filters(request, pool if late is None else pool.select(~late), notes)
        if late is not None and not kept:
            if notes is not None:
                notes.begin_filters(pool, late, skips_late=False)
            kept = self._run_filters(request, pool, notes)
        if not kept:
            raise no_endpoints("the filters of the scheduling profile leave no endpoint for this request")
        return kept

    def _run_filters(
        self, request: InferenceRequest, pool: EndpointPool, notes: ProfileRun | None
    ) -> EndpointPool:
        for at, one in enumerate(self.filters):
            if not pool:
                break
            pool = pool.select(one.filter(request, pool))
            if notes is not None:
                notes.filtered(at, pool)
        return pool

    def _make_plan(self) -> ProfilePlan:
        plugins = (*self.filters, *[weighted.scorer for weighted in self.scorers], self.picker)
        named = list(self.names)
        if len(named) != len(plugins):  # nobody named them, or `replace` took others
            named = [(type(one).__name__, type(one).__name__) for one in plugins]
        scorers = [
            NamedScorer(name, type_, one.weight)
            for (type_, name), one in zip(named[len(self.filters) : -1], self.scorers, strict=True)
        ]
        in_flight = [
            (at, one.scorer.requests)
            for at, one in enumerate(self.scorers)
            if isinstance(one.scorer, InFlightReader)
        ]
        return ProfilePlan(
            filters=tuple([name for _, name in named[: len(self.filters)]]),
            scorers=tuple(scorers),
            picker=named[-1][1],
            published=tuple([at for at, one in enumerate(self.scorers) if is_published_only(one.scorer)]),
            by_request=tuple([at for at, one in enumerate(self.scorers) if one in self._request_scorers]),
            in_flight=tuple(in_flight),
            takes_best=self.is_best_taken,
        )

    def _make_best_endpoint(self) -> BestEndpoint | None:
        """None unless only the best endpoint is needed and no scorer can lower a score."""
        only_best_needed = self.max_endpoints == 1 and not self.reports_scores
        never_lowers = all(one.weight >= 0 for one in [*self._request_scorers, *self._in_flight_scorers])
        if self._best_picker is None or not (only_best_needed and never_lowers):
            return None
        in_flight = [(one.weight, one.scorer) for one in self._in_flight_scorers]
        return BestEndpoint(
            self._best_picker, [(w, one) for w, one in in_flight if isinstance(one, InFlightReader)]
        )

    def _rank_with_stale(
        self,
        request: InferenceRequest,
        pool: EndpointPool,
        cached: CachedScores,
        late: Mask | None,
        notes: ProfileRun | None,
    ) -> Floats:
        """The scores of fresh endpoints as they are; below all of them, stale ones by their requests in flight."""
        scores: Floats = 1.0 / (1.0 + pool.inflight)
        by_request: WeightedScores = ()
        if cached.rows is not None and len(cached.rows):
            fresh = cached.current(pool)
            by_request = run_scorers(self._request_scorers, request, fresh)
            weighted_scores = [*by_request, *run_scorers(self._in_flight_scorers, request, fresh)]
            known = add_scores(cached.scores.copy(), weighted_scores)
            scores += min(known.min(), 0.0) - 2.0  # stale scores are at most 1, so all end below `known`
            scores[cached.rows] = known
        if notes is not None:
            notes.scored(pool, late, cached.rows, cached.kept(), by_request)
        return scores

    def _pick(
        self, context: SchedulingContext, pool: EndpointPool, scores: Floats, late: Mask | None
    ) -> tuple[Endpoint, ...]:
        if self.reports_scores:
            names = [endpoint.destination for endpoint in pool.endpoints]
            context.scores = dict(zip(names, scores.tolist(), strict=True))
        # between equal scores the endpoint with fewer requests in flight wins
        scores -= pool.inflight * TIE_BREAK
        if late is None:
            if self.max_endpoints == 1 and self._best_picker is not None:  # the common case
                return (pool.endpoints[self._best_picker.best(scores)],)
            return tuple([pool.endpoints[i] for i in self.picker.pick(scores, self.max_endpoints)])
        chosen: list[Endpoint] = []
        for rows in np.flatnonzero(~late), np.flatnonzero(late):
            wanted = self.max_endpoints - len(chosen)
            if wanted:
                chosen += [pool.endpoints[rows[i]] for i in self.picker.pick(scores[rows], wanted)]
        return tuple(chosen)
