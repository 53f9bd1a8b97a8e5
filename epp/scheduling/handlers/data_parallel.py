"""Sends requests to one port of each worker, where a sidecar forwards them to the data parallel rank that was picked.

Header and port: llm-d-router, plugins/scheduling/profilehandler/dataparallel.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from pydantic import Field

from epp.plugins.declaration import PluginDeclaration, Role
from epp.plugins.section import Section
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.pick import Pick
from epp.scheduling.profile_result import Results

RANK_HEADER: Final = "x-data-parallel-host-port"
DEFAULT_PORT: Final = 8000


class DataParallelProfileHandler:
    """One profile; the request goes to `port` of the picked endpoint, whose own address the header has."""

    __slots__ = ("_port",)

    def __init__(self, port: int = DEFAULT_PORT) -> None:
        self._port = port

    def check(self, profiles: Collection[str]) -> None:
        if len(profiles) != 1:
            found = ", ".join(profiles) or "none"
            raise ValueError(f"data-parallel-profile-handler needs exactly one profile, found {found}")

    def pick(self, request: InferenceRequest, profiles: Collection[str], results: Results) -> Sequence[str]:
        return () if results else tuple(profiles)

    def result(self, request: InferenceRequest, results: Results) -> Pick:
        ((name, found),) = results.items()
        if isinstance(found, Rejection):
            raise found
        endpoints = tuple([replace(endpoint, port=self._port) for endpoint in found.endpoints])
        headers = {RANK_HEADER: found.endpoints[0].destination}
        return Pick(request, endpoints, primary=name, headers=headers)


class DataParallelParameters(Section):
    primary_port: int = Field(default=DEFAULT_PORT, ge=1, le=65535)
    """The port of the sidecar."""


DATA_PARALLEL_PROFILE_HANDLER: Final = PluginDeclaration(
    type="data-parallel-profile-handler",
    role=Role.HANDLER,
    parameters=DataParallelParameters,
    build=lambda given, context: DataParallelProfileHandler(given.primary_port),
)
