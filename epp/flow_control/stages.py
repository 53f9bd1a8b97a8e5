"""Which endpoints serve prefill, and which decode, where these are apart. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from epp.endpoints.endpoint import Endpoint, EndpointPool, Mask
from epp.scheduling.filters.label_filters import DECODE_ROLES, PREFILL_ROLES, ROLE_LABEL

PREFILL: Final = "prefill"
DECODE: Final = "decode"


class Stages:
    """Remembers the roles of the endpoints that it saw last."""

    __slots__ = ("_endpoints", "_masks")

    def __init__(self) -> None:
        self._endpoints: Sequence[Endpoint] = ()
        self._masks: Mapping[str, Mask] = {}

    def pools(self, pool: EndpointPool) -> Mapping[str, EndpointPool]:
        """The pool of each stage: each request needs room in all of them. One that is not apart decodes.

        As in the Go picker: what has no role decodes, what has both is in both, and what only encodes or has a role that
        nobody knows is in none.
        """
        if pool.endpoints is not self._endpoints:
            self._endpoints, self._masks = pool.endpoints, _masks(pool.endpoints)
        return {name: pool.select(mask) for name, mask in self._masks.items()} or {DECODE: pool}


def _masks(endpoints: Sequence[Endpoint]) -> Mapping[str, Mask]:
    roles = [endpoint.labels.get(ROLE_LABEL) or "" for endpoint in endpoints]
    if not any(roles):
        return {}
    prefill: Mask = np.array([role in PREFILL_ROLES for role in roles], dtype=np.bool_)
    decode: Mask = np.array([not role or role in DECODE_ROLES for role in roles], dtype=np.bool_)
    return {name: mask for name, mask in ((PREFILL, prefill), (DECODE, decode)) if mask.any()}
