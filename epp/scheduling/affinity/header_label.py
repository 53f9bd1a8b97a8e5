"""Prefers the endpoints whose label has the value of a request header."""

from typing import ClassVar, Final

import numpy as np
from pydantic import Field

from epp.endpoints.endpoint import Endpoint, EndpointPool, Floats
from epp.plugins.declaration import PluginDeclaration, Role
from epp.plugins.section import HeaderName, Section
from epp.request.inference_request import InferenceRequest
from epp.scheduling.plugin import Scores


class HeaderLabelAffinityScorer:
    """1 where the label equals the header, else 0; `header` in lower case."""

    published_only: ClassVar[bool] = False

    def __init__(self, header: str, label: str) -> None:
        self._header = header
        self._label = label
        self._endpoints: tuple[Endpoint, ...] = ()
        self._rows: dict[str, list[int]] = {}
        """Of `_endpoints`, by the label's value."""

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Scores:
        wanted = request.headers.get(self._header)
        if not wanted:
            return {}
        if pool.endpoints is not self._endpoints:  # the same tuple as long as no endpoint changes
            self._rows = _rows_by_value(pool.endpoints, self._label)
            self._endpoints = pool.endpoints
        scores: Floats = np.zeros(len(pool))
        scores[self._rows.get(wanted, [])] = 1.0
        return scores


def _rows_by_value(endpoints: tuple[Endpoint, ...], label: str) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row, endpoint in enumerate(endpoints):
        if (value := endpoint.labels.get(label)) is not None:
            rows.setdefault(value, []).append(row)
    return rows


class HeaderLabelParameters(Section):
    header_name: HeaderName = Field(min_length=1)
    """The header of the request."""
    label_key: str = Field(min_length=1)
    """The label of endpoints that has to have the header's value."""


HEADER_LABEL_AFFINITY_SCORER: Final = PluginDeclaration(
    type="header-label-affinity-scorer",
    role=Role.SCORER,
    parameters=HeaderLabelParameters,
    build=lambda given, context: HeaderLabelAffinityScorer(given.header_name, given.label_key),
    reads_metrics=False,
)
