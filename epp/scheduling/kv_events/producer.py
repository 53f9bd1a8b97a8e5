"""The data producer that knows what workers' prefix caches hold, because they say so.

A prompt is compared with that where its tokens are known and the worker's events have come without a gap. Elsewhere, and for
what no event can say yet, the estimate of approx-prefix-cache-producer counts: it learns of every pick all the same.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

import numpy as np

from epp.endpoints.endpoint import Endpoint, EndpointPool, Floats, Key
from epp.request.inference_request import InferenceRequest, PrefixChain, RequestData
from epp.scheduling.decision import CacheEvidence
from epp.scheduling.kv_events.cache_index import CacheIndex
from epp.scheduling.kv_events.event_stream import Knowledge, KvEventStream
from epp.scheduling.kv_events.event_trust import EventTrusts, Prediction
from epp.scheduling.kv_events.prompt_tokens import TokensBy, given_tokens, pack_tokens, salt_of
from epp.scheduling.kv_events.settings import KvEventSettings
from epp.scheduling.kv_events.token_wait import TokenWait
from epp.scheduling.peer_pick import PeerPick
from epp.scheduling.pick import Credit
from epp.scheduling.plugin import AdmissionController
from epp.scheduling.prefix.index import PrefixIndex
from epp.scheduling.prefix.producer import PrefixCacheProducer, PrefixHits
from epp.scheduling.prefix.scorer import units_of_all

PRODUCER: Final = "precise-prefix-cache-producer"
_TOKEN_BYTES: Final = 4
_AS_ESTIMATED: Final = (
    "prepare",
    "picked",
    "served",
    "failed",
    "matches",
    "held",
    "chain",
    "peers_picked",
    "peer_served",
    "peer_failed",
)
"""The estimate does these alone until a worker publishes events: a pick costs no more than without this producer."""
_MOST_CLAIMED: Final = 1 << 40
"""Units: what is under way at one worker is bounded by its requests."""


class _Found:
    """Says who holds one prompt: `held`, the share of it by endpoint, of all in `known` that hold any.

    `known`: whether that is all that the endpoint holds. If not, the estimate may say more. `reported`: the same, with those
    whose word does not count. `tokens`: of the prompt.
    """

    __slots__ = ("held", "known", "reported", "tokens")

    def __init__(
        self, known: Mapping[Key, bool], reported: Mapping[Key, bool], held: Mapping[Key, float], tokens: int
    ) -> None:
        self.known = known
        self.reported = reported
        self.held = held
        self.tokens = tokens


class PrecisePrefixCacheProducer:
    """`estimate`: learns of the same requests, and says what the others hold.

    `ask_for_tokens`: set by who can ask workers; begins to find out the tokens of a prompt, which `tokens_found` is told, and
    returns whether it does.
    """

    picked_last = True
    """Others ask first what an endpoint held before."""
    plugin_type = PRODUCER
    before_flow_control = True

    def __init__(self, settings: KvEventSettings, estimate: PrefixCacheProducer, *, seed: int = 0) -> None:
        self.settings = settings
        self.estimate = estimate
        self.wrapped = (estimate,)
        self.index = CacheIndex(settings.most_blocks, seed)
        self.hits = estimate.hits
        self.ask_for_tokens: Callable[[InferenceRequest], bool] | None = None
        self._wait: TokenWait | None = None
        self.tokens_by = dict.fromkeys(TokensBy, 0)
        """Prompts whose tokens were asked for."""
        self.prompts_known = 0
        """Prompts that were compared with what workers say; and those that were not, since their tokens are unknown."""
        self.prompts_estimated = 0
        # bounded: by the workers, and their sockets
        self._streams: dict[Key, list[KvEventStream]] = {}
        self._under_way = PrefixIndex()
        """Claims of requests whose blocks no event has named yet."""
        self._claims: RequestData[dict[Key, int]] = RequestData()
        self._tokens: RequestData[bytes] = RequestData()
        self._found: RequestData[_Found] = RequestData()
        self._state = -1
        self._masks: dict[int, int] = {}
        """By the size of a block, the bits of all publishers that are believed."""
        self._key_of_bit: dict[int, Key] = {}
        self._known: dict[Key, bool] = {}
        self._reported: dict[Key, bool] = {}
        self.trusts = EventTrusts(self.index.changed)
        self._is_estimating = True
        for name in _AS_ESTIMATED:
            setattr(self, name, getattr(estimate, name))

    def _begin(self) -> None:
        """Believe from now on what workers say."""
        self._is_estimating = False
        for name in _AS_ESTIMATED:
            delattr(self, name)
        self.hits = PrefixHits()
        for key, credit in self.estimate.hits.credits.items():
            self.hits.credits[key] = Credit(credit.held, credit.total)

    def open_stream(self, key: Key, *, can_replay: bool) -> KvEventStream:
        """The endpoint publishes events, which come by this stream."""
        if self._is_estimating:
            self._begin()
        stream = KvEventStream(self.index, self.index.add_publisher(), can_replay=can_replay)
        self._streams.setdefault(key, []).append(stream)
        self.trusts.begin(key)
        return stream

    def remove_stream(self, key: Key, stream: KvEventStream) -> None:
        streams = self._streams.get(key, [])
        if stream in streams:
            streams.remove(stream)
            stream.interrupted()
            self.index.remove_publisher(stream.holdings)
        if not streams:
            self._streams.pop(key, None)
            self.trusts.end(key)

    def streams(self) -> Mapping[Key, Sequence[KvEventStream]]:
        return self._streams

    def ask(self, request: InferenceRequest) -> bool:
        """A `TokenReader`: nobody is asked for what the client sent as tokens, or while no worker says what it holds."""
        if request.prompt is None or self.ask_for_tokens is None or self.has_tokens(request):
            return False
        self._refresh()
        if not self._masks or given_tokens(request.prompt) is not None:
            return False
        return self.ask_for_tokens(request) and not self.has_tokens(request)

    def tokens_found(self, request: InferenceRequest, tokens: bytes, by: TokensBy) -> None:
        """32 bits each; empty: nobody knows them."""
        self._tokens.keep(request, tokens)
        self.tokens_by[by] += 1

    def has_tokens(self, request: InferenceRequest) -> bool:
        return self._tokens.of(request) is not None

    def admission(self, behind: AdmissionController) -> AdmissionController:
        """A request waits for its tokens, for a set time at most. The same before the same: what waits stays."""
        if self._wait is None or self._wait.behind is not behind:
            self._wait = TokenWait(self, self.settings.token_wait, behind)
        return self._wait

    def prepare(self, request: InferenceRequest, pool: EndpointPool) -> None:
        self.estimate.prepare(request, pool)
        self.trusts.read_pages(pool)
        self._refresh()
        if request.prompt is None or not self._masks:
            return
        tokens = self._tokens.of(request)
        if tokens is None and (given := given_tokens(request.prompt)) is not None:
            tokens = pack_tokens(given)
        if not tokens:
            self.prompts_estimated += 1
            return
        self.prompts_known += 1
        adapter = request.model if self._is_adapter(request.model, pool) else None
        root = self.index.root(adapter, salt_of(request.prompt))
        count = len(tokens) // _TOKEN_BYTES
        held: dict[Key, float] = {}
        for size, mask in self._masks.items():
            for bit, blocks in self.index.match(tokens, root, mask, size).items():
                key = self._key_of_bit[bit]
                held[key] = max(held.get(key, 0.0), min(1.0, blocks * size / count))
        self._found.keep(request, _Found(self._known, self._reported, held, count))

    def peers_picked(self, picks: Sequence[PeerPick], pool: EndpointPool) -> None:
        self.estimate.peers_picked(picks, pool)
        for pick in picks:
            if self.estimate in pick.data:
                hashes, ends = self.estimate.hashes(pick), self.estimate.ends
                pick.data[self] = {
                    one.key: self._under_way.claim(hashes, one.key, _MOST_CLAIMED, ends)
                    for one in dict.fromkeys(pick.endpoints)
                }

    def peer_served(self, pick: PeerPick) -> None:
        self._withdraw_told(pick)
        self.estimate.peer_served(pick)

    def peer_failed(self, pick: PeerPick) -> None:
        self._withdraw_told(pick)
        self.estimate.peer_failed(pick)

    def _withdraw_told(self, pick: PeerPick) -> None:
        claims = cast("dict[Key, int]", pick.data.get(self, {}))
        for key, claim in claims.items():
            self._under_way.withdraw(self.estimate.hashes(pick), key, claim)

    @property
    def layout(self) -> int:
        return self.estimate.layout

    def use_seed(self, seed: int) -> None:
        if seed != self.estimate.seed:
            self._under_way.retain(())
            for stream in (one for streams in self._streams.values() for one in streams):
                stream.begin_anew()
            self.index.use_seed(seed)
        self.estimate.use_seed(seed)

    def chain(self, request: InferenceRequest) -> PrefixChain | None:
        return self.estimate.chain(request)

    def picked(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        chain = self.chain(request)
        if chain is None:
            return
        held = [self.held(request, one) for one in dict.fromkeys(endpoints)]
        self._predict(request, chain, endpoints)
        if held and self._claims.of(request) is None:
            size = chain.unit_tokens * _TOKEN_BYTES
            self.hits.observe(endpoints[0].key, held[0] * _TOKEN_BYTES, chain.units * size)
        self.estimate.picked(request, endpoints)
        chain.held = tuple([tokens // chain.unit_tokens for tokens in held])
        claims = self._claims.of(request) or {}
        for endpoint in endpoints:
            if endpoint.key not in claims:
                claims[endpoint.key] = self._under_way.claim(
                    chain.hashes, endpoint.key, _MOST_CLAIMED, chain.ends
                )
        self._claims.keep(request, claims)

    def served(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        """Its worker has said by now which blocks it stored."""
        self.trusts.served(request, endpoints)
        self._withdraw(request)
        self.estimate.served(request, endpoints)

    def failed(self, request: InferenceRequest) -> None:
        self._withdraw(request)
        self.estimate.failed(request)

    def matches(self, request: InferenceRequest, pool: EndpointPool) -> Mapping[int, int] | Floats:
        estimated = self.estimate.matches(request, pool)
        chain, found = self.chain(request), self._found.of(request)
        if found is None or chain is None:
            return estimated
        units = units_of_all(estimated, len(pool)).astype(np.float64)
        claimed = self._under_way.match(chain.hashes, pool.endpoints)
        rows, most = pool.row_by_key(), self._units(request, chain)
        for key, is_all in found.known.items():
            if (row := rows.get(key)) is not None:
                said = min(found.held.get(key, 0.0) * most, float(chain.units))
                blocks = claimed.get(row, 0) if isinstance(claimed, dict) else int(claimed[row])
                units[row] = max(said, chain.units_in(blocks), 0.0 if is_all else units[row])
        return units

    def held(self, request: InferenceRequest, endpoint: Endpoint) -> int:
        chain, found = self.chain(request), self._found.of(request)
        if found is None or chain is None or endpoint.key not in found.known:
            return self.estimate.held(request, endpoint)
        said = min(found.held.get(endpoint.key, 0.0) * self._units(request, chain), float(chain.units))
        claimed = chain.units_in(self._under_way.held(chain.hashes, endpoint.key))
        known = int(max(said, claimed) * chain.unit_tokens)
        return known if found.known[endpoint.key] else max(known, self.estimate.held(request, endpoint))

    def delivered(self, request: InferenceRequest, cached: int) -> None:
        self.trusts.delivered(request, cached)

    def says(self, endpoint: Endpoint) -> CacheEvidence | None:
        trust = self.trusts.by_key.get(endpoint.key)
        if trust is None:
            return None
        self._refresh()
        by = "events" if endpoint.key in self._known else "estimate"
        return CacheEvidence(by, round(trust.confidence, 3), trust.checks)

    def _predict(self, request: InferenceRequest, chain: PrefixChain, endpoints: Sequence[Endpoint]) -> None:
        """Note what its worker says that it will deliver. With helpers it is another one that computes the prompt."""
        found, key = self._found.of(request), endpoints[0].key
        if found is None or len(endpoints) != 1 or key not in found.reported:
            return
        said, tokens = found.held.get(key, 0.0) * found.tokens, float(found.tokens)
        claimed = chain.units_in(self._under_way.held(chain.hashes, key)) / max(1, chain.units)
        most = max(said, claimed * tokens) if found.reported[key] else tokens
        block = max([one.holdings.block_tokens for one in self._streams.get(key, ())], default=0)
        self.trusts.predict(request, key, Prediction(said, most, tokens, block))

    @property
    def credits(self) -> Mapping[Key, Credit]:
        return self.hits.credits

    def sized(self, endpoint: Endpoint, tokens: int) -> None:
        self.estimate.sized(endpoint, tokens)

    def forget(self, endpoint: Endpoint) -> None:
        self.estimate.forget(endpoint)
        self._under_way.forget(endpoint.key)
        self.trusts.begin_anew(endpoint.key)
        for stream in self._streams.get(endpoint.key, ()):
            stream.interrupted()
            self.index.clear(stream.holdings)

    def slept(self, endpoint: Endpoint) -> None:
        """Its cache went with its sleep; its events say so only when it is awake."""
        self.forget(endpoint)
        for stream in self._streams.get(endpoint.key, ()):
            stream.doubt()

    def retain(self, endpoints: Sequence[Endpoint]) -> None:
        self.estimate.retain(endpoints)
        present = [endpoint.key for endpoint in endpoints]
        self._under_way.retain(present)
        if not self._is_estimating:
            self.hits.retain(present)

    def _withdraw(self, request: InferenceRequest) -> None:
        claims, chain = self._claims.of(request), self.chain(request)
        if claims is None or chain is None:
            return
        for key, claim in claims.items():
            self._under_way.withdraw(chain.hashes, key, claim)
        claims.clear()

    def _units(self, request: InferenceRequest, chain: PrefixChain) -> float:
        """The whole prompt, in the units of the estimate: other plugins reckon with 4 bytes a token."""
        return max(float(chain.units), request.prompt_tokens / chain.unit_tokens)

    def _is_adapter(self, model: str, pool: EndpointPool) -> bool:
        return model in self.index.adapters or pool.note(
            ("adapter", model),
            lambda: any(
                one.id == model and one.parent is not None
                for endpoint in pool.endpoints
                for one in endpoint.listed_models
            ),
        )

    def _refresh(self) -> None:
        """Find out anew which publishers are believed, if that may have changed."""
        if self._state == self.index.state:
            return
        masks: dict[int, int] = {}
        key_of_bit: dict[int, Key] = {}
        reported: dict[Key, bool] = {}
        for key, streams in self._streams.items():
            if any(one.knowledge in (Knowledge.UNKNOWN, Knowledge.CATCHING_UP) for one in streams):
                continue
            if any(one.holdings.refused and not one.holdings.block_tokens for one in streams):
                continue  # its blocks are too short
            reported[key] = all(one.knowledge is Knowledge.EXACT for one in streams)
            for stream in streams:
                holdings = stream.holdings
                key_of_bit[holdings.bit] = key
                if holdings.block_tokens:
                    masks[holdings.block_tokens] = masks.get(holdings.block_tokens, 0) | holdings.bit
        known = {key: is_all for key, is_all in reported.items() if self.trusts.by_key[key].believed}
        self._masks, self._key_of_bit, self._known, self._reported = masks, key_of_bit, known, reported
        self._state = self.index.state
