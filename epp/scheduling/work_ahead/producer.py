"""Keeps the work ahead of each endpoint: the prompts that were sent there and are not computed yet."""

import logging
from collections.abc import Callable, Mapping, Sequence
from math import inf, sqrt
from typing import Any, Final, TypeAlias, cast

import numpy as np

from adsum.histogram import Histogram
from epp.endpoints.endpoint import NEVER, Column, Endpoint, EndpointPool, Floats, Key
from epp.endpoints.worker_metrics import PROMPT_TOKENS
from epp.request.inference_request import TOKEN_BYTES, InferenceRequest, PrefixChain, RequestData
from epp.scheduling.pairing import COMPUTED_AT
from epp.scheduling.peer_pick import Fit, PeerPick
from epp.scheduling.plugin import SharedPrefixProducer
from epp.scheduling.prefix.scorer import units_of_all
from epp.scheduling.work_ahead.adapters import LoadedAdapters
from epp.scheduling.work_ahead.columns import ScoredPool, of_rows, prompt_tokens, requests_at, requests_of
from epp.scheduling.work_ahead.cost_model import LEARNT_NUMBERS, UNKNOWN, CostModel, Known
from epp.scheduling.work_ahead.ledger import SentPrompt, WorkLedger
from epp.scheduling.work_ahead.pool_ledgers import PoolLedgers
from epp.scheduling.work_ahead.rendezvous_hashing import credit_preferred, hashes_of
from epp.scheduling.work_ahead.savepoint import Savepoint
from epp.scheduling.work_ahead.transfer import AwaitedTransfer, TransferTimes

_WAITING: Final = int(Column.WAITING)  # numpy takes an int faster than an enumeration's member
_RUNNING: Final = int(Column.RUNNING)
_SCRAPED_AT: Final = int(Column.SCRAPED_AT)
_MAX_LORA: Final = int(Column.MAX_LORA)
_PERIOD: Final = int(Column.PERIOD)
_NO_COUNTER: Final = (
    "%s: its metrics page has no counter of prompt tokens that grows as they are computed; "
    "the length of its queue says what is ahead of it"
)
_log = logging.getLogger(__name__)


_IN_TIME: Final = 1.0
"""Seconds after which a first byte is old news: it says nothing of what is ahead now."""

_Sent: TypeAlias = dict[Key, tuple[WorkLedger, SentPrompt]]
"""By key of the endpoint."""


