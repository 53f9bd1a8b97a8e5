"""Makes a pick: runs the data producers, then the profiles that the profile handler names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from epp.endpoints.endpoint import EndpointPool
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling import plugin
from epp.scheduling.candidates import no_endpoints
from epp.scheduling.decision import rows_of_all
from epp.scheduling.pick import Pick, SchedulingContext
from epp.scheduling.profile import SchedulerProfile
from epp.scheduling.profile_result import ProfileResult


class Scheduler:
    """The profiles by name, and the handler that decides which of them run.

    `producers`: those that the profiles need, and `handler_producers`, which only the handler reads. Raises ValueError if
    the handler cannot work with these profiles.
    """

    def __init__(
        self,
        profiles: Mapping[str, SchedulerProfile],
        handler: plugin.ProfileHandler,
        handler_producers: Sequence[plugin.DataProducer] = (),
    ) -> None:
        self.profiles = dict(profiles)
        self.handler = handler
        self.handler.check(self.profiles)
        self._handler_producers = tuple(handler_producers)
        needed = [producer for profile in profiles.values() for producer in profile.producers]
        self.producers: list[plugin.DataProducer] = []
        for producer in (*needed, *handler_producers):
            if not any(producer is one for one in self.producers):
                self.producers.append(producer)
        told = plugin.wrapped_by(self.producers)
        self.producers = [one for one in self.producers if not any(one is other for other in told)]
        self.producers.sort(key=plugin.is_picked_last)
        self._screeners = [one for one in self.producers if isinstance(one, plugin.Screener)]
        single = getattr(self.handler, "takes_only_profile", False) is True
        self._single_profile = next(iter(self.profiles.values())) if single else None
        self._single_name = next(iter(self.profiles)) if single else ""
        self._staged = self.handler if isinstance(self.handler, plugin.StagedHandler) else None
        if self._staged is not None and self._single_profile is not None:
            self.profiles.setdefault(self._staged.stage, self._single_profile)

    def schedule(self, context: SchedulingContext, pool: EndpointPool) -> Pick:
        decision = context.decision
        if decision is not None and decision.whole:
            for producer in self.producers:
                decision.call(plugin.producer_labels(producer), producer.prepare, context.request, pool)
        else:
            for producer in self.producers:
                producer.prepare(context.request, pool)
        return self._choose(context, pool)

    def rehearse(self, context: SchedulingContext, pool: EndpointPool) -> Pick:
        """The same for a request that is only explained: nothing is measured, and nothing learnt."""
        undo: list[Callable[[], None]] = []
        try:
            for producer in self.producers:
                if isinstance(producer, plugin.RehearsingProducer):
                    undo.append(producer.rehearse(context.request, pool))
                else:
                    producer.prepare(context.request, pool)
            return self._choose(context, pool)
        finally:
            for take_back in undo:
                take_back()

    def _choose(self, context: SchedulingContext, pool: EndpointPool) -> Pick:
        if self._screeners:
            pool = self._screened(context, pool)
        if context.decision is not None:
            context.decision.profile = self._single_name
        staged = self._staged is not None and self._staged.has_stages(pool)
        # the common case: the same result without asking the handler
        if self._single_profile is not None and not staged:
            chosen = self._single_profile.run(context, pool)
            pick = Pick(context.request, chosen, primary=self._single_name)
            pick.scores = context.scores
            return pick
        return self._run_profiles(context, pool)

    def _screened(self, context: SchedulingContext, pool: EndpointPool) -> EndpointPool:
        for screener in self._screeners:
            mask, why = screener.screen(context.request, pool)
            pool = pool.select(mask)
            if context.decision is not None:
                context.decision.narrowed(screener.name, rows_of_all(pool))
            if not len(pool):
                raise no_endpoints(why)
        return pool

    def _run_profiles(self, context: SchedulingContext, pool: EndpointPool) -> Pick:
        request = context.request
        results: dict[str, ProfileResult | Rejection] = {}
        while names := self._next_profiles(request, results):
            for name in names:
                results[name] = self._run_profile(name, context, pool)
        pick = self.handler.result(request, results)
        if not pick.endpoints:
            raise ValueError(
                "the profile handler returned a pick without an endpoint; expected at least one, or a Rejection raised"
            )
        primary = results.get(pick.primary)
        pick.scores = primary.scores if isinstance(primary, ProfileResult) else None
        return pick

    def with_reported_scores(self) -> "Scheduler":
        """The same scheduler, whose picks carry the scores of their candidates."""
        reporting = {name: replace(profile, reports_scores=True) for name, profile in self.profiles.items()}
        return Scheduler(reporting, self.handler, self._handler_producers)

    def _next_profiles(
        self, request: InferenceRequest, results: Mapping[str, ProfileResult | Rejection]
    ) -> list[str]:
        """The profiles that the handler names and that have not run."""
        asked = dict.fromkeys(self.handler.pick(request, self.profiles, results))
        names = [name for name in asked if name not in results]
        for name in names:
            if name not in self.profiles:
                known = ", ".join(self.profiles)
                raise ValueError(f"the profile handler names the profile {name!r}; expected one of: {known}")
        return names

    def _run_profile(
        self, name: str, context: SchedulingContext, pool: EndpointPool
    ) -> ProfileResult | Rejection:
        context.clear_scores()
        if context.decision is not None:
            context.decision.profile = name
        if self._staged is not None:
            pool = self._staged.of_stage(name, pool)
            if not len(pool):
                return no_endpoints("no endpoint that may serve this request has the role for it")
        try:
            return ProfileResult(self.profiles[name].run(context, pool), context.scores)
        except Rejection as rejection:
            return rejection
