"""Records the steps of a pick whose trace is recorded, under the Go picker's names of spans and attributes. Pure.

Other picks run as if nothing was recorded. A recorded one takes longer: it scores all endpoints, with every scorer.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from adsum.tracing.span import Span
from epp.endpoints.endpoint import EndpointPool, Floats, Indices, Mask
from epp.request.inference_request import InferenceRequest
from epp.scheduling.cached_scores import WeightedScorer
from epp.scheduling.context import SchedulingContext
from epp.scheduling.pick import Pick
from epp.scheduling.plugin import Filter, Picker, Scorer, Scores
from epp.scheduling.profile import SchedulerProfile
from epp.scheduling.scheduler import Scheduler

MAX_ENDPOINTS: Final = 5
"""The best endpoints whose scores are recorded, as in the Go picker."""
_FILTERING: Final = "filter_endpoints"
_SCORING: Final = "llm_d.epp.scoring"
_PICKING: Final = "pick_endpoints"


class PickSpans:
    """The open spans of the pick that runs now. A pick is one synchronous call, so there is only one."""

    def __init__(self) -> None:
        self._context: SchedulingContext | None = None
        self._profile: Span | None = None
        self._profile_name: str | None = None
        self._step: Span | None = None
        self._step_name = ""

    def begin(self, context: SchedulingContext) -> None:
        self._context = context

    def step(self, profile: "TracedProfile", name: str, candidates: int) -> Span | None:
        """The span of this step, which begins now if it did not before; ends the step before it."""
        context = self._context
        if context is None or context.span is None:
            return None
        request = context.request
        if self._profile is None or self._profile_name != profile.name:
            self._end_profile()
            self._profile_name = profile.name
            self._profile = context.span.child("run_scheduler_profile")
            self._profile.set("llm_d.epp.scheduling.profile.name", profile.name)
            if name != _FILTERING:  # no filters: all candidates stay
                self._begin(self._profile, _FILTERING, candidates, profile, request)
                self.filtered(candidates)
        if self._step is None or self._step_name != name:
            return self._begin(self._profile, name, candidates, profile, request)
        return self._step

    def filtered(self, left: int) -> None:
        if self._step is not None:
            self._step.set("llm_d.epp.filter.filtered_endpoints", left)

    def scores(self) -> Mapping[str, float]:
        """Of the candidates of this profile, by destination."""
        context = self._context
        return {} if context is None or context.scores is None else context.scores

    def end(self) -> None:
        self._end_profile()
        self._context = None

    def _begin(
        self, parent: Span, name: str, candidates: int, profile: "TracedProfile", request: InferenceRequest
    ) -> Span:
        if self._step is not None:
            self._step.end()
        self._step, self._step_name = parent.child(name), name
        self._step.set(_CANDIDATES[name], candidates)
        if name == _SCORING:
            self._step.set("llm_d.epp.scorer.count", profile.scorers)
        self._step.set("gen_ai.request.id", request.request_id)
        if request.model:
            self._step.set("gen_ai.request.model", request.model)
        return self._step

    def _end_profile(self) -> None:
        for span in (self._step, self._profile):
            if span is not None:
                span.end()
        self._step = self._profile = self._profile_name = None


_CANDIDATES: Final = {
    _FILTERING: "llm_d.epp.filter.candidate_endpoints",
    _SCORING: "llm_d.epp.scoring.candidate_endpoints",
    _PICKING: "llm_d.epp.picker.candidate_endpoints",
}


class TracedProfile:
    """The name of a profile, and how many scorers it has."""

    def __init__(self, name: str, scorers: int) -> None:
        self.name = name
        self.scorers = scorers


def trace_plugins(scheduler: Scheduler) -> None:
    """Let the scheduler record the picks of requests with a span."""
    spans = PickSpans()
    profiles = {name: _traced(name, profile, spans) for name, profile in scheduler.profiles.items()}
    reports = any(profile.reports_scores for profile in scheduler.profiles.values())
    twin = Scheduler(profiles, scheduler.handler, scheduler.producers)

    def schedule(context: SchedulingContext, pool: EndpointPool) -> Pick:
        spans.begin(context)
        try:
            pick = twin.schedule(context, pool)
        finally:
            spans.end()
        if not reports:  # they were wanted for the span only
            pick.scores = None
        return pick

    scheduler.trace(schedule)


def _traced(name: str, profile: SchedulerProfile, spans: PickSpans) -> SchedulerProfile:
    traced = TracedProfile(name, len(profile.scorers))
    plugins = list(profile.names) or [(type(one.scorer).__name__, "") for one in profile.scorers]
    named = plugins[len(profile.filters) :] if profile.names else plugins
    filters = [TracedFilter(one, traced, spans) for one in profile.filters]
    scorers = [
        WeightedScorer(TracedScorer(one, kind, called, traced, spans), one.weight)
        for one, (kind, called) in zip(profile.scorers, named, strict=False)
    ]
    picker = TracedPicker(profile.picker, traced, spans)
    return replace(
        profile,
        filters=filters,
        scorers=scorers,
        picker=picker,
        producers=(),
        reports_scores=True,
        takes_best=profile.is_best_taken,
    )


class TracedFilter:
    def __init__(self, traced: Filter, profile: TracedProfile, spans: PickSpans) -> None:
        self._filter = traced.filter
        self._profile = profile
        self._spans = spans

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        self._spans.step(self._profile, _FILTERING, len(pool))
        mask = self._filter(request, pool)
        self._spans.filtered(int(np.count_nonzero(mask)))
        return mask


class TracedScorer:
    """It runs in each recorded pick, also where others use cached scores."""

    published_only = False

    def __init__(
        self, weighted: WeightedScorer, kind: str, name: str, profile: TracedProfile, spans: PickSpans
    ) -> None:
        self._scorer: Scorer = weighted.scorer
        self._weight = weighted.weight
        self._kind = kind
        self._name = name or kind
        self._profile = profile
        self._spans = spans

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Scores:
        scoring = self._spans.step(self._profile, _SCORING, len(pool))
        if scoring is None:
            return self._scorer.score(request, pool)
        span = scoring.child(f"llm_d.epp.scorer.{self._kind}")
        span.set("llm_d.epp.scorer.type", self._kind)
        span.set("llm_d.epp.scorer.name", self._name)
        span.set("llm_d.epp.scorer.weight", self._weight)
        span.set("llm_d.epp.scorer.candidate_endpoints", len(pool))
        try:
            scores = self._scorer.score(request, pool)
            _describe(span, scores, len(pool))
        finally:
            span.end()
        return scores


def _describe(span: Span, scores: Scores, count: int) -> None:
    """The greatest and the mean score; a scorer that names only some endpoints gives the others 0."""
    if not count:
        return
    if isinstance(scores, np.ndarray):
        # the methods of an array go through Python
        highest, mean = float(np.maximum.reduce(scores)), float(np.add.reduce(scores)) / count
    else:
        given = list(scores.values())
        highest, mean = max(given, default=0.0), sum(given) / count
        highest = highest if len(given) == count else max(highest, 0.0)
    span.set("llm_d.epp.scorer.score.max", highest)
    span.set("llm_d.epp.scorer.score.avg", mean)
    span.set("llm_d.epp.scorer.endpoints_scored", count)


class TracedPicker:
    def __init__(self, traced: Picker, profile: TracedProfile, spans: PickSpans) -> None:
        self._pick = traced.pick
        self._profile = profile
        self._spans = spans

    def pick(self, scores: Floats, k: int) -> Indices:
        span = self._spans.step(self._profile, _PICKING, len(scores))
        if span is not None:
            known = self._spans.scores()
            # heapq.nlargest is Python, and slower
            best = sorted(known, key=known.__getitem__, reverse=True)[:MAX_ENDPOINTS]
            span.set("llm_d.epp.picker.top_endpoints", best)
            span.set("llm_d.epp.picker.top_scores", [known[destination] for destination in best])
        return self._pick(scores, k)
