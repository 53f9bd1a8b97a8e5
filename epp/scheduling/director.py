"""Turns a request into a pick: parse, find the endpoints that may serve it, admit, schedule, reserve."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from adsum.tracing.span import Span
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint, EndpointPool
from epp.endpoints.models_page import MODELS_PATH, ModelsPage
from epp.outliers.detection import OutlierDetection
from epp.outliers.failure import Failure
from epp.outliers.requesters import hash_prompt, requester_of
from epp.outliers.slow_start import SlowStart
from epp.request.held_chat import while_it_waits
from epp.request.inference_request import (
    DEFAULT_FAIRNESS_ID,
    InferenceRequest,
    parse_request,
    passthrough_request,
    request_path,
)
from epp.request.model_rewrite import ModelRewrites
from epp.request.own_answer import OwnAnswer
from epp.request.rejection import Rejection
from epp.request.subset import Subset
from epp.scheduling import reservations
from epp.scheduling.admission import AdmissionController, EvictableRequests, ShedWhenSaturated
from epp.scheduling.candidates import (
    model_not_found,
    narrowed,
    no_endpoints,
    without_slow_starters,
    without_unreachable,
)
from epp.scheduling.context import SchedulingContext
from epp.scheduling.decision import NOT_YET, Decision, DecisionLog
from epp.scheduling.following import Following
from epp.scheduling.pick import Pick
from epp.scheduling.plugin import AdmissionProvider, DataProducer
from epp.scheduling.saturation import SaturationDetector
from epp.scheduling.scheduler import Scheduler
from epp.scheduling.waiting import WaitingRequest, WaitingRequests


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The operator's rules for requests.

    `objectives`: the priority of each objective, 0 for others; requests below 0 are shed at saturation. `models`: the only
    models that exist (endpoint picker protocol 0.3.0), empty: no such rule. `retry_after`: seconds, for requests that are
    shed. `passthrough`: bodies are not read, all requests are routed by load. `models_endpoint`: `GET /v1/models` is answered
    with the models of the pool. `rewrites`: which model serves a request.
    `fairness_headers`: in lower case; the first that a request has is its fairness id, if it names none itself.
    """

    objectives: Mapping[str, int] = field(default_factory=dict)
    models: frozenset[str] = frozenset()
    retry_after: float = 1.0
    passthrough: bool = False
    models_endpoint: bool = False
    rewrites: ModelRewrites = field(default_factory=ModelRewrites)
    fairness_headers: tuple[str, ...] = ()


