"""Which endpoints may work on one request together. Pure.

During a rollout two revisions are there. Their KV caches, or how these are carried, may differ (llm-d-router, plugin
disaggregatedset-rollout-screener), so only endpoints of one revision are paired.
"""

from typing import Final

import numpy as np

from epp.endpoints.endpoint import Endpoint, EndpointPool, Key, Mask
from epp.request.inference_request import RequestData

REVISION_LABEL: Final = "disaggregatedset.x-k8s.io/revision"
COMPUTED_AT: Final[RequestData[Key]] = RequestData()
"""The endpoint that computes the prompt of a request, if that is a helper."""


def pairs(one: Endpoint, other: Endpoint) -> bool:
    """Whether they have the same revision; both may have none."""
    return one.labels.get(REVISION_LABEL) == other.labels.get(REVISION_LABEL)


def of_one_revision(peer: Endpoint, pool: EndpointPool) -> EndpointPool:
    """Finds those that pair with the peer; if there are none, all: who asked finds out, and does without the peer."""
    mask = pool.note(("revision", peer.labels.get(REVISION_LABEL)), lambda: _mask(peer, pool))
    return pool.select(mask) if mask.any() else pool


def _mask(peer: Endpoint, pool: EndpointPool) -> Mask:
    return np.array([pairs(peer, one) for one in pool.endpoints], dtype=np.bool_)
