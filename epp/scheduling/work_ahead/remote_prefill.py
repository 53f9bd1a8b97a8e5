"""Finds what a request costs where its prompt may be computed on a worker of its own, and which worker that is.

cost = slowness x max(a x ahead, remote) + ..., if that is less than computing the prompt at the decode worker itself:
slowness x (a x ahead + missing x (1 + interference x requests)) + ...

`remote`: the cost of the prompt at the prefill worker, while the decode worker goes on with what is ahead of it, and of the
transfer: a fixed part and a part for each token that the decode worker lacks (`transfer.py`).
"""

from collections.abc import Sequence
from math import inf
from typing import Final

import numpy as np

from epp.endpoints.endpoint import Endpoint, EndpointPool, Floats, Indices, Key, Mask
from epp.request.inference_request import RequestData
from epp.scheduling.pairing import REVISION_LABEL

CANDIDATE: Final[RequestData["RemotePrefill"]] = RequestData()
"""A prompt could be computed on these, while the decode worker is chosen."""


class RemotePrefill:
    """First hears what a prompt costs on each worker for prefill; once one is chosen, compares for each decode worker.

    `worker`: the one that was chosen; None: not yet. During a rollout the cheapest one of each other revision counts beside it, for the
    decode workers of that revision. `apart`: where a request is cheaper with its worker than without; `local` and `remote`: the
    costs of the prompt both ways, in tokens of the average worker.
    """

    __slots__ = ("_costs", "_found", "_pool", "_share", "_transfer", "apart", "local", "remote", "worker")

    def __init__(self) -> None:
        self.worker: Endpoint | None = None
        # bounded: the revisions of the workers
        self._found: dict[str | None, tuple[Endpoint, float]] = {}
        self._pool: EndpointPool | None = None
        self._transfer = self._share = 0.0
        self._costs = self.local = self.remote = np.zeros(0)
        self.apart: Mask = np.zeros(0, dtype=np.bool_)

    def offer(self, costs: Floats, pool: EndpointPool, transfer: tuple[float, float]) -> None:
        """Take the cost of the prompt on these, and of its KV cache's way elsewhere: as a whole, and each token."""
        self._costs, self._pool = costs.copy(), pool
        self._transfer, self._share = transfer

    def choose(self, worker: Endpoint) -> None:
        """Take this one, unless its numbers are so old that its cost is not known."""
        pool, row = self._pool, self.row(worker)
        if pool is not None and row is not None:
            self.worker = worker
            self._take(worker, row)
            for revision, rows in pool.note("revisions", lambda: _by_revision(pool)).items():
                if revision not in self._found:
                    late = pool.late()
                    punctual = rows if late is None else rows[~late[rows]]
                    if len(punctual):
                        cheapest = int(punctual[self._costs[punctual].argmin()])
                        self._take(pool.endpoints[cheapest], cheapest)
        self._pool = None

    def _take(self, worker: Endpoint, row: int) -> None:
        cost = self._costs.item(row) + self._transfer
        self._found[worker.labels.get(REVISION_LABEL)] = worker, cost

    def worker_for(self, decode: Endpoint) -> Endpoint | None:
        """Finds who would compute the prompt for it; None: nobody of its revision."""
        found = self._found.get(decode.labels.get(REVISION_LABEL))
        return None if found is None else found[0]

    def compare(
        self, local: Floats, ahead: Floats, missing: Floats, slowness: Floats, pool: EndpointPool
    ) -> Floats:
        """The lower cost of the prompt and of what is ahead of it, before `slowness` counts. `local`: at the decode worker."""
        if self.worker is None:
            return local
        keys = tuple([(revision, worker.key) for revision, (worker, _) in self._found.items()])
        offers = pool.note(("offers", keys), lambda: _offers(keys, pool))
        costs: Floats = np.array([cost for _, cost in self._found.values()] + [inf])[offers]
        remote: Floats = np.maximum(ahead, (costs + missing * self._share) / slowness)
        self.apart = remote < local
        self._pool, self.local, self.remote = pool, local * slowness, remote * slowness
        return np.where(self.apart, remote, local)

    def row(self, endpoint: Endpoint) -> int | None:
        """Return its row among those of the last call; None: it has none, since its numbers are too old."""
        return None if self._pool is None else self._pool.row_by_key().get(endpoint.key)


def _by_revision(pool: EndpointPool) -> dict[str | None, Indices]:
    # bounded: the endpoints
    rows: dict[str | None, list[int]] = {}
    for row, one in enumerate(pool.endpoints):
        rows.setdefault(one.labels.get(REVISION_LABEL), []).append(row)
    return {revision: np.array(found) for revision, found in rows.items()}


def _offers(keys: Sequence[tuple[str | None, Key]], pool: EndpointPool) -> Indices:
    """For each endpoint, which of the workers would compute its prompts; -1: none, or itself."""
    number = {revision: (at, key) for at, (revision, key) in enumerate(keys)}
    found = [(one, number.get(one.labels.get(REVISION_LABEL))) for one in pool.endpoints]
    return np.array([-1 if offer is None or offer[1] == one.key else offer[0] for one, offer in found])


def decodes(pool: EndpointPool) -> Floats | None:
    """1 for endpoints that decode, 0 for those that only compute prompts; None if all decode."""
    found: Floats | None = pool.note("decodes", lambda: _decodes(pool))
    return found


def _decodes(pool: EndpointPool) -> Floats | None:
    column = np.array([float(one.decodes) for one in pool.endpoints])
    return None if column.all() else column
