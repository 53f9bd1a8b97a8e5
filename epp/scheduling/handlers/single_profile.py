"""The handler of a configuration with one profile: its result is the pick."""

from collections.abc import Collection, Sequence

from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.pick import Pick
from epp.scheduling.profile_result import Results


class SingleProfileHandler:
    """The default profile handler; `Scheduler` takes a shorter path for it."""

    __slots__ = ()

    def check(self, profiles: Collection[str]) -> None:
        if len(profiles) != 1:
            found = ", ".join(profiles) or "none"
            raise ValueError(f"single-profile-handler needs exactly one profile, found {found}")

    def pick(self, request: InferenceRequest, profiles: Collection[str], results: Results) -> Sequence[str]:
        return () if results else tuple(profiles)

    def result(self, request: InferenceRequest, results: Results) -> Pick:
        ((name, found),) = results.items()
        if isinstance(found, Rejection):
            raise found
        return Pick(request, found.endpoints, primary=name)
