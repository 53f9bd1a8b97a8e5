"""Keeps the work ahead of each endpoint: the prompts that were sent there and are not computed yet."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np

from epp.endpoints.endpoint import NEVER, Column, Endpoint, EndpointPool, Floats, Indices
from epp.endpoints.worker_metrics import PROMPT_TOKENS
from epp.request.inference_request import TOKEN_BYTES, InferenceRequest, PrefixChain, RequestData
from epp.scheduling.prefix.producer import PrefixCacheProducer
from epp.scheduling.work_ahead.adapters import LoadedAdapters
from epp.scheduling.work_ahead.agreement import Hashes, credit_preferred, hashes_of
from epp.scheduling.work_ahead.ledger import PoolTotals, SentPrompt, WorkLedger

WORK_AHEAD_PRODUCER: Final = "work-ahead-producer"
_WAITING: Final = int(Column.WAITING)  # numpy takes an int faster than an enumeration's member
_RUNNING: Final = int(Column.RUNNING)
_SCRAPED_AT: Final = int(Column.SCRAPED_AT)
_MAX_LORA: Final = int(Column.MAX_LORA)
_PERIOD: Final = int(Column.PERIOD)
_UNREPORTED: Final = int(Column.UNREPORTED)
_INFLIGHT: Final = int(Column.INFLIGHT)
_NO_COUNTER: Final = (
    "%s: its metrics page has no counter of prompt tokens that grows as they are computed; "
    "the length of its queue says what is ahead of it"
)
_MAX_POOLS: Final = 4
"""Sets of endpoints whose columns are kept. A picker has one, tests and comparisons may have more."""
_log = logging.getLogger(__name__)


_Sent: TypeAlias = dict[tuple[str, str], tuple[WorkLedger, SentPrompt]]
"""By key of the endpoint."""


@dataclass(eq=False, slots=True)
class _Columns:
    """What is known of the endpoints of one pool, in the order of its rows."""

    endpoints: tuple[Endpoint, ...]
    ahead: Floats
    slowness: Floats
    scraped_at: Floats
    """The page that `ahead` takes into account."""
    rows: dict[tuple[str, str], int]
    hashes: Hashes | None = None
    """Made when they are needed."""


@dataclass(frozen=True, eq=False, slots=True)
class WorkAheadProducer:
    """Keeps the work ahead of each endpoint. `prefixes`: knows which part of a prompt an endpoint holds.

    A worker without a counter of prompt tokens on its page (`PROMPT_TOKENS`) has those prompts ahead that its queue has room
    for, the newest ones; one without a page has a prompt ahead until its response headers arrive, so less is known of it.
    """

    prefixes: PrefixCacheProducer
    _ledgers: dict[tuple[str, str], WorkLedger] = field(init=False, repr=False, default_factory=dict)
    _totals: PoolTotals = field(init=False, repr=False, default_factory=PoolTotals)
    _adapters: LoadedAdapters = field(init=False, repr=False, default_factory=LoadedAdapters)
    _last: list[_Columns] = field(init=False, repr=False, default_factory=list)
    """The columns of the last pools, the newest last."""
    _seen_at: RequestData[float] = field(init=False, repr=False, default_factory=RequestData)
    _sent: RequestData[_Sent] = field(init=False, repr=False, default_factory=RequestData)

    def prepare(self, request: InferenceRequest, pool: EndpointPool) -> None:
        """Take into account the pages that were read since the last request."""
        self._seen_at.keep(request, pool.now)
        columns, rows = self._columns(pool)
        scraped_at = pool.numbers[_SCRAPED_AT]
        changed = (scraped_at != _of(columns.scraped_at, rows)).nonzero()[0]
        if not len(changed):
            return
        computed, numbers = pool.metric(PROMPT_TOKENS), pool.numbers
        for row in changed.tolist():
            at = columns.scraped_at[row if rows is None else rows.item(row)] = scraped_at.item(row)
            ledger = self._ledger(pool.endpoints[row])
            if at in (NEVER, ledger.read_at):  # or it was read for another selection of the endpoints
                continue
            if ledger.read_at == NEVER and computed.item(row) < 0.0:
                _log.info(_NO_COUNTER, pool.endpoints[row].id)
            adapters, slots = pool.adapters[row], numbers.item(_MAX_LORA, row)
            if slots or adapters.active or adapters.waiting:
                self._adapters.see(pool.endpoints[row].key, adapters, int(slots))
            ledger.read(
                computed.item(row),
                numbers.item(_WAITING, row),
                numbers.item(_RUNNING, row),
                at,
                period=numbers.item(_PERIOD, row),
            )
            self._totals.update(ledger)
            self._update(pool.endpoints[row].key, ledger)

    def rehearse(self, request: InferenceRequest, pool: EndpointPool) -> Callable[[], None]:
        """Pages count as read when a request comes, and this is none."""
        known, last = dict(self._ledgers), list(self._last)
        columns = [(one.ahead.copy(), one.slowness.copy(), one.scraped_at.copy()) for one in last]
        unread = [
            ledger.savepoint()
            for endpoint, at in zip(pool.endpoints, pool.numbers[_SCRAPED_AT].tolist(), strict=True)
            if (ledger := known.get(endpoint.key)) is not None and ledger.read_at != at
        ]
        savepoints = [*unread, self._totals.savepoint(), self._adapters.savepoint()]

        def restore() -> None:
            for roll_back in savepoints:
                roll_back()
            self._ledgers.clear()
            self._ledgers.update(known)
            self._last[:] = last
            for one, (ahead, slowness, scraped_at) in zip(last, columns, strict=True):
                one.ahead, one.slowness, one.scraped_at = ahead, slowness, scraped_at

        self.prepare(request, pool)
        return restore

    def told(
        self, request: InferenceRequest, pool: EndpointPool, hashes: Sequence[int], units: int, layout: int
    ) -> None:
        """Another picker's prompt is ahead as well: then the pages' counters are matched exactly."""
        self.prepare(request, pool)

    def picked(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        """Its prompt is ahead of whatever comes next. Called before `prefixes` claims the prompt for them."""
        now = self._seen_at.of(request)
        if now is None:
            return
        sent: _Sent = {}
        tokens = prompt_tokens(request)
        for endpoint in endpoints:
            if endpoint.key in sent:  # a helper that was chosen too
                continue
            missing = max(1.0, tokens - self.prefixes.held(request, endpoint))
            sent[endpoint.key] = self._send(endpoint, tokens, missing, now)
            self._adapters.sent(endpoint.key, request.model)
        self._sent.keep(request, sent)

    def served(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        """A response that is not streamed is complete; the others are ahead until the counter has grown by them."""
        sent = self._sent.of(request)
        if sent is None:
            return
        keys = {endpoint.key for endpoint in endpoints}
        for key, (ledger, prompt) in sent.items():
            if key not in keys:
                self._fail(key, ledger, prompt)
            elif not (request.streaming and ledger.follows(prompt)):
                self._withdraw(key, ledger, prompt)

    def failed(self, request: InferenceRequest) -> None:
        for key, (ledger, prompt) in (self._sent.of(request) or {}).items():
            self._fail(key, ledger, prompt)

    def sized(self, endpoint: Endpoint, tokens: int) -> None:
        pass

    def forget(self, endpoint: Endpoint) -> None:
        self._forget(endpoint.key)

    def retain(self, endpoints: Sequence[Endpoint]) -> None:
        present = {endpoint.key for endpoint in endpoints}
        for key in self._ledgers.keys() - present:
            self._forget(key)
        self._last.clear()

    def ahead(self, pool: EndpointPool) -> Floats:
        """Tokens of prompts ahead of each endpoint, not to be changed."""
        columns, rows = self._columns(pool)
        return _of(columns.ahead, rows)

    def slowness(self, pool: EndpointPool) -> Floats:
        """How many times longer each endpoint takes than the pool's average, not to be changed."""
        columns, rows = self._columns(pool)
        return _of(columns.slowness, rows)

    def adapter_loads(self, request: InferenceRequest, pool: EndpointPool) -> Floats | None:
        """Loads of an adapter that must be done first, for each endpoint; None if the request is for no adapter."""
        return self._adapters.loads(request.model, pool)

    @property
    def speed(self) -> float:
        """The average endpoint's speed, in tokens of prompts a second; 0 until it is learnt."""
        return self._totals.speed

    def agree(
        self, missing: Floats, request: InferenceRequest, chain: PrefixChain, held: Floats, pool: EndpointPool
    ) -> None:
        """If other pickers send to these endpoints too, believe of new prompts what they may know: agreement.py."""
        if not self._totals.others_send:
            return
        columns, rows = self._columns(pool)
        if columns.hashes is None:
            columns.hashes = hashes_of(columns.endpoints)
        hashes = columns.hashes if rows is None else columns.hashes[rows]
        credit_preferred(missing, request, chain, held, hashes)

    def _forget(self, key: tuple[str, str]) -> None:
        ledger = self._ledgers.pop(key, None)
        if ledger is not None:
            self._totals.forget(ledger)
            self._adapters.forget(key)
            self._last.clear()

    def _columns(self, pool: EndpointPool) -> tuple[_Columns, Indices | None]:
        """The columns of all endpoints, and the rows of the pool among them; None: all."""
        if pool.selected_from is None:
            return self._columns_of(pool.endpoints), None
        return self._columns_of(pool.selected_from[0]), pool.selected_from[1]

    def _columns_of(self, endpoints: tuple[Endpoint, ...]) -> _Columns:
        # the same endpoints come as the same tuple until one of them changes, so identity is enough
        last = self._last
        for columns in last:
            if columns.endpoints is endpoints:
                return columns
        keys = [endpoint.key for endpoint in endpoints]
        found = [self._ledgers.get(key) for key in keys]
        ahead = np.array([0.0 if ledger is None else ledger.ahead for ledger in found])
        slowness = np.array([1.0 if ledger is None else self._totals.slowness(ledger) for ledger in found])
        rows = {key: row for row, key in enumerate(keys)}
        columns = _Columns(endpoints, ahead, slowness, np.full(len(keys), np.nan), rows)
        last[:] = [*last[1 - _MAX_POOLS :], columns]
        return columns

    def _ledger(self, endpoint: Endpoint) -> WorkLedger:
        ledger = self._ledgers.get(endpoint.key)
        if ledger is None:
            ledger = self._ledgers[endpoint.key] = WorkLedger()
        return ledger

    def _send(
        self, endpoint: Endpoint, tokens: float, missing: float, now: float
    ) -> tuple[WorkLedger, SentPrompt]:
        ledger = self._ledger(endpoint)
        prompt = ledger.send(tokens, missing, now)
        self._update(endpoint.key, ledger)
        return ledger, prompt

    def _fail(self, key: tuple[str, str], ledger: WorkLedger, prompt: SentPrompt) -> None:
        ledger.fail(prompt)
        self._update(key, ledger)

    def _withdraw(self, key: tuple[str, str], ledger: WorkLedger, prompt: SentPrompt) -> None:
        ledger.withdraw(prompt)
        self._update(key, ledger)

    def _update(self, key: tuple[str, str], ledger: WorkLedger) -> None:
        # after the endpoint's process was replaced, its key has another ledger
        if self._ledgers.get(key) is not ledger:
            return
        for columns in self._last:
            row = columns.rows.get(key)
            if row is not None:
                columns.ahead[row] = ledger.ahead
                columns.slowness[row] = self._totals.slowness(ledger)


def _of(column: Floats, rows: Indices | None) -> Floats:
    """The numbers of a selection; None: all."""
    if rows is None:
        return column
    selected: Floats = column[rows]
    return selected


def prompt_tokens(request: InferenceRequest) -> float:
    """As `InferenceRequest.prompt_tokens`, and not rounded up: a counter would seem to lag by half a token a prompt."""
    return max(1.0, request.prompt_size / TOKEN_BYTES)
