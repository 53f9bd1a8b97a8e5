"""Counts which stages of requests are apart, and which are not though they were meant to be.

Names and labels: llm-d-router, plugins/scheduling/profilehandler/disagg/metrics.go; the fallbacks are adsum's own.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from prometheus_client import Metric

from adsum.metric_families import counter
from epp.endpoints.endpoint import Endpoint
from epp.plugins.labels import OTHER, PREFIX, label_value
from epp.request.inference_request import InferenceRequest, RequestData
from epp.scheduling.plugin import RequestFollower

PREFILL: Final = "prefill"
DECODE: Final = "decode"
ENCODE: Final = "encode"
OLDER_TYPE: Final = "pd-profile-handler"
"""The older type, whose families have a name of their own."""
NO_WORKER: Final = "no_worker"
OTHER_REVISION: Final = "other_revision"
OLD_NUMBERS: Final = "old_numbers"
"""Why a stage that was meant to be apart is not: nobody may do it, nobody of the decode worker's revision, or their numbers are too
old for a choice."""
_PLUGIN: Final = ("plugin_name", "plugin_type")
_KINDS: Final = {
    (False, False): "decode-only",
    (False, True): "prefill-decode",
    (True, False): "encode-decode",
    (True, True): "encode-prefill-decode",
}
"""By whether encode and prefill are apart."""
_MOST_MODELS: Final = 1000
"""Models that are counted by name: clients choose them."""


class _Decision:
    __slots__ = ("fallbacks", "kind")

    def __init__(self, kind: str, fallbacks: Sequence[tuple[str, str]]) -> None:
        self.kind = kind
        self.fallbacks = fallbacks


class StageDecisions(RequestFollower):
    """A data producer that learns which of the decisions become picks. `decisions`: by model and kind; `fallbacks`: by stage and
    reason.
    """

    def __init__(self) -> None:
        # bounded: _MOST_MODELS, each with the kinds of decisions
        self.decisions: Counter[tuple[str, str]] = Counter()
        self.fallbacks: Counter[tuple[str, str]] = Counter()
        self._decided: RequestData[_Decision] = RequestData()

    def decide(
        self,
        request: InferenceRequest,
        *,
        encode: bool = False,
        prefill: bool = False,
        fallbacks: Sequence[tuple[str, str]] = (),
    ) -> str:
        """Keep what was decided, and name it: which stages are apart, and for each that is not though it was meant to be, why."""
        kind = _KINDS[encode, prefill]
        self._decided.keep(request, _Decision(kind, fallbacks))
        return kind

    def picked(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        decided = self._decided.of(request)
        if decided is None:
            return
        model = label_value(request.model) or "unknown"
        key = model, decided.kind
        if key not in self.decisions and len(self.decisions) >= _MOST_MODELS * len(_KINDS):
            key = OTHER, decided.kind
        self.decisions[key] += 1
        self.fallbacks.update(decided.fallbacks)


class CountingHandler(Protocol):
    """A profile handler with its counts; `name`: in the file, as `type`."""

    @property
    def type(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def counts(self) -> StageDecisions: ...


def disagg_metrics(handlers: Sequence[CountingHandler]) -> Iterator[Metric]:
    """A file has one handler. The families of each type have two prefixes; the older one tells no plugins apart. Without a decision, as
    where the default handler finds no roles, there is none of them.
    """
    help_text = "Picks, by which stages of the request are apart."
    for handler in [one for one in handlers if one.counts.decisions]:
        name = "pd_decision" if handler.type == OLDER_TYPE else "disagg_decision"
        found, labels = handler.counts.decisions.items(), ("model_name", "decision_type")
        told = [((handler.name, handler.type, *values), count) for values, count in found]
        yield counter(PREFIX + name, help_text, (*_PLUGIN, *labels), told)
        yield counter(f"llm_d_inference_scheduler_{name}", help_text, labels, found)
    fallbacks = [
        ((one.name, one.type, *told), count)
        for one in handlers
        for told, count in one.counts.fallbacks.items()
    ]
    if fallbacks:
        help_text = "Picks of which a stage was meant to be apart and is not."
        yield counter(PREFIX + "disagg_fallbacks", help_text, (*_PLUGIN, "stage", "reason"), fallbacks)
