"""Picks the endpoint where a request costs least: the work ahead of it, its own missing prompt, and what it delays.

cost = slowness x (a x ahead - c x under way + missing x (balance + interference x requests) + crowding x again + request_tokens x requests
+ b x beyond + adapter), in prompt tokens.

`ahead`: prompts that were sent there and are not computed yet. `missing`: tokens of this prompt that its cache does not
hold. `requests`: those that wait or run there; each slows the others down while it answers, and computing a prompt slows
all of them down, and where prompts only wait for one another, as many that come behind it. `again`: tokens
that another endpoint holds, and `crowding`: half the square of the share of endpoints with something ahead, times `a` if that is
less than 1, since computing them a second time delays whoever comes while others wait. `slowness`: how many times longer this worker takes than the one in the middle of its pool, learnt. `adapter`: what the
average worker computes while a LoRA adapter is loaded, where that must be done first. `beyond`: those of the requests for which
the worker has no room yet. `under way`: tokens ahead that may be computed since the last were. `balance`: 1, but for the first requests more
where more tokens were sent, so that new prefixes, whose followers go where they are, are spread. `a`, `b` and `c` are learnt from the
times of first bytes (`cost_model.py`); 1, 0 and 0 until then.

benchmarks/routing/README.md compares it with other ways to pick.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from epp.endpoints.endpoint import EndpointPool, Floats, Indices
from epp.request.inference_request import InferenceRequest
from epp.scheduling.plugin import DataProducer
from epp.scheduling.prefix.scorer import units_of_all
from epp.scheduling.work_ahead.columns import PoolColumns, of_rows, prompt_tokens, requests_at
from epp.scheduling.work_ahead.producer import WorkAheadProducer
from epp.scheduling.work_ahead.remote_prefill import CANDIDATE, decodes

REQUEST_TOKENS: Final = 150.0
INTERFERENCE: Final = 0.3
ADAPTER_LOAD_SECONDS: Final = 0.5
"""The costs that a configuration can set. benchmarks/routing/README.md says which values were tried."""
_AGAIN: Final = 0.5
"""By how much computing a prompt again delays others while all endpoints have something ahead. With more, a worker that hides its
queue gets too much.
"""
_SCALE: Final = 8192.0
"""The cost, in tokens, whose score is one half."""


@dataclass(frozen=True, slots=True)
class LeastCostScorer:
    """1 for a request that costs nothing, one half for `_SCALE` tokens. The module's docstring has the terms."""

    producer: WorkAheadProducer
    request_tokens: float = REQUEST_TOKENS
    interference: float = INTERFERENCE
    adapter_load_seconds: float = ADAPTER_LOAD_SECONDS

    @property
    def published_only(self) -> bool:  # a class attribute of a compiled dataclass would be one of its fields
        return False

    @property
    def producers(self) -> tuple[DataProducer, ...]:
        return (self.producer, self.producer.prefixes)

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        cost = self.cost(request, pool)
        cost += _SCALE
        return np.divide(_SCALE, cost, out=cost)

    def unlearnt_score(self, request: InferenceRequest, pool: EndpointPool) -> Floats | None:
        """With the constants in place of what first bytes taught. None too where a prompt may be computed elsewhere: that is
        more than a score.
        """
        if not self.producer.model.learnt or CANDIDATE.of(request) is not None:
            return None
        restore = self.producer.use_constants()
        try:
            return self.score(request, pool)
        finally:
            restore()

    def cost(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        """In tokens of prompts, for each endpoint."""
        decoding = decodes(pool)
        requests = requests_at(pool, decoding)
        missing = self._missing(request, pool)
        self.producer.scored.keep(request, pool, missing, requests)
        columns, rows = self.producer.ledgers.columns(pool)
        # where nothing is ahead, as often in a small pool, these terms are 0
        busy = np.count_nonzero(of_rows(columns.ahead, rows)) / max(1, len(pool))
        crowding = _AGAIN * min(self.producer.model.ahead, 1.0) * busy * busy
        # those that compute prompts for others get all there are
        spread = of_rows(columns.balance, rows) if self.producer.cold and decoding is None else 1.0
        cost = self._of_prompt(missing, requests, crowding, spread)
        slowness = of_rows(columns.slowness, rows)
        ahead = self.ahead(columns, rows, pool) if busy else of_rows(columns.ahead_cost, rows)
        if busy:
            cost += ahead
        remote_prefill = CANDIDATE.of(request)
        if remote_prefill is not None:
            cost = remote_prefill.compare(cost, ahead, missing, slowness, pool)
        beyond = self.producer.model.beyond
        if beyond and columns.limited:
            over: Floats = requests - of_rows(columns.room, rows)
            np.maximum(over, 0.0, out=over)
            over *= beyond
            cost += over
        cost += requests * self.request_tokens
        loads = self.producer.adapter_loads(request, pool)
        if loads is not None:
            cost += loads * (self.adapter_load_seconds * self.producer.speed)
        cost *= slowness
        if remote_prefill is not None and remote_prefill.worker is None:
            remote_prefill.offer(cost, pool, self.producer.transfers.in_tokens(self.producer.speed))
        return cost

    def _of_prompt(
        self, missing: Floats, requests: Floats, crowding: float, spread: Floats | float
    ) -> Floats:
        """To compute it, and what that delays."""
        cost: Floats = requests * self.interference
        if crowding:
            cost += crowding
        cost += spread
        cost *= missing
        if crowding:
            cost -= crowding * missing.item(missing.argmin())  # a third of the time of `min`
        return cost

    def ahead(self, columns: PoolColumns, rows: Indices | None, pool: EndpointPool) -> Floats:
        """Return what is ahead, less what may be computed of it by now."""
        model, ahead = self.producer.model, of_rows(columns.ahead_cost, rows)
        if not model.rate:
            return ahead
        computed: Floats = pool.now - of_rows(columns.since, rows)
        computed *= model.rate
        np.minimum(computed, of_rows(columns.ahead, rows), out=computed)
        computed *= model.under_way
        return np.subtract(ahead, computed, out=computed)

    def _missing(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        tokens = prompt_tokens(request)
        chain = self.producer.prefixes.chain(request)
        if chain is None:
            return np.full(len(pool), tokens)
        held = units_of_all(self.producer.prefixes.matches(request, pool), len(pool))
        missing: Floats = held * -chain.unit_tokens
        missing += tokens
        np.maximum(missing, 1.0, out=missing)
        self.producer.agree(missing, request, chain, held, pool)
        return missing
