"""Runs one scheduling profile: filters, then the weighted sum of the scores, then the picker."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

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
from epp.scheduling.decision import PluginLabels, ProfilePlan, ProfileRun
from epp.scheduling.pairing import of_one_revision
from epp.scheduling.pick import SchedulingContext
from epp.scheduling.plugin import BestPicker, DataProducer, Filter, InFlightReader, Picker
from epp.scheduling.published_only import is_published_only


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerProfile:
    """Chooses up to `max_endpoints` endpoints for a request: the choice and its fallbacks.

    `producers`: the data producers that its scorers read; the scheduler lets them prepare each request.
    `staleness`: seconds; an endpoint with older numbers, or none, ranks behind all with fresh numbers. None: the scorers
    read no metrics. Whatever it is, an endpoint whose page is late (`EndpointPool.late`) comes after all others: it may be
    stopped. `reports_scores`: sets `SchedulingContext.scores`. `names`: type and name of each filter, then of each
    scorer, then of the picker, where a configuration names them.
    """

    picker: Picker
    producers: Sequence[DataProducer] = ()
    filters: Sequence[Filter] = ()
    scorers: Sequence[WeightedScorer] = ()
    max_endpoints: int = 1
    staleness: float | None = None
    reports_scores: bool = False
    names: Sequence[tuple[str, str]] = ()
    _score_cache: ScoreCache = field(init=False, repr=False, compare=False)
    _request_scorers: Sequence[WeightedScorer] = field(init=False, repr=False, compare=False)
    _in_flight_scorers: Sequence[WeightedScorer] = field(init=False, repr=False, compare=False)
    _best_picker: BestPicker | None = field(init=False, repr=False, compare=False)
    _best_endpoint: BestEndpoint | None = field(init=False, repr=False, compare=False)
    plan: ProfilePlan = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        labels = self._labels()
        count = len(self.filters)
        named = [replace(one, labels=labels[count + at]) for at, one in enumerate(self.scorers)]
        published = [at for at, one in enumerate(named) if is_published_only(one.scorer)]
        object.__setattr__(self, "_score_cache", ScoreCache([named[at] for at in published], self.staleness))
        in_flight = [at for at, one in enumerate(named) if isinstance(one.scorer, InFlightReader)]
        by_request = [at for at in range(len(named)) if at not in published and at not in in_flight]
        object.__setattr__(self, "_request_scorers", [named[at] for at in by_request])
        object.__setattr__(self, "_in_flight_scorers", [named[at] for at in in_flight])
        best_picker = self.picker if isinstance(self.picker, BestPicker) else None
        object.__setattr__(self, "_best_picker", best_picker)
        object.__setattr__(self, "_best_endpoint", self._make_best_endpoint())
        plan = ProfilePlan(
            labels[:count],
            [(one.labels, one.weight) for one in named],
            labels[-1],
            published=published,
            by_request=[*by_request, *in_flight],
            takes_best=best_picker is not None,
        )
        object.__setattr__(self, "plan", plan)

    def run(self, context: SchedulingContext, pool: EndpointPool) -> tuple[Endpoint, ...]:
        """The choice first, then the fallbacks; raises `Rejection` if the filters leave no endpoint."""
        decision = context.decision
        if decision is None or not decision.whole:
            return self._run(context, pool, None)
        notes = decision.run(self.plan, len(pool))
        chosen = self._run(context, pool, notes)
        notes.end(chosen)
        return chosen

    def _run(
        self, context: SchedulingContext, pool: EndpointPool, notes: ProfileRun | None
    ) -> tuple[Endpoint, ...]:
        request = context.request
        late = pool.late()
        if self.filters or request.peer is not None:
            pool, late = self._filter(context, pool, late, notes), None
        if notes is not None:
            notes.begin_scores()
        cached = self._score_cache.get(request, pool, notes)
        if cached.rows is not None:  # some numbers are stale: rank those endpoints last
            return self._pick(context, pool, self._rank_with_stale(request, pool, cached, late, notes), late)
        weighted_scores = run_scorers(self._request_scorers, request, pool, notes)
        if (
            notes is None
            and self._best_endpoint is not None
            and (row := self._best_endpoint.find(cached, weighted_scores, pool, late)) is not None
        ):
            return (pool.endpoints[row],)
        weighted_scores = [*weighted_scores, *run_scorers(self._in_flight_scorers, request, pool, notes)]
        if notes is not None:
            notes.scored(pool, late, None, cached.kept(), weighted_scores)
        return self._pick(context, pool, add_scores(cached.scores.copy(), weighted_scores), late)

    def _filter(
        self, context: SchedulingContext, pool: EndpointPool, late: Mask | None, notes: ProfileRun | None
    ) -> EndpointPool:
        """The endpoints that the filters leave of those that are not late; if there are none, of all."""
        request = context.request
        if notes is not None:
            notes.begin_filters(pool, late)
        kept = self._run_filters(request, pool if late is None else pool.select(~late), notes)
        if late is not None and not kept:
            if notes is not None:
                notes.begin_filters(pool, None)
            kept = self._run_filters(request, pool, notes)
        if not kept:
            raise no_endpoints("the filters of the scheduling profile leave no endpoint for this request")
        if request.peer is not None:
            paired = of_one_revision(request.peer, kept)
            if notes is not None and paired is not kept:
                notes.paired(paired)
            return paired
        return kept

    def _run_filters(
        self, request: InferenceRequest, pool: EndpointPool, notes: ProfileRun | None
    ) -> EndpointPool:
        for at, one in enumerate(self.filters):
            if not pool:
                break
            if notes is None:
                pool = pool.select(one.filter(request, pool))
            else:
                pool = pool.select(notes.call(self.plan.filters[at], one.filter, request, pool))
                notes.filtered(at, pool)
        return pool

    def _labels(self) -> list[PluginLabels]:
        """The labels of the filters, then the scorers, then the picker."""
        plugins = (*self.filters, *[weighted.scorer for weighted in self.scorers], self.picker)
        named = list(self.names)
        if len(named) != len(plugins):  # nobody named them, or `replace` took others
            named = [(type(one).__name__, type(one).__name__) for one in plugins]
        points = [*["Filter"] * len(self.filters), *["Scorer"] * len(self.scorers), "Picker"]
        return [(point, kind, name) for point, (kind, name) in zip(points, named, strict=True)]

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
        weighted_scores: WeightedScores = ()
        if cached.rows is not None and len(cached.rows):
            fresh = cached.current(pool)
            weighted_scores = [
                *run_scorers(self._request_scorers, request, fresh, notes),
                *run_scorers(self._in_flight_scorers, request, fresh, notes),
            ]
            known = add_scores(cached.scores.copy(), weighted_scores)
            scores += min(known.min(), 0.0) - 2.0  # stale scores are at most 1, so all end below `known`
            scores[cached.rows] = known
        if notes is not None:
            notes.scored(pool, late, cached.rows, cached.kept(), weighted_scores)
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
            if self._best_picker is not None:  # the common case: a list costs less than an array
                best = self._best_picker.highest(scores, self.max_endpoints)
                return _distinct([pool.endpoints[row] for row in best])
            return _distinct([pool.endpoints[row] for row in self.picker.pick(scores, self.max_endpoints)])
        chosen: list[Endpoint] = []
        for rows in np.flatnonzero(~late), np.flatnonzero(late):
            wanted = self.max_endpoints - len(chosen)
            if wanted:
                chosen += [pool.endpoints[rows[i]] for i in self.picker.pick(scores[rows], wanted)]
        return _distinct(chosen)


def _distinct(chosen: list[Endpoint]) -> tuple[Endpoint, ...]:
    """Each address once: of two endpoints at one address a process has ended, so neither is a fallback for the other."""
    if len(chosen) > 1 and len({endpoint.destination for endpoint in chosen}) < len(chosen):
        by_address: dict[str, Endpoint] = {}
        for endpoint in chosen:
            by_address.setdefault(endpoint.destination, endpoint)
        return tuple(by_address.values())
    return tuple(chosen)
