"""The handler of a configuration with one profile: its result is the pick."""

from collections.abc import Collection, Sequence
from typing import ClassVar, Final

from epp.plugins.declaration import PluginDeclaration, Role
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.pick import Pick
from epp.scheduling.profile_result import Results


class SingleProfileHandler:
    """The default profile handler."""

    __slots__ = ()

    takes_only_profile: ClassVar[bool] = True

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


SINGLE_PROFILE_HANDLER: Final = PluginDeclaration(
    type="single-profile-handler", role=Role.HANDLER, build=lambda given, context: SingleProfileHandler()
)
