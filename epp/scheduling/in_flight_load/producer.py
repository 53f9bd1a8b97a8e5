"""Counts the tokens that are in flight to each endpoint.

Values: llm-d-router, plugins/requestcontrol/dataproducer/inflightload. A request counts with the part of its prompt that the
endpoint does not hold, until the first piece of its answer: then the prompt is computed. That piece is seen only of a
streamed answer whose body the data plane sends; else the tokens count until the request is over. Where the picker's stream
ends with the response headers (`response_trailer_mode: SKIP` and no bodies), that is when they come.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Final, TypeAlias

import numpy as np

from epp.endpoints.endpoint import Endpoint, EndpointPool, Floats
from epp.request.inference_request import DEFAULT_FAIRNESS_ID, InferenceRequest, RequestData
from epp.scheduling.plugin import PrefixMatchProducer
from epp.scheduling.prefix.scorer import units_of_all

PRODUCER: Final = "inflight-load-producer"
DEFAULT_OUTPUT_RATIO: Final = 1.5
_FEW: Final = 8
"""For so many endpoints it is faster to ask for each than to match all of a pool that no other request will have."""
_MAX_LABELS: Final = 1000
"""Sets of labels that have something in flight; a client chooses its fairness id."""
_OTHER: Final = "other"

Key: TypeAlias = tuple[str, str]
LoadLabels: TypeAlias = tuple[str, str, str, int]
"""Id and namespace of the endpoint, fairness id and priority; all incarnations of an endpoint together."""


@dataclass(frozen=True, slots=True)
class OutputEstimate:
    """Tokens of an answer, guessed from those of its prompt; at most what its client asks for, and `most` if that is given."""

    ratio: float = DEFAULT_OUTPUT_RATIO
    most: int | None = None

    def tokens(self, prompt: int, asked: int | None) -> int:
        guess = floor(prompt * self.ratio + 0.5)
        if asked is not None:
            guess = min(guess, asked)
        return guess if self.most is None else min(guess, self.most)


class EndpointTokens:
    """The tokens in flight to one process of an endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.tokens = 0


class LabelledLoad:
    """The load in flight with one set of labels."""

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0


class InFlightTokens:
    """One request at one endpoint: a `RequestCount`. `until_end`: the tokens include those of the answer."""

    def __init__(
        self, producer: "InFlightLoadProducer", at: EndpointTokens, labels: LoadLabels, tokens: int, *, until_end: bool
    ) -> None:  # fmt: skip
        self.producer = producer
        self._labels = labels
        self._tokens = tokens
        self._until_end = until_end
        self.at = at
        self.ongoing = True
        producer.add(at, labels, 1, tokens)

    def answered(self) -> None:
        if self.ongoing and not self._until_end:
            self.producer.add(self.at, self._labels, 0, -self._tokens)
            self._tokens = 0

    def ended(self) -> None:
        if self.ongoing:
            self.ongoing = False
            self.producer.add(self.at, self._labels, -1, -self._tokens)

    def move(self, at: EndpointTokens) -> None:
        """Another endpoint answers than was picked."""
        if self.ongoing:
            self.producer.add(self.at, self._labels, -1, -self._tokens)
            self.at, self._labels = at, (at.endpoint.id, at.endpoint.namespace, *self._labels[2:])
            self.producer.add(at, self._labels, 1, self._tokens)


