"""The default profile handler: one worker for a request, or where workers have roles the cheapest pair of two.

Without roles it is single-profile-handler. With them, the only profile runs over the workers for prefill first, then over those that
decode, whose least-cost-scorer knows what the prompt costs with the worker that was chosen (`work_ahead/remote_prefill.py`): so
decode worker, and whether to be apart at all, are one choice.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np

from epp.endpoints.endpoint import Endpoint, EndpointPool, Mask
from epp.plugins.declaration import PluginContext, PluginDeclaration, Role
from epp.plugins.section import NoParameters
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.disaggregation.decisions import (
    NO_WORKER,
    OLD_NUMBERS,
    OTHER_REVISION,
    PREFILL,
    StageDecisions,
    disagg_metrics,
)
from epp.scheduling.disaggregation.handler import NOBODY_PAIRS, PREFILL_HEADER, SAME_WORKER
from epp.scheduling.pairing import COMPUTED_AT, pairs
from epp.scheduling.pick import Pick
from epp.scheduling.profile_handlers import SingleProfileHandler
from epp.scheduling.profile_result import ProfileResult, Results
from epp.scheduling.work_ahead.remote_prefill import CANDIDATE, RemotePrefill


class LeastCostProfileHandler(SingleProfileHandler):
    """A `StagedHandler`. The profile runs for prefill under the name `stage`. `name`: in the file; `counts`: learns which of
    its decisions become picks.
    """

    type = "least-cost-profile-handler"
    stage: Final = PREFILL

    def __init__(self, name: str = type) -> None:
        self.name = name
        self.counts = StageDecisions()
        self._everyone: tuple[Endpoint, ...] = ()
        self._has_stages = False

    def check(self, profiles: Collection[str]) -> None:
        others = [name for name in profiles if name != PREFILL]
        super().check(others if len(profiles) == 2 else profiles)  # a scheduler is made of another's profiles
        if not others:
            raise ValueError(f"{self.type} uses the name {PREFILL!r} itself; give the profile another one")

    def has_stages(self, pool: EndpointPool) -> bool:
        """Whether some workers decode and others do not; if none does, this picker is one of the others' alone."""
        everyone = pool.endpoints if pool.selected_from is None else pool.selected_from[0]
        if everyone is not self._everyone:  # the same tuple as long as no endpoint changes
            decode = [endpoint.decodes for endpoint in everyone]
            self._everyone, self._has_stages = everyone, any(decode) and not all(decode)
        return self._has_stages

    def of_stage(self, name: str, pool: EndpointPool) -> EndpointPool:
        prefill = name == PREFILL
        mask: Mask = pool.note(
            ("stage", prefill),
            lambda: np.array(
                [one.prefills if prefill else one.decodes for one in pool.endpoints], dtype=np.bool_
            ),
        )
        return pool.select(mask)

    def pick(self, request: InferenceRequest, profiles: Collection[str], results: Results) -> Sequence[str]:
        decode = next(name for name in profiles if name != PREFILL)
        if decode in results:
            return ()
        if not results and request.prompt_size:
            CANDIDATE.keep(request, RemotePrefill())
            return (PREFILL,)
        remote_prefill, found = CANDIDATE.of(request), results.get(PREFILL)
        if remote_prefill is not None and isinstance(found, ProfileResult):
            remote_prefill.choose(found.endpoints[0])
        return (decode,)

    def result(self, request: InferenceRequest, results: Results) -> Pick:
        prefill = results.get(PREFILL)
        pick = super().result(request, _without(results, PREFILL))
        remote_prefill = CANDIDATE.of(request)
        if remote_prefill is None or remote_prefill.worker is None:
            return self._alone(pick, *_why_nobody(prefill))
        decode = pick.endpoints[0]
        worker, row = remote_prefill.worker_for(decode), remote_prefill.row(decode)
        if row is None:
            return self._alone(pick, f"the numbers of {decode.id} are too old", OLD_NUMBERS)
        if worker is None:
            return self._alone(pick, NOBODY_PAIRS, OTHER_REVISION)
        local, remote = remote_prefill.local.item(row), remote_prefill.remote.item(row)
        costs = f"the prompt costs {remote:,.0f} tokens with {worker.id}, {local:,.0f} without"
        if not remote_prefill.apart.item(row):
            return self._alone(pick, SAME_WORKER if worker.key == decode.key else costs)
        COMPUTED_AT.keep(request, worker.key)
        fallbacks = tuple([one for one in pick.endpoints if pairs(one, worker)])
        headers, helpers = {PREFILL_HEADER: worker.destination}, {PREFILL: (worker,)}
        apart = Pick(request, fallbacks, primary=pick.primary, helpers=helpers, headers=headers)
        apart.stages = f"{self.counts.decide(request, prefill=True)}: {costs}"
        return apart

    def _alone(self, pick: Pick, why: str, fallback: str = "") -> Pick:
        """`fallback`: it was not even possible to compare."""
        decision = self.counts.decide(pick.request, fallbacks=[(PREFILL, fallback)] * bool(fallback))
        pick.stages = f"{decision}: {why}"
        return pick


def _without(results: Results, name: str) -> Mapping[str, ProfileResult | Rejection]:
    return {one: result for one, result in results.items() if one != name}


def _why_nobody(prefill: ProfileResult | Rejection | None) -> tuple[str, str]:
    """In words, and as a label."""
    if prefill is None:
        return "there is no prompt", ""
    if isinstance(prefill, Rejection):
        return f"no worker for prefill: {prefill.message}", NO_WORKER
    why = f"the numbers of {prefill.endpoints[0].id} are too old, or nothing says what a prompt costs"
    return why, OLD_NUMBERS


def _build(given: NoParameters, context: PluginContext) -> LeastCostProfileHandler:
    handler = LeastCostProfileHandler(context.name)
    context.follow(handler.counts)
    return handler


LEAST_COST_PROFILE_HANDLER: Final = PluginDeclaration(
    type=LeastCostProfileHandler.type, role=Role.HANDLER, build=_build, metrics=disagg_metrics
)
