"""The steps of a pick whose trace is recorded, under the Go picker's names of spans and attributes, read from its record. Pure."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from adsum.tracing.span import Span
from epp.decisions.scored_candidates import ScoredCandidates, candidates
from epp.endpoints.endpoint import Column, Floats
from epp.scheduling.decision import NOT_YET, Decision, ProfileRun

MAX_ENDPOINTS: Final = 5
"""The best endpoints whose scores are recorded, as in the Go picker."""


class PickSpans:
    """`clock`: that of the recorder; `unix_ns`: Unix nanoseconds."""

    def __init__(self, clock: Callable[[], float], unix_ns: Callable[[], int]) -> None:
        self._clock = clock
        self._unix_ns = unix_ns

    def read(self, decision: Decision) -> None:
        if decision.span is not None:
            behind = self._unix_ns() - int(self._clock() * 1e9)
            for run in decision.runs:
                _RunSpans(decision, decision.span, run, behind).write()


class _RunSpans:
    """One profile. `behind`: nanoseconds that the recorder's clock is behind Unix time."""

    def __init__(self, decision: Decision, parent: Span, run: ProfileRun, behind: int) -> None:
        self._decision = decision
        self._parent = parent
        self._run = run
        self._behind = behind

    def write(self) -> None:
        """A profile that refused, or whose plugin failed, has the steps that were done."""
        run = self._run
        last = max([run.began, run.scored_from, run.picked_from, run.ended, *[c.ended for c in run.calls]])
        profile = self._child(self._parent, "run_scheduler_profile", run.began)
        profile.set("llm_d.epp.scheduling.profile.name", run.name)
        filters_ended = last if run.scored_from == NOT_YET else run.scored_from
        filtering = self._step(profile, "filter_endpoints", run.began)
        filtering.set("llm_d.epp.filter.candidate_endpoints", run.given)
        filtering.set("llm_d.epp.filter.filtered_endpoints", self._kept())
        self._end(filtering, filters_ended)
        if run.ended != NOT_YET:
            scored = candidates(self._decision, run)
            self._scoring(profile, scored)
            self._picking(profile, scored)
        self._end(profile, last)

    def _kept(self) -> int:
        steps = self._run.steps
        if not steps:
            return self._run.given
        rows = steps[-1][1]
        return len(self._decision.endpoints) if rows is None else len(rows)

    def _scoring(self, profile: Span, scored: ScoredCandidates) -> None:
        run = self._run
        fresh = scored.order[~scored.stale[scored.order]]
        if not len(fresh) or not run.plan.scorers:
            return
        scoring = self._step(profile, "llm_d.epp.scoring", run.scored_from)
        scoring.set("llm_d.epp.scoring.candidate_endpoints", len(fresh))
        scoring.set("llm_d.epp.scorer.count", len(run.plan.scorers))
        calls = {call.labels: call for call in run.calls}
        for (labels, weight), column in zip(run.plan.scorers, scored.scores, strict=True):
            call = calls.get(labels)  # None: its scores were cached
            _, kind, name = labels
            span = self._child(
                scoring, f"llm_d.epp.scorer.{kind}", run.scored_from if call is None else call.began
            )
            span.set("llm_d.epp.scorer.type", kind)
            span.set("llm_d.epp.scorer.name", name)
            span.set("llm_d.epp.scorer.weight", weight)
            span.set("llm_d.epp.scorer.candidate_endpoints", len(fresh))
            span.set("llm_d.epp.scorer.score.max", float(column[fresh].max()))
            span.set("llm_d.epp.scorer.score.avg", float(column[fresh].mean()))
            span.set("llm_d.epp.scorer.endpoints_scored", len(fresh))
            self._end(span, run.scored_from if call is None else call.ended)
        self._end(scoring, run.picked_from)

    def _picking(self, profile: Span, scored: ScoredCandidates) -> None:
        run, endpoints = self._run, self._decision.endpoints
        picking = self._step(profile, "pick_endpoints", run.picked_from)
        picking.set("llm_d.epp.picker.candidate_endpoints", len(scored.order))
        totals = _with_stale(scored, self._decision.numbers[Column.INFLIGHT])
        best: Sequence[int] = sorted(scored.order.tolist(), key=totals.__getitem__, reverse=True)[
            :MAX_ENDPOINTS
        ]
        picking.set("llm_d.epp.picker.top_endpoints", [endpoints[row].destination for row in best])
        picking.set("llm_d.epp.picker.top_scores", [float(totals[row]) for row in best])
        self._end(picking, run.ended)

    def _step(self, profile: Span, name: str, began: float) -> Span:
        span = self._child(profile, name, began)
        span.set("gen_ai.request.id", self._decision.request_id)
        if self._decision.model:
            span.set("gen_ai.request.model", self._decision.model)
        return span

    def _child(self, parent: Span, name: str, began: float) -> Span:
        return parent.child(name, began_ns=self._unix(began))

    def _end(self, span: Span, at: float) -> None:
        span.end(self._unix(at))

    def _unix(self, at: float) -> int:
        return int(at * 1e9) + self._behind


def _with_stale(scored: ScoredCandidates, in_flight: Floats) -> Floats:
    """The sums of the scores; below all of them, stale endpoints by their requests in flight, as the profile ranks them."""
    lowest = min(np.nanmin(scored.totals, initial=0.0), 0.0) - 2.0 if (~scored.stale).any() else 0.0
    ranked: Floats = np.where(scored.stale, 1.0 / (1.0 + in_flight) + lowest, scored.totals)
    return ranked
