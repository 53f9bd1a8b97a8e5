"""A profile handler as somebody outside would write it: prefill apart from decode, where enough of a prompt is new."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from discovery import Instance, InstanceAddedEvent
from epp.endpoints.datastore import Datastore
from epp.endpoints.load import Load
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.pick import Pick
from epp.scheduling.prefix.scorer import prefix_match
from epp.scheduling.profile_result import Results

PREFILLER = "x-prefiller-host-port"


@dataclass(frozen=True)
class PrefillHandler:
    """`least`: tokens that the decode worker must not have in its cache, for a prefill worker to be worth its while."""

    least: int = 64

    def check(self, profiles: Collection[str]) -> None:
        if "decode" not in profiles:
            raise ValueError(f"prefill-handler needs a profile decode, found {', '.join(profiles)}")

    def pick(self, request: InferenceRequest, profiles: Collection[str], results: Results) -> Sequence[str]:
        if not results:
            return ["decode"]
        decode = results["decode"]
        if isinstance(decode, Rejection) or "prefill" not in profiles:
            return []
        match = prefix_match(request, decode.endpoints[0])
        return ["prefill"] if match is not None and match.prompt - match.held >= self.least else []

    def result(self, request: InferenceRequest, results: Results) -> Pick:
        decode, prefill = results["decode"], results.get("prefill")
        if isinstance(decode, Rejection):
            raise decode
        if prefill is None or isinstance(prefill, Rejection):
            return Pick(request, decode.endpoints, primary="decode")
        chosen = prefill.endpoints[:1]
        headers = {PREFILLER: chosen[0].destination}
        return Pick(request, decode.endpoints, primary="decode", helpers={"prefill": chosen}, headers=headers)


def add_worker(store: Datastore, name: str, role: str, address: str = "10.0.0.1", port: int = 8000) -> None:
    """One that is idle and was scraped at 100 s."""
    instance = Instance(name, "ns", "c", address, port, "a", labels={"llm-d.ai/role": role})
    store.apply(InstanceAddedEvent(instance), {})
    store.observe(store.endpoints[-1], Load(waiting=0, running=0, kv_usage=0), 100.0, period=1e9)
