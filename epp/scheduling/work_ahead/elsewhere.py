"""What a request costs where its prompt may be computed on a worker of its own, and which worker that is.

cost = slowness x max(a x ahead, elsewhere) + ..., if that is less than computing the prompt at the decode worker itself:
slowness x (a x ahead + missing x (1 + interference x requests)) + ...

`elsewhere`: the cost of the prompt at the prefill worker, while the decode worker goes on with what is ahead of it, and of the
transfer: a fixed part and a part for each token that the decode worker lacks.
"""

from typing import Final

import numpy as np

from epp.endpoints.endpoint import DECODE_ROLES, ROLE_LABEL, Endpoint, EndpointPool, Floats, Key, Mask
from epp.request.inference_request import RequestData
from epp.scheduling.pairing import REVISION_LABEL, pairs

TRANSFER_TOKENS: Final = 400.0
"""What each transfer costs: a second request and the connection to the other worker, some 40 ms."""
TRANSFER_SHARE: Final = 0.1
"""And each token: some 330 KB of a model of 70 billion parameters, at 25 GB/s, to a tenth of a millisecond to compute it."""

COMPUTED_AT: Final[RequestData[Key]] = RequestData()
"""The endpoint that computes the prompt of a request, if that is a helper."""
CANDIDATE: Final[RequestData["Elsewhere"]] = RequestData()
"""Where a prompt could be computed, while the decode worker is chosen."""


class Elsewhere:
    """First hears what a prompt costs on each worker for prefill; once one is chosen, compares for each decode worker.

    `worker`: the one that was chosen; None: not yet. `apart`: where a request is cheaper with it than without; `local` and
    `remote`: the costs of the prompt both ways, in tokens of the average worker.
    """

    __slots__ = ("_cost", "_costs", "_pool", "apart", "local", "remote", "worker")

    def __init__(self) -> None:
        self.worker: Endpoint | None = None
        self._cost = 0.0
        self._pool: EndpointPool | None = None
        self._costs = self.local = self.remote = np.zeros(0)
        self.apart: Mask = np.zeros(0, dtype=np.bool_)

    def offer(self, costs: Floats, pool: EndpointPool) -> None:
        """What the prompt costs on these."""
        self._costs, self._pool = costs.copy(), pool

    def choose(self, worker: Endpoint) -> None:
        """Take this one, unless its numbers are so old that its cost is not known."""
        row = self.row(worker)
        if row is not None:
            self.worker, self._cost = worker, self._costs.item(row) + TRANSFER_TOKENS
        self._pool = None

    def compare(
        self, local: Floats, ahead: Floats, missing: Floats, slowness: Floats, pool: EndpointPool
    ) -> Floats:
        """The lower cost of the prompt and of what is ahead of it, before `slowness` counts. `local`: at the decode worker."""
        worker = self.worker
        if worker is None:
            return local
        about = ("pairs", worker.key, worker.labels.get(REVISION_LABEL))
        paired: Mask = pool.note(about, lambda: _paired(worker, pool))
        remote: Floats = np.maximum(ahead, (self._cost + missing * TRANSFER_SHARE) / slowness)
        self.apart = (remote < local) & paired
        self._pool, self.local, self.remote = pool, local * slowness, remote * slowness
        return np.where(self.apart, remote, local)

    def row(self, endpoint: Endpoint) -> int | None:
        """Where it stands among those of the last call; None: it does not, since its numbers are too old."""
        return None if self._pool is None else self._pool.row_by_key().get(endpoint.key)


def _paired(worker: Endpoint, pool: EndpointPool) -> Mask:
    paired = [pairs(one, worker) and one.key != worker.key for one in pool.endpoints]
    return np.array(paired, dtype=np.bool_)


def decodes(pool: EndpointPool) -> Floats | None:
    """1 for endpoints that decode, 0 for those that only compute prompts; None if all decode."""
    found: Floats | None = pool.note("decodes", lambda: _decodes(pool))
    return found


def _decodes(pool: EndpointPool) -> Floats | None:
    roles = [one.labels.get(ROLE_LABEL) for one in pool.endpoints]
    column = np.array([float(role is None or role in DECODE_ROLES) for role in roles])
    return None if column.all() else column