class Director:
    """Decides where requests go, and counts those in flight.

    Deterministic: the same requests at the same times with the same `rng` and datastore go to the same endpoints.
    `admission`: decides when; None: at once, or refused at saturation. `waiting`: the requests that it holds.
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
        self._schedule = scheduler.schedule
        self._rehearse = scheduler.rehearse
        self.producers: list[DataProducer] = []
        """Those that are told of the next picks."""
        self.evictable: EvictableRequests | None = None
        self.outliers: OutlierDetection | None = None
        """Told of all requests, if there is one."""
        self.slow_start: SlowStart | None = None
        """Leaves new endpoints out of some picks, if there is one."""
        self.decisions: DecisionLog | None = None
        """Gets the notes of all requests, if there is one."""
        self._follow: list[Following] = []
        self._detector = detector
        self._policy = policy
        self._models_page = ModelsPage(policy.models) if policy.models_endpoint else None
        self._rng = rng
        self._new_id: Callable[[], str] = lambda: f"{rng.getrandbits(128):032x}"
        self._sheds = admission is None
        self._replaced: list[AdmissionController] = []
        """Those of earlier configurations in which requests still wait."""
        self._set_admission(admission or self._own_admission(scheduler.producers))
        self.waiting = WaitingRequests(self, datastore, self._withdraw)
        self._use(scheduler.producers)

    def reconfigure(self, scheduler: Scheduler, detector: SaturationDetector, policy: Policy) -> None:
        """Pick by these from now on. Picks that were made end with the data producers that they were made with.

        An `admission` that was given stays. `scheduler.producers` that are new have been told of what they follow.
        """
        self._use(scheduler.producers)
        self._schedule = scheduler.schedule
        self._rehearse = scheduler.rehearse
        self._detector, self._policy = detector, policy
        self._models_page = ModelsPage(policy.models) if policy.models_endpoint else None
        if self._sheds:
            self.use_admission(None)

    def use_admission(self, admission: AdmissionController | None) -> None:
        """Let this one decide from now on, None: at once, or refused at saturation. What waits for another one goes."""
        self._sheds = admission is None
        if admission is not self._admission:
            self._replaced.append(self._admission)
            self._set_admission(admission or self._own_admission(self.producers))
            self.waiting.wake()

    def _set_admission(self, admission: AdmissionController) -> None:
        self._admission = admission
        self._waits_for_endpoints = admission.waits_for_endpoints
        # as an object: compiled, a bool of numpy would be no bool
        self._admits: Callable[[InferenceRequest, EndpointPool, float], object] = admission.admit

    def _own_admission(self, producers: list[DataProducer]) -> AdmissionController:
        shed = ShedWhenSaturated(self._detector, self._policy.retry_after)
        providers = [one for one in producers if isinstance(one, AdmissionProvider)]
        return providers[0].admission(shed) if providers else shed

    def _withdraw(self, waiting: WaitingRequest, now: float) -> None:
        for admission in (self._admission, *self._replaced):
            admission.withdraw(waiting, now)

    def _use(self, producers: list[DataProducer]) -> None:
        """Let these follow the endpoints, instead of those before."""
        for following in [one for one in self._follow if not _has(producers, one.producer)]:
            following.end(self._datastore)
            self._follow.remove(following)
        for producer in producers:
            if not _has(self.producers, producer):
                self._follow.append(Following(producer, self._datastore))
        self.producers = producers

    def direct(
        self,
        headers: Mapping[str, str],
        body: bytes | bytearray | memoryview | None,
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
        if self.decisions is None:
            return self._direct(SchedulingContext(self._prepare(headers, body), subset, span), now)
        decision = Decision(now)
        try:
            context = SchedulingContext(self._prepare(headers, body), subset, span)
            context.decision = decision
            decision.request = context.request
            return self._direct(context, now)
        except Exception as error:
            if decision.request is None:
                decision.of_headers(headers)
            decision.refused(error, now)
            self.decisions.add(decision)
            raise

    def _direct(self, context: SchedulingContext, now: float) -> Pick | WaitingRequest:
        request, subset = context.request, context.subset
        if context.span is not None:
            context.span.set("target_model", request.model)
            context.span.set("request_prio", request.priority)
        try:
            candidates = self.candidates(context, now)
        except Rejection:
            self._check_model(request)
            if self._waits_for_endpoints and not self._datastore.endpoints:
                # a data plane that names the endpoints of its pool had none to name either, and its word stays as it was
                context.subset = subset if subset is not None and subset.members else None
                return self._wait(context, now)
            raise
        if self._admits(request, candidates, now):
            return self._pick(context, candidates)
        return self._wait(context, now)

    def explain(
        self,
        headers: Mapping[str, str],
        body: bytes | bytearray | memoryview | None,
        subset: Subset | None,
        now: float,
    ) -> Decision:
        """What would be decided about such a request now. Nothing is reserved, credited, counted or queued.

        Plugins prepare and score it as any other request, and are not told of a pick.
        """
        decision = Decision(now)
        decision.explained = True
        chance = self._rng.getstate()
        try:
            context = SchedulingContext(self._prepare(headers, body, counted=False), subset)
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
        request = context.request
        try:
            candidates = self.candidates(context, now)
        except Rejection:
            self._check_model(request)
            if self._waits_for_endpoints and not self._datastore.endpoints:
                self._admission.would_enqueue(request, now)
                decision.waits_for_endpoints(now)
                return
            raise
        decision.would_wait = not self._admission.would_admit(request, candidates, now)
        if self.slow_start is not None and self.slow_start.warming:
            candidates = without_slow_starters(self.slow_start, candidates, decision)
        pick = self._rehearse(context, candidates)
        decision.picked(pick.endpoints, pick.helpers, pick.primary)

    def _wait(self, context: SchedulingContext, now: float) -> WaitingRequest:
        request = context.request
        if context.decision is not None:
            context.decision.waits()
        try:
            waiting = self.waiting.begin(context, now)
            request.prompt = while_it_waits(request.prompt, request.body_size)
            self._admission.enqueue(waiting, now)
        except Rejection as rejection:
            self.waiting.turn_away(request, rejection, now)
            raise
        self.waiting.add(waiting, now)
        return waiting

    def _allowed(self, subset: Subset | None) -> tuple[Endpoint, ...]:
        endpoints = self._datastore.endpoints
        if subset is None:
            return endpoints
        return tuple([endpoint for endpoint in endpoints if subset.allows(endpoint.address, endpoint.port)])

    def dispatch(self, now: float) -> float | None:
        """Let the admission dispatch. Returns the time of the next call at the latest; None: not before `waiting.wake`.

        If the admission raises, all requests that wait fail with its error: otherwise they would wait for ever.
        """
        try:
            while self._replaced:
                replaced = self._replaced.pop()
                again_at = replaced.close(now)
                if again_at is not None:
                    self._replaced.append(replaced)
                    return again_at
            return self._admission.dispatch(now)
        except Exception as error:  # noqa: BLE001  # a fault of a plugin, raised to the waiting requests
            self.waiting.refuse_all(error, now)
            return None

    def schedule(self, context: SchedulingContext, now: float) -> Pick:
        """Pick for a request that waited, among the endpoints that may serve it now."""
        if context.decision is not None:
            context.decision.waited = now - context.decision.at
        return self._pick(context, self.candidates(context, now))

    def ended_waiting(self, context: SchedulingContext, why: Exception | None, now: float) -> None:
        """A request that waited got no pick; None: its client left."""
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

    def _prepare(
        self,
        headers: Mapping[str, str],
        body: bytes | bytearray | memoryview | None,
        *,
        counted: bool = True,
    ) -> InferenceRequest:
        read = passthrough_request if self._policy.passthrough else parse_request
        request = read(headers, body, self._new_id)
        request.priority = self._policy.objectives.get(request.objective or "", 0)
        if self._policy.fairness_headers and request.fairness_id == DEFAULT_FAIRNESS_ID:
            named = (headers.get(name, "").strip() for name in self._policy.fairness_headers)
            request.fairness_id = next(filter(None, named), DEFAULT_FAIRNESS_ID)
        if request.model:
            target = self._policy.rewrites.target(request.model, headers, self._rng, counted=counted)
            if target is not None and target != request.model:
                request.rewrite(target)
        return request

    def _pick(self, context: SchedulingContext, candidates: EndpointPool) -> Pick:
        request, decision = context.request, context.decision
        if self.slow_start is not None and self.slow_start.warming:
            candidates = without_slow_starters(self.slow_start, candidates, decision)
        pick = self._schedule(context, candidates)
        if decision is not None:
            decision.picked(pick.endpoints, pick.helpers, pick.primary)
        pick.prompt_hash = 0 if self.outliers is None else hash_prompt(request)
        request.prompt = None  # it refers to the whole body, which would stay in memory until the answer ends
        pick.producers = self.producers
        try:
            for producer in self.producers:
                producer.picked(request, pick.in_flight_at)
        except Exception:
            self._take_back(pick, producer)
            raise
        reservations.reserve(pick, self._datastore)
        if self.evictable is not None and request.priority < 0:
            self.evictable.began(pick)
        if self.outliers is not None:
            self.outliers.sent(pick, pick.in_flight_at[0], candidates.now, streamed=request.streaming)
        if decision is not None and self.decisions is not None:
            pick.decision = decision
            self.decisions.add(decision)
        return pick

    def _take_back(self, pick: Pick, faulty: DataProducer) -> None:
        """Undo a pick that is not reserved: `faulty` raised when it was told of it, and those after it were not told."""
        last = next(row for row, producer in enumerate(pick.producers) if producer is faulty)
        pick.producers = pick.producers[: last + 1]
        self._end(pick)

    def served(self, pick: Pick, destination: str, now: float) -> None:
        """The data plane reports which destination served: the request counts as in flight there instead.

        Envoy may have retried on a fallback. If the destination is no endpoint of this pool, no prefix cache has the prompt.
        """
        if not pick.in_flight_at:
            return
        if pick.decision is not None:
            pick.decision.served(destination)
        reported = Subset.of([destination])
        ours = (*pick.endpoints, *self._datastore.endpoints)
        server = next(
            (endpoint for endpoint in ours if reported.allows(endpoint.address, endpoint.port)), None
        )
        if server is None:
            self._settle(pick, served=False)
        else:
            reservations.move(pick, server, self._datastore)

    def retried(self, pick: Pick, attempts: int, now: float) -> None:
        """The data plane made so many attempts: find out whether the endpoints before the one that served live.

        If it made fewer than there are such endpoints, it skipped some, which its cluster does not have, and nobody knows which.
        """
        if not pick.in_flight_at:
            return
        if pick.decision is not None:
            pick.decision.attempts = attempts
        server = pick.in_flight_at[0]
        before = pick.endpoints.index(server) if server in pick.endpoints else len(pick.endpoints)
        # after the whole list it goes on with endpoints of its own choice
        if attempts != before + 1 and not (attempts > before == len(pick.endpoints)):
            return
        for endpoint in pick.endpoints[:before]:
            if self.outliers is not None:
                self.outliers.attempt_failed(endpoint, now)
            self._datastore.suspect(endpoint)

    def responded(self, pick: Pick, status: int, now: float, failure: Failure | None = None) -> None:
        """The response headers came: tell the data producers whether the request succeeded.

        `failure`: the data plane answered in place of the worker. If it could not reach it, find out whether it lives.
        """
        if not pick.in_flight_at:
            return
        if pick.decision is not None:
            pick.decision.responded(status, now)
        server = pick.in_flight_at[0]
        if self.outliers is not None and not pick.settled:  # otherwise `served` named a stranger
            # a worker that cannot be reached has seen nothing of the request
            requester = None if failure is Failure.CONNECT else requester_of(pick.request, pick.prompt_hash)
            self.outliers.answered(pick, server, status, failure, now, requester)
        self._settle(pick, served=200 <= status < 300)
        if failure is Failure.CONNECT or failure is Failure.RESET:
            self._datastore.suspect(server)

    def release(self, pick: Pick, now: float) -> None:
        """The request is over, for any reason. May be called twice."""
        if self.outliers is not None:
            self.outliers.ended(pick, now)
        if self.evictable is not None:
            self.evictable.ended(pick, now)
        reservations.release(pick, self._datastore)
        self._end(pick)

    def _end(self, pick: Pick) -> None:
        # the counts first: a data producer of an installed package may raise
        for count in pick.request.counts:
            count.ended()
        self._settle(pick, served=False)

    def _settle(self, pick: Pick, *, served: bool) -> None:
        """Tell the data producers once whether the endpoints served the request."""
        if pick.settled:
            return
        pick.settled = True
        for producer in pick.producers:
            if served:
                producer.served(pick.request, pick.in_flight_at)
            else:
                producer.failed(pick.request)
        pick.request.prefixes.clear()
        pick.request.data.clear()

    def saturation(self, now: float) -> float:
        """The load of all endpoints, 1.0 = full."""
        return self._detector.saturation(self._datastore.pool(now))

    def _check_model(self, request: InferenceRequest) -> None:
        if self._policy.models and request.model and request.model not in self._policy.models:
            raise model_not_found(request)

    def candidates(self, context: SchedulingContext, now: float) -> EndpointPool:
        """The endpoints that serve the model, are in the subset, and are reachable; if none is reachable, all of them.

        Unreachable is only a hint: a pick among unreachable endpoints may succeed, no pick cannot.
        """
        pool = self._datastore.pool(now)
        request, subset, decision = context.request, context.subset, context.decision
        model = request.model
        if decision is not None:
            decision.pool, decision.steps = pool, ()
        self._check_model(request)
        if not len(pool):
            raise no_endpoints("no endpoint is ready")
        serving = self._datastore.serving(model) if model else None
        if serving is not None and not serving.any():
            raise model_not_found(request)
        if serving is not None or subset is not None:
            pool = narrowed(pool, serving, subset, decision)
        if self._datastore.all_reachable:  # the common case, without a mask
            return pool
        return without_unreachable(pool, decision)


def _asks_for_models(headers: Mapping[str, str]) -> bool:
    return headers.get(":method") == "GET" and request_path(headers).endswith(MODELS_PATH)


def _has(producers: list[DataProducer], producer: DataProducer) -> bool:
    return any(producer is one for one in producers)
