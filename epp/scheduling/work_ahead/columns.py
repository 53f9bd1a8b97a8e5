"""The work ahead of all endpoints of a pool, in columns that scorers read as they are."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from epp.endpoints.endpoint import Column, Endpoint, EndpointPool, Floats, Indices
from epp.request.inference_request import TOKEN_BYTES, InferenceRequest
from epp.scheduling.work_ahead.rendezvous_hashing import Hashes
from epp.scheduling.work_ahead.savepoint import Savepoint

_WAITING: Final = int(Column.WAITING)  # numpy takes an int faster than an enumeration's member
_RUNNING: Final = int(Column.RUNNING)
_UNREPORTED: Final = int(Column.UNREPORTED)
_INFLIGHT: Final = int(Column.INFLIGHT)
_BALANCE: Final = 3.0
_FEW_TOKENS: Final = 5_000.0
"""Tokens sent to each endpoint up to which little is concluded from them."""


@dataclass(eq=False, slots=True)
class PoolColumns:
    """Holds a column for each number of the endpoints of one pool, in the order of its rows."""

    endpoints: tuple[Endpoint, ...]
    ahead: Floats
    slowness: Floats
    scraped_at: Floats
    """The page that `ahead` takes into account."""
    rows: dict[tuple[str, str], int]
    ahead_cost: Floats
    """The cost of `ahead`, in missing tokens."""
    room: Floats
    """Requests that each endpoint can run at a time; inf: not known."""
    limited: bool
    """Whether it is known of any."""
    since: Floats
    """When each endpoint began to compute what is ahead of it now."""
    sent: Floats
    """Tokens sent to each endpoint that it had to compute, while caches are cold."""
    balance: Floats
    """The cost of a missing token at each endpoint then; 1 where the fewest were sent: who computes a prefix gets what follows it."""
    hashes: Hashes | None = None
    """Made when they are needed."""

    def send(self, row: int, tokens: float) -> None:
        """The endpoint gets a prompt of which it misses so many tokens."""
        sent = self.sent
        sent[row] += tokens
        weight = _BALANCE / (float(sent.sum()) / len(sent) + _FEW_TOKENS)
        self.balance = sent * weight
        self.balance += 1.0 - weight * sent.item(sent.argmin())

    def save(self, savepoint: Savepoint) -> None:
        savepoint.keep(self, "ahead", "slowness", "scraped_at", "ahead_cost", "room", "since")


class ScoredPool:
    """Keeps what the last scorer read of each endpoint, so that it is not found out again for the one that is chosen."""

    def __init__(self) -> None:
        self.request: InferenceRequest | None = None
        self.pool: EndpointPool | None = None
        self.missing: Floats = np.zeros(0)
        """Tokens of the prompt that each endpoint does not hold."""
        self.requests: Floats = self.missing

    def keep(self, request: InferenceRequest, pool: EndpointPool, missing: Floats, requests: Floats) -> None:
        self.request, self.pool, self.missing, self.requests = request, pool, missing, requests

    def forget(self) -> None:
        self.request = self.pool = None


def of_rows(column: Floats, rows: Indices | None) -> Floats:
    """The numbers of a selection; None: all."""
    if rows is None:
        return column
    selected: Floats = column[rows]
    return selected


def requests_at(pool: EndpointPool, decoding: Floats | None = None) -> Floats:
    """Requests that wait or run at each endpoint, a new column. `decoding`: 0 for those that only compute prompts; None: none is so."""
    numbers = pool.numbers
    requests: Floats = numbers[_WAITING] + numbers[_RUNNING]
    requests += numbers[_UNREPORTED]
    # a request that the page shows no more and whose answer has not come is stuck there, or decoded elsewhere by now
    inflight: Floats = numbers[_INFLIGHT]
    np.maximum(requests, inflight if decoding is None else inflight * decoding, out=requests)
    return requests


def requests_of(pool: EndpointPool, row: int) -> float:
    """The same at one endpoint."""
    number = pool.numbers.item
    requests: float = number(_WAITING, row) + number(_RUNNING, row) + number(_UNREPORTED, row)
    return max(requests, number(_INFLIGHT, row))


def prompt_tokens(request: InferenceRequest) -> float:
    """As `InferenceRequest.prompt_tokens`, and not rounded up: a counter would seem to lag by half a token a prompt."""
    return max(1.0, request.prompt_size / TOKEN_BYTES)
