"""The client names the profile, in a header.

Header and default: llm-d-router, plugins/scheduling/profilehandler/headerprofile.
"""

from collections.abc import Collection, Sequence
from typing import Final

from epp.plugins.declaration import PluginContext, PluginDeclaration, Role
from epp.plugins.section import HeaderName, Section
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.pick import Pick
from epp.scheduling.profile_result import Results

DEFAULT_HEADER: Final = "epp-profile"
DEFAULT_PROFILE: Final = "decode"


class HeaderProfileHandler:
    """Runs the profile that the header names, `default` without it; if there is only one profile, always that one.

    A name that is no profile is the client's mistake: 400.
    """

    __slots__ = ("_default", "_header")

    def __init__(self, header: str = DEFAULT_HEADER, default: str = DEFAULT_PROFILE) -> None:
        self._header = header
        self._default = default

    def check(self, profiles: Collection[str]) -> None:
        if not profiles:
            raise ValueError("header-profile-handler needs a profile, found none")

    def pick(self, request: InferenceRequest, profiles: Collection[str], results: Results) -> Sequence[str]:
        if results or len(profiles) == 1:
            return () if results else tuple(profiles)
        name = request.headers.get(self._header, "").strip() or self._default
        return (name,) if name in profiles else ()

    def result(self, request: InferenceRequest, results: Results) -> Pick:
        if not results:
            raise self._unknown_profile(request)
        ((name, found),) = results.items()
        if isinstance(found, Rejection):
            raise found
        return Pick(request, found.endpoints, primary=name)

    def _unknown_profile(self, request: InferenceRequest) -> Rejection:
        named = request.headers.get(self._header, "").strip()
        said = (
            f"the header {self._header} names {named[:100]!r}"
            if named
            else f"there is no header {self._header}"
        )
        return Rejection(400, "invalid_request_error", f"{said}; expected the name of a scheduling profile")


class HeaderProfileParameters(Section):
    header_name: HeaderName = DEFAULT_HEADER
    """The header that names the profile."""
    default_profile: str = DEFAULT_PROFILE
    """The profile of requests without it."""


def _build(given: HeaderProfileParameters, context: PluginContext) -> HeaderProfileHandler:
    header, profile = given.header_name, given.default_profile.strip()
    return HeaderProfileHandler(header or DEFAULT_HEADER, profile or DEFAULT_PROFILE)


HEADER_PROFILE_HANDLER: Final = PluginDeclaration(
    type="header-profile-handler", role=Role.HANDLER, parameters=HeaderProfileParameters, build=_build
)