class InFlightLoadProducer:
    """A data producer. `matches` None: whole prompts count. `output` None: answers do not count."""

    def __init__(
        self,
        name: str = PRODUCER,
        matches: PrefixMatchProducer | None = None,
        output: OutputEstimate | None = None,
    ) -> None:
        self.name = name
        self.matches = matches
        self._output = output
        self._asked: RequestData[int] = RequestData()
        """Tokens of the answer."""
        self._of: dict[Key, EndpointTokens] = {}
        self._labelled: dict[LoadLabels, LabelledLoad] = {}
        self._endpoints: tuple[Endpoint, ...] | None = None
        """The endpoints of the last whole pool, in the order of `_column`; None: out of date."""
        self._column: Floats = np.zeros(0)
        self._rows: dict[Key, int] = {}

    @property
    def labelled(self) -> Mapping[LoadLabels, LabelledLoad]:
        """The load in flight; sets without a request are left out."""
        return self._labelled

    @property
    def endpoints(self) -> list[Endpoint]:
        """The endpoints that something was sent to."""
        return [one.endpoint for one in self._of.values()]

    def tokens(self, pool: EndpointPool) -> Floats:
        """The tokens in flight to each endpoint, not to be changed."""
        # the datastore gives the same tuple until an endpoint changes, so identity is enough
        if self._endpoints is pool.endpoints:
            return self._column
        found = [self._of.get(endpoint.key) for endpoint in pool.endpoints]
        column = np.array([0.0 if one is None else one.tokens for one in found])
        if pool.state is not None:  # a pool that the next request has too
            self._endpoints, self._column = pool.endpoints, column
            self._rows = {endpoint.key: row for row, endpoint in enumerate(pool.endpoints)}
        return column

    def uncached(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        """The tokens that this request would add at each endpoint."""
        output = self._asked.of(request) or 0
        if len(pool) <= _FEW:
            return np.array([float(output + self._missing(request, one)) for one in pool.endpoints])
        tokens = request.prompt_tokens
        chain = None if self.matches is None else self.matches.chain(request)
        if self.matches is None or chain is None:
            return np.full(len(pool), float(output + tokens))
        held = units_of_all(self.matches.matches(request, pool), len(pool))
        indexed = chain.units * chain.unit_tokens
        uncached: Floats = output + max(tokens, indexed) - held * chain.unit_tokens
        return uncached

    def prepare(self, request: InferenceRequest, pool: EndpointPool) -> None:
        """Read the size of the answer while the body is there."""
        if self._output is None:
            return
        asked = None if request.prompt is None else request.prompt.max_output_tokens()
        self._asked.keep(request, self._output.tokens(request.prompt_tokens, asked))

    def picked(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        """It is in flight there. Called before the prompt's blocks are claimed for them."""
        output, until_end = self._asked.of(request) or 0, self._output is not None
        for endpoint in endpoints:
            tokens = output + self._missing(request, endpoint)
            labels = self._labels(endpoint, request)
            one = InFlightTokens(self, self._at(endpoint), labels, tokens, until_end=until_end)
            request.counts += (one,)

    def served(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        """If another endpoint answers than was picked, it is in flight there. Helpers have done their part when an answer begins."""
        ours = [one for one in request.counts if isinstance(one, InFlightTokens) and one.producer is self]
        keys = [endpoint.key for endpoint in endpoints]
        for at, one in enumerate(ours):
            if at and (request.streaming or one.at.endpoint.key not in keys):
                one.ended()
            elif one.at.endpoint.key not in keys:
                one.move(self._at(endpoints[0]))

    def failed(self, request: InferenceRequest) -> None:
        """It counts until `InFlightTokens.ended` is called, which is so for every request."""

    def sized(self, endpoint: Endpoint, tokens: int) -> None:
        """The size of a cache says nothing of what is in flight."""

    def forget(self, endpoint: Endpoint) -> None:
        """Its requests died with it; those that are not over yet end in a count that nobody reads."""
        if self._of.pop(endpoint.key, None) is not None:
            self._endpoints = None

    def retain(self, endpoints: Sequence[Endpoint]) -> None:
        present = {endpoint.key for endpoint in endpoints}
        for key in self._of.keys() - present:
            del self._of[key]
        self._endpoints = None

    def add(self, at: EndpointTokens, labels: LoadLabels, requests: int, tokens: int) -> None:
        at.tokens += tokens
        key = at.endpoint.key
        if (
            self._endpoints is not None
            and self._of.get(key) is at
            and (row := self._rows.get(key)) is not None
        ):
            self._column[row] = at.tokens
        load = self._labelled.get(labels)
        if load is None:
            load = self._labelled[labels] = LabelledLoad()
        load.requests += requests
        load.tokens += tokens
        if not load.requests:
            del self._labelled[labels]

    def _at(self, endpoint: Endpoint) -> EndpointTokens:
        found = self._of.get(endpoint.key)
        if found is None:
            found = self._of[endpoint.key] = EndpointTokens(endpoint)
        return found

    def _labels(self, endpoint: Endpoint, request: InferenceRequest) -> LoadLabels:
        labels = (endpoint.id, endpoint.namespace, request.fairness_id, request.priority)
        if labels in self._labelled or len(self._labelled) < _MAX_LABELS:
            return labels
        if request.fairness_id == DEFAULT_FAIRNESS_ID:
            return labels
        return (endpoint.id, endpoint.namespace, _OTHER, request.priority)

    def _missing(self, request: InferenceRequest, endpoint: Endpoint) -> int:
        """Tokens of the prompt that the endpoint has to compute; its last block counts as a whole one, as in the Go picker."""
        tokens = request.prompt_tokens
        chain = None if self.matches is None else self.matches.chain(request)
        if self.matches is None or chain is None:
            return tokens
        return max(tokens, chain.units * chain.unit_tokens) - self.matches.held(request, endpoint)
