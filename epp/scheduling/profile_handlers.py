"""The profile handlers: which profiles a request runs through, and the pick that follows from their results.

Header and names: llm-d-router, plugins/scheduling/profilehandler.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import ClassVar, Final

from pydantic import Field

from epp.plugins.declaration import PluginContext, PluginDeclaration, Role, without_parameters
from epp.plugins.section import HeaderName, Section
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.pick import Pick
from epp.scheduling.profile_result import Results


class SingleProfileHandler:
    """The default profile handler."""

    type: ClassVar[str] = "single-profile-handler"
    takes_only_profile: ClassVar[bool] = True

    def check(self, profiles: Collection[str]) -> None:
        if len(profiles) != 1:
            found = ", ".join(profiles) or "none"
            raise ValueError(f"{self.type} needs exactly one profile, found {found}")

    def pick(self, request: InferenceRequest, profiles: Collection[str], results: Results) -> Sequence[str]:
        return () if results else tuple(profiles)

    def result(self, request: InferenceRequest, results: Results) -> Pick:
        ((name, found),) = results.items()
        if isinstance(found, Rejection):
            raise found
        return Pick(request, found.endpoints, primary=name)


SINGLE_PROFILE_HANDLER: Final = without_parameters(
    SingleProfileHandler.type, Role.HANDLER, SingleProfileHandler, is_default=True
)


RANK_HEADER: Final = "x-data-parallel-host-port"
DEFAULT_PORT: Final = 8000


class DataParallelProfileHandler(SingleProfileHandler):
    """One profile; the request goes to `port` of the picked endpoint, whose own address the header has."""

    type = "data-parallel-profile-handler"
    takes_only_profile = False

    def __init__(self, port: int = DEFAULT_PORT) -> None:
        self._port = port

    def result(self, request: InferenceRequest, results: Results) -> Pick:
        found = super().result(request, results)
        endpoints = tuple([replace(endpoint, port=self._port) for endpoint in found.endpoints])
        headers = {RANK_HEADER: found.endpoints[0].destination}
        return Pick(request, endpoints, primary=found.primary, headers=headers)


class DataParallelParameters(Section):
    primary_port: int = Field(default=DEFAULT_PORT, ge=1, le=65535)
    """The port of the sidecar."""


DATA_PARALLEL_PROFILE_HANDLER: Final = PluginDeclaration(
    type=DataParallelProfileHandler.type,
    role=Role.HANDLER,
    parameters=DataParallelParameters,
    build=lambda given, context: DataParallelProfileHandler(given.primary_port),
)


DEFAULT_HEADER: Final = "epp-profile"
DEFAULT_PROFILE: Final = "decode"


class HeaderProfileHandler(SingleProfileHandler):
    """Runs the profile that the header names, `default` without it; if there is only one profile, always that one.

    A name that is no profile is the client's mistake: 400.
    """

    type = "header-profile-handler"
    takes_only_profile = False

    def __init__(self, header: str = DEFAULT_HEADER, default: str = DEFAULT_PROFILE) -> None:
        self._header = header
        self._default = default

    def check(self, profiles: Collection[str]) -> None:
        if not profiles:
            raise ValueError(f"{self.type} needs a profile, found none")

    def pick(self, request: InferenceRequest, profiles: Collection[str], results: Results) -> Sequence[str]:
        if results or len(profiles) == 1:
            return () if results else tuple(profiles)
        name = request.headers.get(self._header, "").strip() or self._default
        return (name,) if name in profiles else ()

    def result(self, request: InferenceRequest, results: Results) -> Pick:
        if not results:
            raise self._unknown_profile(request)
        return super().result(request, results)

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


def _by_header(given: HeaderProfileParameters, context: PluginContext) -> HeaderProfileHandler:
    header, profile = given.header_name, given.default_profile.strip()
    return HeaderProfileHandler(header or DEFAULT_HEADER, profile or DEFAULT_PROFILE)


HEADER_PROFILE_HANDLER: Final = PluginDeclaration(
    type=HeaderProfileHandler.type, role=Role.HANDLER, parameters=HeaderProfileParameters, build=_by_header
)
