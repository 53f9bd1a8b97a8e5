"""Prefers, or keeps, endpoints by a label: one that a request header names, or that says for which lengths of prompts it is.

Formula of the lengths: llm-d-router, plugins/scheduling/scorer/contextlengthaware, calculateRangeScore. 4 bytes of the prompt
as JSON count as one token.
"""

from typing import ClassVar, Final

import numpy as np
from pydantic import Field

from epp.endpoints.endpoint import Endpoint, EndpointPool, Floats, Mask
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
        """The rows of `_endpoints`, by the label's value."""

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


DEFAULT_LABEL: Final = "llm-d.ai/context-length-range"
_UNLABELLED: Final = 0.5
_OUTSIDE: Final = 0.3
"""The most that a range without the length scores."""
_MAX_DIGITS: Final = 15


class ContextLengthAware:
    """A scorer, and with `filters` also a filter.

    Within the range: above 0.3, more for a narrow range and for more room up to its end. Outside: below 0.3, less with the
    distance. Without the label 0.5, and the filter keeps the endpoint. A label that is no range scores 0 and is not kept.
    """

    published_only: ClassVar[bool] = False

    def __init__(self, label: str = DEFAULT_LABEL, *, filters: bool = False) -> None:
        self._label = label
        self._filters = filters
        self._endpoints: tuple[Endpoint, ...] = ()
        self._ranges: Floats = np.zeros((2, 0))
        """Least and most of each of `_endpoints`; NaN: no range. Unlabelled: from -inf to inf."""

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        if not self._filters:
            return np.ones(len(pool), dtype=np.bool_)
        least, most = self._ranges_of(pool)
        length = request.prompt_tokens
        kept: Mask = (least <= length) & (length <= most)  # False for NaN
        return kept

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        least, most = self._ranges_of(pool)
        length = request.prompt_tokens
        labelled = np.isfinite(least)
        low, high = np.where(labelled, least, 0.0), np.where(labelled, most, 1.0)
        scores = np.where(
            (low <= length) & (length <= high), _inside(length, low, high), _outside(length, low, high)
        )
        scores = np.where(labelled, scores, 0.0)
        return np.where(np.isinf(least), _UNLABELLED, scores)

    def _ranges_of(self, pool: EndpointPool) -> Floats:
        if pool.endpoints is not self._endpoints:  # the same tuple as long as no endpoint changes
            ranges = [_range(endpoint.labels.get(self._label)) for endpoint in pool.endpoints]
            self._ranges = np.array(ranges, dtype=np.float64).reshape(-1, 2).T
            self._endpoints = pool.endpoints
        return self._ranges


def _inside(length: int, least: Floats, most: Floats) -> Floats:
    width = most - least
    narrow = 1.0 / (1.0 + width / 10_000.0)
    room = (most - length) / np.maximum(width, 1.0)
    scores: Floats = np.where(width == 0.0, 1.0, _OUTSIDE + (1.0 - _OUTSIDE) * (0.7 * narrow + 0.3 * room))
    return scores


def _outside(length: int, least: Floats, most: Floats) -> Floats:
    distance = np.maximum(np.maximum(length - most, least - length), 0.0)
    scores: Floats = _OUTSIDE / (1.0 + distance / 1000.0)
    return scores


def _range(label: str | None) -> tuple[float, float]:
    if label is None:
        return -np.inf, np.inf
    least, _, most = (part.strip() for part in label.partition("-"))
    if not (_is_count(least) and _is_count(most)) or int(least) > int(most):
        return np.nan, np.nan
    return float(least), float(most)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS


class ContextLengthParameters(Section):
    label: str = Field(default=DEFAULT_LABEL, min_length=1)
    """The label of endpoints whose value says which lengths of prompts they are for, in tokens: `0-2048`."""
    enable_filtering: bool = False
    """Use it as a filter too."""


CONTEXT_LENGTH_AWARE: Final = PluginDeclaration(
    type="context-length-aware",
    role=Role.FILTER,
    also=Role.SCORER,
    parameters=ContextLengthParameters,
    build=lambda given, context: ContextLengthAware(given.label, filters=given.enable_filtering),
    reads_metrics=False,
)
