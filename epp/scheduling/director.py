"""Turns a request into a pick: read it, find the endpoints that may serve it, admit, schedule, reserve."""

import contextlib
import random
from collections.abc import Callable, Mapping, Sequence

from adsum.tracing.span import Span
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint, EndpointPool
from epp.endpoints.models_page import MODELS_PATH, ModelsPage
from epp.request.inference_request import Body, request_path
from epp.request.rejection import OwnAnswer, Rejection
from epp.request.subset import Subset
from epp.scheduling.admission import Admissions, ShedWhenSaturated
from epp.scheduling.candidates import NO_ENDPOINTS, Candidates
from epp.scheduling.decision import NOT_YET, Decision
from epp.scheduling.pick import DecisionLog, DecisionTimings, Pick, SchedulingContext
from epp.scheduling.picks_in_flight import PicksInFlight
from epp.scheduling.plugin import (
    AdmissionController,
    AdmissionProvider,
    ArrivalFollower,
    DataProducer,
    DeliveryFollower,
    PredictingProducer,
)
from epp.scheduling.request_reader import Policy, RequestReader
from epp.scheduling.saturation import SaturationDetector
from epp.scheduling.scheduler import Scheduler
from epp.scheduling.waiting import WaitingRequest


class Director:
    """Decides where requests go. Each of its parts has one step: reading, candidates, admission, picks in flight.

    Deterministic: the same requests at the same times with the same `rng` and datastore go to the same endpoints.
    `admission`: decides when; None: at once, or refused at saturation. `waiting`: the requests that it holds. `decisions`:
    gets the notes of all requests, if there is one; `timings` how long each decision took, in seconds of `clock`. `picks`
    is told what becomes of each pick.
    """

    def __init__(
        self,
        datastore: Datastore,
        scheduler: Scheduler,
        detector: SaturationDetector,
        policy: Policy,
        rng: random.Random,
        admission: AdmissionController | None = None,
    ) -> None:
        self._datastore = datastore
        self._rng = rng
        self._reader = RequestReader(policy, rng)
        self.eligible = Candidates(datastore, self._reader)
        self.picks = PicksInFlight(datastore)
        self.decisions: DecisionLog | None = None
        self.timings: DecisionTimings | None = None
        self.clock: Callable[[], float] = float
        self._use(scheduler, detector, policy)
        self._sheds = admission is None
        self._admissions = Admissions(self, datastore, admission or self._admission(None))
        self.waiting = self._admissions.waiting

    def reconfigure(self, scheduler: Scheduler, detector: SaturationDetector, policy: Policy) -> None:
        """Pick by these from now on. Picks that were made end with the data producers that they were made with.

        An `admission` that was given stays. `scheduler.producers` that are new have learnt of what they follow.
        """
        self._use(scheduler, detector, policy)
        if self._sheds:
            self.use_admission(None)

    def _use(self, scheduler: Scheduler, detector: SaturationDetector, policy: Policy) -> None:
        self.picks.use(scheduler.producers)
        self.handler = scheduler.handler
        self._arrivals = [one for one in scheduler.producers if isinstance(one, ArrivalFollower)]
        self._schedule, self._rehearse = scheduler.schedule, scheduler.rehearse
        self._detector = detector
        self._reader.policy = policy
        self._models_page = ModelsPage(policy.models) if policy.models_endpoint else None

    def use_admission(self, admission: AdmissionController | None) -> None:
        """Let this one decide from now on, None: at once, or refused at saturation. Requests that wait for another one go."""
        self._sheds = admission is None
        self._admissions.use(self._admission(admission))

    def _admission(self, given: AdmissionController | None) -> AdmissionController:
        for one in self.producers:
            if isinstance(one, AdmissionProvider) and (
                given is None or getattr(one, "before_flow_control", False) is True
            ):
                return one.admission(given or self._shedding())
        return given or self._shedding()

    def _shedding(self) -> AdmissionController:
        return ShedWhenSaturated(self._detector)

    @property
    def producers(self) -> Sequence[DataProducer]:
        """The data producers that learn of the next picks."""
        return self.picks.producers

    def direct(
        self,
        headers: Mapping[str, str],
        body: Body | None,
        subset: Subset | None,
        now: float,
        span: Span | None = None,
    ) -> Pick | WaitingRequest | OwnAnswer:
        """Pick endpoints and reserve them, let the request wait, or answer it; `headers` with lower-case names.

        `body` None: there may be one, but the pick does not see it. Raises `Rejection`; any other exception is a fault of a
        plugin. If it raises, nothing is reserved. `span`: of the trace, if it is recorded.
        """
        if not body and self._models_page is not None and _asks_for_models(headers):
            page = self._models_page.render(self._allowed(subset))
            if page is not None:
                return OwnAnswer(page)
        started = self.clock()
        decision = None if self.decisions is None else self.decisions.begin(headers, now, span)
        context: SchedulingContext | None = None
        try:
            context = SchedulingContext(self._reader.read(headers, body), subset, span)
            if decision is not None:
                context.decision, decision.request = decision, context.request
            outcome = self._direct(context, now)
        except Exception as error:
            if self.decisions is not None:
                self._note_refusal(self.decisions, headers, context, error, now)
            raise
        if self.timings is not None:
            if isinstance(outcome, Pick):
                self.timings.scheduled(self.clock() - started)
            else:
                self.timings.enqueued(outcome.request, self.clock() - started)
        return outcome

    def _direct(self, context: SchedulingContext, now: float) -> Pick | WaitingRequest:
        request, subset = context.request, context.subset
        if context.span is not None:
            context.span.set("target_model", request.model)
            context.span.set("request_prio", request.priority)
        try:
            candidates = self.eligible.find(context, now)
        except Rejection:
            if not self._may_wait_for_endpoints(context):
                raise
            # a data plane that names the endpoints of its pool had none to name either, and its word stays as it was
            context.subset = subset if subset is not None and subset.members else None
            return self._wait(context, now)
        if self._admissions.admits(request, candidates, now):
            return self._pick(context, candidates)
        for follower in self._arrivals:
            follower.arrived(request, candidates)
        return self._wait(context, now)

    def _wait(self, context: SchedulingContext, now: float) -> WaitingRequest:
        if context.decision is None and self.decisions is not None:
            context.decision = self.decisions.note(now)
            if context.decision is not None:
                context.decision.request = context.request
        return self._admissions.wait(context, now)

    def _note_refusal(
        self,
        log: DecisionLog,
        headers: Mapping[str, str],
        context: SchedulingContext | None,
        error: Exception,
        now: float,
    ) -> None:
        """Say what left endpoints out, too: of a request that was not noted whole, that is found again."""
        decision = log.note(now) if context is None or context.decision is None else context.decision
        if decision is None:
            return
        if context is None:
            decision.of_headers(headers)
        elif context.decision is None:
            context.decision, decision.request = decision, context.request
            if isinstance(error, Rejection) and error.reason == NO_ENDPOINTS and log.looks_again(now):
                self._look_again(context, decision, now)
        decision.refused(error, now)
        log.add(decision)

    def _look_again(self, context: SchedulingContext, decision: Decision, now: float) -> None:
        """Note what each filter leaves out. It draws no chance from later picks, measures nothing, and its faults are nobody's."""
        chance = self._rng.getstate()
        with contextlib.suppress(Exception):
            candidates = self.eligible.find(context, now)
            decision.whole = True
            self._rehearse(context, candidates)
        self._rng.setstate(chance)
        decision.forget_calls()

    def _may_wait_for_endpoints(self, context: SchedulingContext) -> bool:
        self._reader.check_model(context.request)
        return self._admissions.waits_for_endpoints and not self._datastore.endpoints

    def explain(
        self, headers: Mapping[str, str], body: Body | None, subset: Subset | None, now: float
    ) -> Decision:
        """Decide about such a request as it would be done now. Nothing is reserved, credited, counted or queued.

        Plugins prepare and score it as any other request, and learn of no pick.
        """
        decision = Decision(now)
        decision.explained = decision.whole = True
        chance = self._rng.getstate()
        try:
            context = SchedulingContext(self._reader.read(headers, body, counted=False), subset)
            context.decision = decision
            decision.request = context.request
            self._explain(context, now, decision)
        except Exception as error:  # noqa: BLE001  # the decision about this request
            if decision.request is None:
                decision.of_headers(headers)
            decision.refused(error, now)
        finally:
            self._rng.setstate(chance)
        return decision

    def _explain(self, context: SchedulingContext, now: float, decision: Decision) -> None:
        admission = self._admissions.current
        try:
            candidates = self.eligible.find(context, now)
        except Rejection:
            if not self._may_wait_for_endpoints(context):
                raise
            admission.would_enqueue(context.request, now)
            decision.waits_for_endpoints(now)
            return
        decision.would_wait = not admission.would_admit(context.request, candidates, now)
        pick = self._rehearse(context, self.eligible.for_pick(candidates, decision))
        for producer in self.producers:
            # with helpers it is theirs that takes long, of which nothing is learnt
            if isinstance(producer, PredictingProducer) and context.request.streaming and not pick.helpers:
                decision.expected = producer.expected(context.request, candidates, pick.endpoints[0])
            if isinstance(producer, PredictingProducer):
                decision.learnt = producer.learnt()
            if isinstance(producer, DeliveryFollower):
                words = {one.key: producer.says(one) for one in candidates.endpoints}
                decision.caches = {key: word for key, word in words.items() if word is not None}
        decision.picked(pick.endpoints, pick.helpers, pick.primary, pick.stages)

    def _allowed(self, subset: Subset | None) -> tuple[Endpoint, ...]:
        endpoints = self._datastore.endpoints
        if subset is None:
            return endpoints
        return tuple([endpoint for endpoint in endpoints if subset.allows(endpoint.address, endpoint.port)])

    def dispatch(self, now: float) -> float | None:
        """Let the admission dispatch. Returns the time of the next call at the latest; None: not before `waiting.wake`."""
        return self._admissions.dispatch(now)

    def candidates(self, context: SchedulingContext, now: float) -> EndpointPool:
        return self.eligible.find(context, now)

    def foresee(self, waiting: WaitingRequest, now: float) -> float:
        """Seconds to the first byte of a request that comes to wait, where it would come soonest; negative: not known."""
        for producer in self.producers:
            if isinstance(producer, PredictingProducer):
                with contextlib.suppress(Rejection):  # then there is no endpoint
                    return producer.foresee(
                        waiting.request,
                        self.eligible.find(SchedulingContext(waiting.request, waiting.context.subset), now),
                    )
        return NOT_YET

    def schedule(self, context: SchedulingContext, now: float) -> Pick:
        """Pick for a request that waited, among the endpoints that may serve it now."""
        started = self.clock()
        if context.decision is not None:
            context.decision.waited = now - context.decision.at
        pick = self._pick(context, self.eligible.find(context, now))
        if self.timings is not None:
            self.timings.scheduled(self.clock() - started)
        return pick

    def ended_waiting(self, context: SchedulingContext, why: Exception | None, now: float) -> None:
        decision = context.decision
        if decision is None or self.decisions is None:
            return
        decision.waited = now - decision.at
        if decision.pool is None and decision.picked_at == NOT_YET:
            decision.pool = self._datastore.pool(now)
        if why is None:
            decision.abandoned(now)
        else:
            decision.refused(why, now)
        self.decisions.add(decision)

    def _pick(self, context: SchedulingContext, candidates: EndpointPool) -> Pick:
        decision = context.decision
        pick = self._schedule(context, self.eligible.for_pick(candidates, decision))
        if decision is not None:
            decision.picked(pick.endpoints, pick.helpers, pick.primary, pick.stages)
        self.picks.add(pick, candidates.now)
        if self.decisions is not None:
            if decision is not None:
                pick.decision = decision
                self.decisions.noted(decision)
            selected = candidates.selected_from
            endpoints = candidates.endpoints if selected is None else selected[0]
            self.decisions.keep(pick, endpoints, candidates.now)
        return pick

    def saturation(self, now: float) -> float:
        """The load of all endpoints, 1.0 = full."""
        return self._detector.saturation(self._datastore.pool(now))


def _asks_for_models(headers: Mapping[str, str]) -> bool:
    return headers.get(":method") == "GET" and request_path(headers).endswith(MODELS_PATH)
