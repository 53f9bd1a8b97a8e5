"""Compares what one worker's events say of prompts with what its cache delivered, and says whether they are believed. Pure.

Delivered is what an answer's usage says (`cached_tokens`), where answers are read. Elsewhere the counters on the worker's
page tell of many prompts at once, if hardly anybody else sends there: their sum must be that of the prompts that were sent.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from epp.endpoints.endpoint import Endpoint, EndpointPool, Key
from epp.endpoints.worker_metrics import PREFIX_HITS, PREFIX_QUERIES
from epp.request.inference_request import InferenceRequest, RequestData

_KEPT: Final = 0.95
"""Earlier comparisons keep so much of their weight, by each further one: about twenty count."""
_PRIOR: Final = 4.0
"""This many agreements are assumed before the first comparison. One that is wrong alone changes nothing."""
_DOUBTED: Final = 0.5
_BELIEVED: Final = 0.75
_SLACK_SHARE: Final = 0.05
"""A share of a prompt by which both may differ: blocks come and go between the pick and the worker's own look."""
_SLACK_BLOCKS: Final = 2
"""The same in blocks: a worker computes the last block of a prompt that it holds whole."""
_WINDOW: Final = 16
"""Prompts after which the page's counters are compared with them."""
_LONGEST_WINDOW: Final = 256
_OURS: Final = 0.8
"""The least share of the page's prompt tokens, and of ours, that the other one has."""
_PAGE_WEIGHT: Final = 4
"""How often one comparison with the page counts."""
_USAGE_LASTS: Final = 64
"""Prompts after the last answer that said it, for which pages are not asked."""
_MOST_AWAITED: Final = 4096


class Prediction(NamedTuple):
    """In tokens: what the worker holds of a prompt, as it says; `most`: with what others under way may add; `prompt`: its length."""

    said: float
    most: float
    prompt: float
    block: int


class EventTrust:
    """How far one worker's events are true. `confidence`: 1 for events that were always right; `believed`: whether they decide,
    or the estimate does.

    `checks`: comparisons that said something; two that hold nothing of a prompt agree by chance.
    """

    def __init__(self) -> None:
        self.checks = 0
        self.believed = True
        self._good = self._bad = 0.0
        self._usage = 0
        self._began: tuple[float, float] | None = None
        self._begin(None)

    @property
    def confidence(self) -> float:
        return (_PRIOR + self._good) / (_PRIOR + self._good + self._bad)

    @property
    def awaits_page(self) -> bool:
        """Whether the next page may say something."""
        return not self._usage and (self._began is None or self._prompts >= _WINDOW)

    def answered(self, one: Prediction, delivered: float) -> None:
        """An answer said how many tokens were in the cache."""
        self._usage = _USAGE_LASTS
        self._compare(one.said, one.most, delivered, _slack(one), 1)

    def served(self, one: Prediction) -> None:
        """The worker computed the prompt, and no answer may say more."""
        if self._usage:
            self._usage -= 1
            self._begin(None)
            return
        self._prompts += 1
        self._said += one.said
        self._most += one.most
        self._tokens += one.prompt
        self._slack += _slack(one)

    def page(self, queries: float, hits: float) -> None:
        """The counters on the worker's page, in tokens: looked up in its cache, and found there. Below 0: it has none."""
        if min(queries, hits) < 0.0:
            self._began = None
            return
        if self._began is None or queries < self._began[0] or hits < self._began[1]:
            self._begin((queries, hits))
        elif self._prompts >= _WINDOW:
            asked, found = queries - self._began[0], hits - self._began[1]
            if self._tokens * _OURS <= asked <= self._tokens / _OURS:
                self._compare(self._said, self._most, found, self._slack, _PAGE_WEIGHT)
            elif asked < self._tokens and self._prompts < _LONGEST_WINDOW:
                return  # the page is behind
            self._begin((queries, hits))

    def _begin(self, counters: tuple[float, float] | None) -> None:
        """Compare from here on, over a new window of prompts."""
        self._began = counters
        self._prompts = 0
        self._said = self._most = self._tokens = self._slack = 0.0

    def _compare(self, said: float, most: float, delivered: float, slack: float, weight: int) -> None:
        greatest = max(said, delivered)
        if greatest <= slack:
            return
        wrong = max(0.0, said - delivered - slack, delivered - most - slack) / greatest
        self.checks += 1
        for _ in range(weight):
            self._good = self._good * _KEPT + 1.0 - wrong
            self._bad = self._bad * _KEPT + wrong
        self.believed = self.confidence >= (_DOUBTED if self.believed else _BELIEVED)


class EventTrusts:
    """The trust in all workers that publish events. `changed`: called when one is believed no longer, or again."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        # bounded: by the workers
        self.by_key: dict[Key, EventTrust] = {}
        # bounded: the same
        self._awaiting: dict[Key, EventTrust] = {}
        """Workers whose next page may say something: a pick looks at no other worker."""
        self._predictions: RequestData[tuple[Key, Prediction]] = RequestData()
        # bounded: _MOST_AWAITED
        self._awaited: dict[InferenceRequest, tuple[Key, Prediction]] = {}
        """Predictions for requests whose answers may say what was delivered."""
        self._reads_usage = False

    def begin(self, key: Key) -> None:
        self.by_key.setdefault(key, EventTrust())

    def begin_anew(self, key: Key) -> None:
        """Forget what another process at this address was right about."""
        if key in self.by_key:
            self.by_key[key] = EventTrust()
            self._awaiting.pop(key, None)

    def end(self, key: Key) -> None:
        self.by_key.pop(key, None)
        self._awaiting.pop(key, None)

    def predict(self, request: InferenceRequest, key: Key, prediction: Prediction) -> None:
        self._predictions.keep(request, (key, prediction))

    def served(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        """With an answer that may say more at its end."""
        predicted = self._predictions.of(request)
        if predicted is None or not endpoints or endpoints[0].key != predicted[0]:
            return
        if (trust := self.by_key.get(predicted[0])) is not None:
            trust.served(predicted[1])
            if trust.awaits_page:
                self._awaiting[predicted[0]] = trust
            if self._reads_usage:
                self._awaited[request] = predicted
                if len(self._awaited) > _MOST_AWAITED:
                    del self._awaited[next(iter(self._awaited))]

    def delivered(self, request: InferenceRequest, cached: int) -> None:
        self._reads_usage = True
        predicted = self._awaited.pop(request, None) or self._predictions.of(request)
        if predicted is not None and (trust := self.by_key.get(predicted[0])) is not None:
            self._hear(trust, partial(trust.answered, predicted[1], float(cached)))

    def read_pages(self, pool: EndpointPool) -> None:
        """Compare the newest pages with what was served since an earlier one."""
        if not self._awaiting:
            return
        rows, asked, found = pool.row_by_key(), pool.metric(PREFIX_QUERIES), pool.metric(PREFIX_HITS)
        for key, trust in list(self._awaiting.items()):
            queries = hits = -1.0
            if trust.awaits_page and (row := rows.get(key)) is not None:
                queries, hits = float(asked[row]), float(found[row])
                self._hear(trust, partial(trust.page, queries, hits))
            if min(queries, hits) < 0.0 or not trust.awaits_page:  # else the page is behind
                del self._awaiting[key]

    def _hear(self, trust: EventTrust, hear: Callable[[], None]) -> None:
        before = trust.believed
        hear()
        if trust.believed != before:
            self._changed()


def _slack(one: Prediction) -> float:
    return max(_SLACK_SHARE * one.prompt, float(_SLACK_BLOCKS * one.block))