class WorkAheadProducer:
    """Keeps the work ahead of each endpoint. `prefixes`: knows which part of a prompt an endpoint holds.

    A worker without a counter of prompt tokens on its page (`PROMPT_TOKENS`) has those prompts ahead that its queue has room
    for, the newest ones; one without a page has a prompt ahead until its response headers arrive, so less is known of it.
    """

    def __init__(self, prefixes: SharedPrefixProducer) -> None:
        self.prefixes = prefixes
        self.model = CostModel()
        self.ledgers = PoolLedgers(self.model)
        self.transfers = TransferTimes()
        self.scored = ScoredPool()
        self._adapters = LoadedAdapters()
        self._seen: RequestData[EndpointPool] = RequestData()
        self._sent: RequestData[_Sent] = RequestData()

    def prepare(self, request: InferenceRequest, pool: EndpointPool) -> None:
        """Take into account the pages that were read since the last request."""
        self._seen.keep(request, pool)
        self._read_pages(pool)

    def _read_pages(self, pool: EndpointPool) -> None:
        columns, rows = self.ledgers.columns(pool)
        scraped_at = pool.numbers[_SCRAPED_AT]
        changed = (scraped_at != of_rows(columns.scraped_at, rows)).nonzero()[0]
        if not len(changed):
            return
        computed, numbers = pool.metric(PROMPT_TOKENS), pool.numbers
        for row in changed.tolist():
            at = columns.scraped_at[row if rows is None else rows.item(row)] = scraped_at.item(row)
            ledger = self.ledgers.of(pool.endpoints[row])
            if at in (NEVER, ledger.read_at):  # or it was read for another selection of the endpoints
                continue
            if ledger.read_at == NEVER and computed.item(row) < 0.0:
                _log.info(_NO_COUNTER, pool.endpoints[row].id)
            adapters, slots = pool.adapters[row], numbers.item(_MAX_LORA, row)
            if slots or adapters.active or adapters.waiting:
                self._adapters.see(pool.endpoints[row].key, adapters, int(slots))
            counter = computed.item(row)
            held = (counter < 0.0 or ledger.kind.begins is False) and self._trusts_first_bytes(ledger)
            if held is not ledger.held:
                ledger.hold(held)
            ledger.read(
                counter,
                numbers.item(_WAITING, row),
                numbers.item(_RUNNING, row),
                at,
                period=numbers.item(_PERIOD, row),
            )
            self.ledgers.update(pool.endpoints[row].key, ledger)

    def rehearse(self, request: InferenceRequest, pool: EndpointPool) -> Callable[[], None]:
        """Pages count as read when a request comes, and this is none."""
        savepoint = Savepoint()
        savepoint.keep(self.scored, "request", "pool")
        self.ledgers.save(pool, savepoint)
        self._adapters.save(savepoint)
        self.prepare(request, pool)
        return savepoint.restore

    def peers_picked(self, picks: Sequence[PeerPick], pool: EndpointPool) -> None:
        """Other pickers' prompts are ahead as well: then the pages' counters are matched exactly."""
        self._read_pages(pool)
        for pick in picks:
            sent: _Sent = {}
            tokens = max(1.0, pick.prompt_size / TOKEN_BYTES)
            computed_at = pick.computed_at or pick.endpoints[0].key
            for endpoint, held in zip(pick.endpoints, pick.held, strict=True):
                key = endpoint.key
                if key not in sent:  # a helper may be chosen too
                    ledger = self.ledgers.of(endpoint)
                    missing = max(1.0, tokens - held) if key == computed_at else 1.0
                    prompt = self.ledgers.send(key, ledger, tokens, missing, pool.now)
                    sent[key] = ledger, prompt
                    self._adapters.sent(key, pick.model)
                    # otherwise pages tell
                    if pick.streaming and len(pick.endpoints) == 1 and not ledger.kind.begins:
                        pick.awaited = PeerAnswer(self, key, ledger, prompt)
            pick.data[self] = sent

    def peer_served(self, pick: PeerPick) -> None:
        self._served(cast("_Sent | None", pick.data.get(self)), pick.endpoints, streaming=pick.streaming)

    def peer_failed(self, pick: PeerPick) -> None:
        self._failed(cast("_Sent | None", pick.data.get(self)))

    def picked(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        """Its prompt is ahead of whatever comes next. Called before `prefixes` claims the prompt for them."""
        pool = self._seen.of(request)
        if pool is None:
            return
        sent: _Sent = {}
        tokens = prompt_tokens(request)
        computed_at = COMPUTED_AT.of(request) or endpoints[0].key
        awaits = request.streaming and len(endpoints) == 1 and request.prompt_size > 0
        for endpoint in endpoints:
            key = endpoint.key
            if key in sent:  # a helper that was chosen too
                continue
            ledger = self.ledgers.of(endpoint)
            missing, requests = self._missing_and_requests(request, pool, endpoint, tokens)
            if endpoint is endpoints[0] and key != computed_at and request.streaming:
                request.awaited = AwaitedTransfer(self.transfers, missing)
            if key != computed_at:
                missing = 1.0  # it gets the KV cache of the prompt, or only encodes what is in it
            awaited: AwaitedAnswer | None = None
            if awaits:  # before it counts itself
                awaited = self._await(request, key, ledger, missing, requests, pool.now)
            prompt = self.ledgers.send(key, ledger, tokens, missing, pool.now)
            sent[key] = ledger, prompt
            if awaited is not None:
                awaited.prompt, request.awaited = prompt, awaited
            self._adapters.sent(key, request.model)
        self.scored.forget()
        self._sent.keep(request, sent)

    def _missing_and_requests(
        self, request: InferenceRequest, pool: EndpointPool, endpoint: Endpoint, tokens: float
    ) -> tuple[float, float]:
        """Return what of the prompt it does not hold, and the requests there: as the scorer read them, if it did."""
        scored = self.scored
        # what other pickers may know of the prompt counts in a score only
        if scored.request is request and scored.pool is not None and not self.ledgers.totals.others_send:
            row = self.ledgers.row(scored.pool, endpoint.key)
            if row >= 0:
                return scored.missing.item(row), scored.requests.item(row)
        return max(1.0, tokens - self.prefixes.held(request, endpoint)), self._requests(pool, endpoint.key)

    def served(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        """A response that is not streamed is complete; the others are ahead until the counter has grown by them."""
        self._served(self._sent.of(request), endpoints, streaming=request.streaming)

    def _served(self, sent: _Sent | None, endpoints: Sequence[Endpoint], *, streaming: bool) -> None:
        if sent is None:
            return
        keys = {endpoint.key for endpoint in endpoints}
        for key, (ledger, prompt) in sent.items():
            if key not in keys:
                ledger.fail(prompt)
            elif streaming and key != endpoints[0].key:
                ledger.finish(prompt)
            elif not streaming:
                ledger.end(prompt)
            elif not (ledger.held or ledger.follows(prompt)):
                ledger.withdraw(prompt)
            else:
                continue
            self.ledgers.update_ahead(key, ledger)

    def failed(self, request: InferenceRequest) -> None:
        self._failed(self._sent.of(request))

    def _failed(self, sent: _Sent | None) -> None:
        for key, (ledger, prompt) in (sent or {}).items():
            ledger.fail(prompt)
            self.ledgers.update_ahead(key, ledger)

    def sized(self, endpoint: Endpoint, tokens: int) -> None:
        pass

    def forget(self, endpoint: Endpoint) -> None:
        self._forget(endpoint.key)

    def retain(self, endpoints: Sequence[Endpoint]) -> None:
        present = {endpoint.key for endpoint in endpoints}
        for key in self.ledgers.by_key.keys() - present:
            self._forget(key)
        self.ledgers.forget_columns()

    def ahead(self, pool: EndpointPool) -> Floats:
        """Tokens of prompts ahead of each endpoint, not to be changed."""
        columns, rows = self.ledgers.columns(pool)
        return of_rows(columns.ahead, rows)

    def slowness(self, pool: EndpointPool) -> Floats:
        """How many times longer each endpoint takes than the one in the pool's middle, not to be changed."""
        columns, rows = self.ledgers.columns(pool)
        return of_rows(columns.slowness, rows)

    def first_byte(self, awaited: "AwaitedAnswer", at: float, now: float) -> None:
        """The answer to a streamed request began at `at`, as is heard now."""
        model, ledger, prompt = self.model, awaited.ledger, awaited.prompt
        if prompt is None or at < prompt.sent_at:
            return
        model.in_time = in_time = now - at < _IN_TIME
        if self.ledgers.by_key.get(awaited.key) is not ledger:
            return
        if model.wants(now):
            self._learn(awaited, at - prompt.sent_at)
        if in_time:
            self.answer_began(awaited, at)

    def answer_began(self, awaited: "AwaitedAnswer | PeerAnswer", at: float) -> None:
        """The answer began at `at`, which was heard of in time."""
        ledger, prompt = awaited.ledger, awaited.prompt
        if prompt is not None and self.ledgers.by_key.get(awaited.key) is ledger:
            ledger.begin(prompt, at)
            if ledger.held:
                self.ledgers.update_ahead(awaited.key, ledger)

    def _learn(self, awaited: "AwaitedAnswer", seconds: float) -> None:
        model, slowness, predicted = self.model, awaited.slowness, awaited.seconds
        if predicted >= 0.0:
            predicted /= slowness
        if model.observe(awaited.ledger.pace, awaited.known, seconds / slowness, predicted, slowness):
            self.ledgers.update_costs()

    @property
    def own_fit(self) -> Fit | None:
        """Return what this picker learnt of costs, for others."""
        return self.model.own

    def use_peer_fits(self, fits: Sequence[Fit]) -> None:
        """The fits of all other pickers, in place of those before."""
        if self.model.use_peer_fits(fits):
            self.ledgers.update_costs()

    def request_ended(self, awaited: "AwaitedAnswer | PeerAnswer") -> None:
        """The request is over: if neither a first byte nor a page will say so, its prompt is not ahead any more."""
        ledger, prompt = awaited.ledger, awaited.prompt
        if prompt is not None and ledger.held and not ledger.follows(prompt):
            ledger.withdraw(prompt)
            self.ledgers.update_ahead(awaited.key, ledger)

    def _trusts_first_bytes(self, ledger: WorkLedger) -> bool:
        """Whether first bytes may say what is ahead of a worker whose counter does not."""
        return self.model.learnt and self.model.in_time and ledger.pace.agrees

    @property
    def predictions(self) -> Histogram:
        return self.model.predictions

    @property
    def prediction_errors(self) -> Histogram:
        return self.model.errors

    def expected(self, request: InferenceRequest, pool: EndpointPool, endpoint: Endpoint) -> float:
        ledger = self.ledgers.by_key.get(endpoint.key, WorkLedger())
        missing = max(1.0, prompt_tokens(request) - self.prefixes.held(request, endpoint))
        requests = self._requests(pool, endpoint.key)
        awaited = self._await(request, endpoint.key, ledger, missing, requests, pool.now)
        return UNKNOWN if awaited is None else awaited.seconds

    def foresee(self, request: InferenceRequest, pool: EndpointPool) -> float:
        if not self.model.learnt or not request.streaming or not len(pool):
            return UNKNOWN
        self.prefixes.prepare(request, pool)
        self.prepare(request, pool)
        expected = self.expected_of_all(request, pool)
        # it may wait for long, and is prepared again when it goes
        request.prefixes.clear()
        request.data.pop(self._seen, None)
        return UNKNOWN if expected is None else float(expected.min())

    def expected_of_all(self, request: InferenceRequest, pool: EndpointPool) -> Floats | None:
        """Seconds to the first byte at each endpoint, of a request that was prepared; None: not known."""
        of_all = self.model.numbers
        if not self.model.learnt or not request.streaming or self._adapters.is_adapter(request.model):
            return None
        fixed, of_missing, of_ahead, of_request, of_beyond, of_second = of_all
        columns, rows = self.ledgers.columns(pool)
        requests, tokens = requests_at(pool), prompt_tokens(request)
        chain = self.prefixes.chain(request)
        missing: Floats = np.full(len(pool), tokens)
        if chain is not None:
            held = units_of_all(self.prefixes.matches(request, pool), len(pool))
            np.maximum(missing - held * chain.unit_tokens, 1.0, out=missing)
        ahead = of_rows(columns.ahead, rows)
        expected: Floats = missing * (of_missing / 1000.0) + ahead * (of_ahead / 1000.0)
        under_way = np.minimum(pool.now - of_rows(columns.since, rows), ahead * (of_missing / 1000.0))
        expected += fixed - of_second * under_way
        expected += requests * of_request
        expected += np.maximum(requests - of_rows(columns.room, rows), 0.0) * of_beyond
        np.maximum(expected, 0.0, out=expected)
        expected *= of_rows(columns.slowness, rows)
        return expected

    @property
    def error(self) -> float:
        """The median share by which the last predictions were wrong."""
        return self.model.error or 0.0

    def use_constants(self) -> Callable[[], None]:
        """Let costs be those of the constants, until the returned function is called."""
        model = self.model
        ahead, beyond, rate = model.ahead, model.beyond, model.rate
        model.ahead, model.beyond, model.rate = 1.0, 0.0, 0.0
        self.ledgers.update_costs()

        def restore() -> None:
            model.ahead, model.beyond, model.rate = ahead, beyond, rate
            self.ledgers.update_costs()

        return restore

    def learnt(self) -> Mapping[str, Any]:
        """Seconds that requests take on the average worker, each with its standard error, and what they change in a cost."""
        model = self.model
        numbers = zip(LEARNT_NUMBERS, model.numbers, model.variances, strict=True)
        return {
            "used": model.learnt,
            "answers": model.answers,
            "peers": model.peers,
            "median_error": model.error,
            "seconds": {
                name: [round(value, 6), round(sqrt(variance), 6)] for name, value, variance in numbers
            }
            if model.learnt
            else None,
            "ahead": round(model.ahead, 3),
            "beyond": round(model.beyond, 1),
            "transfer": self.transfers.learnt(),
        }

    def learnt_of(self, endpoint: Endpoint) -> Mapping[str, Any]:
        """How many tokens are ahead of it, what its counter counts and what else was learnt of it."""
        ledger = self.ledgers.by_key.get(endpoint.key)
        if ledger is None:
            return {}
        return {
            "ahead": round(ledger.ahead),
            "slowness": round(self.ledgers.totals.slowness(ledger), 3),
            "counter": ledger.counts,
            "room": ledger.room if ledger.room < inf else None,
            "agrees": ledger.pace.agrees,
        }

    def _await(
        self,
        request: InferenceRequest,
        key: Key,
        ledger: WorkLedger,
        missing: float,
        requests: float,
        now: float,
    ) -> "AwaitedAnswer | None":
        """Note what is known of the endpoint, to predict the first byte and to learn from it. None: it would teach something else."""
        if requests < 0.0 or self._adapters.is_adapter(request.model):
            return None
        beyond, ahead, slowness = requests - ledger.room, ledger.ahead, ledger.slowness
        since = (now - ledger.since) / slowness if ahead else 0.0
        known = missing, ahead, requests, max(0.0, beyond), since
        seconds = self.model.predict(known)
        return AwaitedAnswer(
            self, key, ledger, known, slowness, seconds if seconds < 0.0 else seconds * slowness
        )

    def _requests(self, pool: EndpointPool, key: Key) -> float:
        """Requests that wait or run there; negative: the pool does not have the endpoint."""
        row = self.ledgers.row(pool, key)
        return UNKNOWN if row < 0 else requests_of(pool, row)

    def adapter_loads(self, request: InferenceRequest, pool: EndpointPool) -> Floats | None:
        """Loads of an adapter that must be done first, for each endpoint; None if the request is for no adapter."""
        return self._adapters.loads(request.model, pool)

    @property
    def cold(self) -> bool:
        """Whether so few requests were sent that most caches are cold."""
        return self.ledgers.totals.cold

    @property
    def speed(self) -> float:
        """The speed of the endpoint in the middle, in tokens of prompts a second; 0 until it is learnt."""
        return self.ledgers.totals.speed

    def agree(
        self, missing: Floats, request: InferenceRequest, chain: PrefixChain, held: Floats, pool: EndpointPool
    ) -> None:
        """If other pickers send to these endpoints too, believe of new prompts what they may know: rendezvous_hashing.py."""
        if not self.ledgers.totals.others_send:
            return
        columns, rows = self.ledgers.columns(pool)
        if columns.hashes is None:
            columns.hashes = hashes_of(columns.endpoints)
        hashes = columns.hashes if rows is None else columns.hashes[rows]
        credit_preferred(missing, request, chain, held, hashes)

    def _forget(self, key: Key) -> None:
        self.ledgers.forget(key)
        self._adapters.forget(key)


class PeerAnswer:
    """The first byte of an answer to a peer's request, which says when its prompt is not ahead any more."""

    __slots__ = ("_producer", "key", "ledger", "prompt", "seconds")

    def __init__(self, producer: WorkAheadProducer, key: Key, ledger: WorkLedger, prompt: SentPrompt) -> None:
        self._producer = producer
        self.key = key
        self.ledger = ledger
        self.prompt: SentPrompt | None = prompt
        self.seconds = UNKNOWN

    def came(self, at: float, now: float, answered_at: float) -> None:
        self._producer.answer_began(self, at)

    def ended(self) -> None:
        self._producer.request_ended(self)


class AwaitedAnswer:
    """A streamed request whose first byte has not come. `known`: what `CostModel.predict` was given. `seconds`: until that
    byte, as expected; UNKNOWN: nothing was learnt.
    """

    __slots__ = ("_producer", "key", "known", "ledger", "prompt", "seconds", "slowness")

    def __init__(
        self,
        producer: WorkAheadProducer,
        key: Key,
        ledger: WorkLedger,
        known: Known,
        slowness: float,
        seconds: float,
    ) -> None:
        self._producer = producer
        self.key = key
        self.ledger = ledger
        self.known = known
        self.slowness = slowness
        self.seconds = seconds
        self.prompt: SentPrompt | None = None

    def came(self, at: float, now: float, answered_at: float) -> None:
        self._producer.first_byte(self, at, now)

    def ended(self) -> None:
        self._producer.request_ended(self)
