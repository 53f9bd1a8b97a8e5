"""Chooses a worker for each stage of a request, by a profile for each, and tells the decode worker's sidecar the others.

Names, orders and headers: llm-d-router, plugins/scheduling/profilehandler/disagg, August 2026.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

from pydantic import Field, model_validator

from adsum.config.sections import parsed_by
from epp.endpoints.endpoint import Endpoint
from epp.plugins.declaration import PluginContext, PluginDeclaration, Role, only_parameters
from epp.plugins.section import Section
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.disaggregation.deciders import PREFIX_BASED_PD_DECIDER, Decider
from epp.scheduling.disaggregation.decisions import (
    DECODE,
    ENCODE,
    NO_WORKER,
    OLDER_TYPE,
    OTHER_REVISION,
    PREFILL,
    StageDecisions,
    disagg_metrics,
)
from epp.scheduling.pairing import COMPUTED_AT, pairs
from epp.scheduling.pick import Pick
from epp.scheduling.plugin import DataProducer, PrefixMatchProducer
from epp.scheduling.prefix.declarations import prefix_matches
from epp.scheduling.profile_handlers import RANK_HEADER
from epp.scheduling.profile_result import ProfileResult, Results

PREFILL_HEADER: Final = "x-prefiller-host-port"
"""One address: some sidecars take the first of several, others none (https://github.com/ai-dynamo/dynamo/pull/13405)."""
ENCODE_HEADER: Final = "x-encoder-hosts-ports"
NOBODY_PAIRS: Final = "no worker for prefill has the revision of the decode worker"
SAME_WORKER: Final = "the same worker does both"


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The profile of each stage, and who decides whether it is apart; None: it never is.

    `prefill_first`: the decode worker is chosen for the prefill worker, not the other way round; then no decider is asked about
    prefill. `primary_port`: of the sidecar before all ranks of a decode worker; 0: each rank has its own.
    """

    decode: str = DECODE
    prefill: str = PREFILL
    encode: str = ENCODE
    prefill_decider: Decider | None = None
    encode_decider: Decider | None = None
    prefill_first: bool = False
    primary_port: int = 0


class DisaggProfileHandler:
    """A profile handler. `name`: in the file, as `type`; `counts`: learns which of its decisions become picks."""

    def __init__(self, stages: StagePlan, prefixes: PrefixMatchProducer, type: str, name: str) -> None:
        self.stages = stages
        self.type = type
        self.name = name
        self.counts = StageDecisions()
        self._prefixes = prefixes
        self.producers: tuple[DataProducer, ...] = (prefixes,)

    def check(self, profiles: Collection[str]) -> None:
        if self.stages.decode not in profiles:
            found = ", ".join(profiles) or "none"
            raise ValueError(f"{self.type} needs a profile {self.stages.decode!r}, found {found}")

    def pick(self, request: InferenceRequest, profiles: Collection[str], results: Results) -> Sequence[str]:
        stages = self.stages
        if not results:
            request.peer = None
        decode = _first(results.get(stages.decode))
        if decode is None and stages.decode in results:
            return ()
        left = [name for name in (stages.encode, stages.prefill) if name in profiles and name not in results]
        if stages.prefill_first:
            return self._prefill_first(request, left, results)
        if decode is None:
            return (stages.decode,)
        if stages.encode in left and self._apart(stages.encode_decider, request, decode):
            return (stages.encode,)
        if stages.prefill in left and self._apart(stages.prefill_decider, request, decode):
            request.peer = decode
            return (stages.prefill,)
        return ()

    def _prefill_first(
        self, request: InferenceRequest, left: Collection[str], results: Results
    ) -> Sequence[str]:
        stages = self.stages
        if stages.decode in results:
            return ()
        if stages.prefill in left:
            return (stages.prefill,)
        if stages.encode in left and self._apart(stages.encode_decider, request, None):
            return (stages.encode,)
        request.peer = _first(results.get(stages.prefill))
        return (stages.decode,)

    def _apart(self, decider: Decider | None, request: InferenceRequest, decode: Endpoint | None) -> bool:
        return decider is not None and decider.apart(request, decode, self._prefixes)

    def result(self, request: InferenceRequest, results: Results) -> Pick:
        stages = self.stages
        decode = results[stages.decode]
        if isinstance(decode, Rejection):
            raise decode
        endpoints, helpers, headers = decode.endpoints, dict[str, tuple[Endpoint, ...]](), dict[str, str]()
        prefill, *without = _prefill_worker(results.get(stages.prefill), endpoints[0])
        told, fallbacks = [without[0]] * bool(without[0]), [(PREFILL, without[1])] * bool(without[1])
        if prefill is not None:
            helpers[PREFILL], headers[PREFILL_HEADER] = (prefill,), prefill.destination
            endpoints = tuple([one for one in endpoints if pairs(one, prefill)])
            COMPUTED_AT.keep(request, prefill.key)
        encode = results.get(stages.encode)
        if isinstance(encode, Rejection):
            told.insert(0, f"no worker for encode: {encode.message}")
            fallbacks.append((ENCODE, NO_WORKER))
        elif encode is not None:
            helpers[ENCODE] = encode.endpoints
            headers[ENCODE_HEADER] = ",".join([one.destination for one in encode.endpoints])
        if stages.primary_port:
            headers[RANK_HEADER] = endpoints[0].destination
            endpoints = tuple([replace(one, port=stages.primary_port) for one in endpoints])
        decision = self.counts.decide(
            request, encode=ENCODE in helpers, prefill=PREFILL in helpers, fallbacks=fallbacks
        )
        pick = Pick(request, endpoints, primary=stages.decode, helpers=helpers, headers=headers)
        pick.stages = ": ".join([decision, *["; ".join(told)] * bool(told)])
        return pick


def _prefill_worker(
    result: ProfileResult | Rejection | None, decode: Endpoint
) -> tuple[Endpoint | None, str, str]:
    """Finds who computes the prompt for that decode worker. None: it does so itself, and if that was not meant, why, in words
    and as a label.
    """
    if result is None:
        return None, "", ""
    if isinstance(result, Rejection):
        return None, f"no worker for prefill: {result.message}", NO_WORKER
    worker = next((one for one in result.endpoints if pairs(one, decode)), None)
    if worker is None:
        return None, NOBODY_PAIRS, OTHER_REVISION
    return (None, SAME_WORKER, "") if worker.key == decode.key else (worker, "", "")


def _first(result: object) -> Endpoint | None:
    endpoints: Sequence[Endpoint] = getattr(result, "endpoints", ())
    return endpoints[0] if endpoints else None


_ORDERS: Final[Mapping[str, bool]] = {
    "": False, "decodefirst": False, "decode": False, "prefillfirst": True, "prefill": True
}  # fmt: skip
"""Whether prefill is first."""


def parse_order(text: str) -> bool:
    """Whether prefill is first; raises ValueError for what is no order."""
    order = _ORDERS.get(text.lower().replace("-", "").replace("_", ""))
    if order is None:
        raise ValueError(f"{text[:60]!r} is no order of stages; expected decode-first or prefill-first")
    return order


class StageProfiles(Section):
    decode: str = ""
    """The profile of decode; without it `decode`."""
    prefill: str = ""
    """The profile of prefill; without it `prefill`."""
    encode: str = ""
    """The profile of encode; without it `encode`."""


class StageDeciders(Section):
    prefill: str = ""
    """The plugin that decides whether prefill is apart; without it, it never is."""
    encode: str = ""
    """The same for encode."""


class DisaggParameters(Section):
    stage_order: Annotated[bool, parsed_by(parse_order)] = False
    """`decode-first`: deciders see the decode worker, and prefill is chosen for it. `prefill-first`: prefill is always apart."""
    profiles: StageProfiles = Field(default_factory=StageProfiles)
    """The profiles of the stages."""
    deciders: StageDeciders = Field(default_factory=StageDeciders)
    """The deciders of the stages."""
    prefix_match_info_producer_name: str | None = None
    """The `name` of the producer of prefixes that deciders read; without it the file's producer, else one with the defaults."""
    decode_profile: str = ""
    """The older name of `profiles.decode`."""
    prefill_profile: str = ""
    """The older name of `profiles.prefill`."""
    encode_profile: str = ""
    """The older name of `profiles.encode`."""
    prefill_decider_plugin_name: str = ""
    """The older name of `deciders.prefill`."""
    decider_plugin_name: str = ""
    """A still older one."""
    encode_decider_plugin_name: str = ""
    """The older name of `deciders.encode`."""

    @model_validator(mode="after")
    def _check(self) -> "DisaggParameters":
        older = [name for name in self.model_fields_set if name.endswith(("_profile", "_plugin_name"))]
        if older and self.model_fields_set & {"profiles", "deciders"}:
            raise ValueError(
                "older names cannot stand beside profiles and deciders; use profiles and deciders"
            )
        if self.stage_order and self.decider:
            raise ValueError("a prefill decider is not asked where prefill is first; leave one of them out")
        return self

    @property
    def decider(self) -> str:
        """The name of the plugin that decides about prefill, by whichever name the file gives it; empty: none."""
        return self.deciders.prefill or self.prefill_decider_plugin_name or self.decider_plugin_name


class PdParameters(Section):
    """The older type of disagg-profile-handler."""

    decode_profile: str = DECODE
    """The profile of decode."""
    prefill_profile: str = PREFILL
    """The profile of prefill."""
    decider_plugin_name: str = Field(default=PREFIX_BASED_PD_DECIDER.type, min_length=1)
    """The plugin that decides whether prefill is apart."""
    primary_port: int = Field(default=0, ge=0, le=65535)
    """The port of the sidecar, if one stands before all ranks of a worker: the header `x-data-parallel-host-port` then has the
    rank's address."""
    prefix_match_info_producer_name: str | None = None
    """The `name` of the producer of prefixes; without it the file's producer, else one with the defaults."""
    prefix_plugin_type: str = ""
    """No effect."""
    prefix_plugin_name: str = ""
    """No effect."""


class HeadersParameters(Section):
    prefill_profile: str = PREFILL
    """No effect: the profile handler sets the headers."""
    encode_profile: str = ENCODE
    """No effect."""


def _decider(name: str, context: PluginContext, field: str) -> Decider | None:
    return context.parameters(name, Decider, default="decider", field=field) if name else None


def _handler(
    stages: StagePlan, type: str, producer: str | None, context: PluginContext
) -> DisaggProfileHandler:
    handler = DisaggProfileHandler(stages, prefix_matches(producer, context), type, context.name)
    context.follow(handler.counts)
    return handler


def _build(given: DisaggParameters, context: PluginContext) -> DisaggProfileHandler:
    encode = given.deciders.encode or given.encode_decider_plugin_name
    stages = StagePlan(
        decode=given.profiles.decode or given.decode_profile or DECODE,
        prefill=given.profiles.prefill or given.prefill_profile or PREFILL,
        encode=given.profiles.encode or given.encode_profile or ENCODE,
        prefill_decider=_decider(given.decider, context, "deciders.prefill"),
        encode_decider=_decider(encode, context, "deciders.encode"),
        prefill_first=given.stage_order,
    )
    return _handler(stages, DISAGG_PROFILE_HANDLER.type, given.prefix_match_info_producer_name, context)


def _build_older(given: PdParameters, context: PluginContext) -> DisaggProfileHandler:
    stages = StagePlan(
        decode=given.decode_profile,
        prefill=given.prefill_profile,
        prefill_decider=_decider(given.decider_plugin_name, context, "deciderPluginName"),
        primary_port=given.primary_port,
    )
    return _handler(stages, PD_PROFILE_HANDLER.type, given.prefix_match_info_producer_name, context)


DISAGG_PROFILE_HANDLER: Final = PluginDeclaration(
    type="disagg-profile-handler",
    role=Role.HANDLER,
    parameters=DisaggParameters,
    build=_build,
    metrics=disagg_metrics,
)
PD_PROFILE_HANDLER: Final = replace(
    DISAGG_PROFILE_HANDLER, type=OLDER_TYPE, parameters=PdParameters, build=_build_older
)
DISAGG_HEADERS_HANDLER: Final = only_parameters(
    "disagg-headers-handler", Role.REQUEST_HEADERS, HeadersParameters
)
PREFILL_HEADER_HANDLER: Final = replace(DISAGG_HEADERS_HANDLER, type="prefill-header-handler")
