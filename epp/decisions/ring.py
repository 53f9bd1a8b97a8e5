"""Keeps the last decisions, in a bounded number and in bounded memory. Pure."""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import dropwhile, islice
from typing import Final, TypeAlias

from epp.endpoints.endpoint import Endpoint
from epp.request.control_headers import MOST_TEXT
from epp.scheduling.decision import KEPT_ROWS, NOT_YET, Decision
from epp.scheduling.pick import Pick

Entry: TypeAlias = Decision | Pick

DEFAULT_MOST: Final = 1000
MAX_BYTES: Final = 64 * 1024 * 1024
"""Memory of one ring: about 1,000 decisions among 1,000 endpoints with three scorers."""
_BYTES: Final = 4000
"""Memory of one decision without its columns, measured, with all texts at their limit."""
_TEXT: Final = 150
"""Memory of a text in a set, beside its characters."""
_COLUMNS: Final = KEPT_ROWS + 1
"""The numbers, and the endpoints themselves."""
_EACH: Final = 8
"""Bytes of each endpoint: a number in a column, or itself in a tuple."""
_MOST_ASKED_FOR: Final = 16
"""Request ids that operators asked for last."""


class DecisionRing:
    """`most`: decisions that are kept; fewer if those take more than `max_bytes`. Sequences begin with 1.

    `sequences`: returns a number that grows, by which the decisions of several processes are in order; None: there is one.
    """

    def __init__(self, most: int = DEFAULT_MOST, max_bytes: int = MAX_BYTES) -> None:
        self.most = most
        self.sequences: Callable[[], int] | None = None
        self._max_bytes = max_bytes
        self.bytes = 0
        """An estimate from above."""
        self._kept: deque[Entry] = deque()
        self.last = self._made = 0
        """The sequence of the newest decision; 0: there was none."""
        self._endpoints: tuple[Endpoint, ...] = ()
        self.asked_for: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def recorded(self) -> int:
        """How many decisions there were."""
        return self.last if self.sequences is None else self._made

    def add(self, decision: Decision) -> None:
        decision.sequence = self._next()
        decision.size = self._size(decision, decision.endpoints)
        self._keep(decision, decision.size)

    def add_pick(self, pick: Pick, endpoints: tuple[Endpoint, ...], now: float) -> None:
        """`endpoints`: all of them, candidates or not."""
        # each call counts here: this is what a decision adds to every pick
        self.last = pick.sequence = self.last + 1 if self.sequences is None else self._next()
        pick.picked_at, pick.among = now, endpoints
        pick.size = size = _BYTES
        kept = self._kept
        if pick.decision is not None or endpoints is not self._endpoints:
            pick.size = size = self._size(pick.decision, endpoints)
        elif len(kept) == self.most and self.bytes <= self._max_bytes:  # the common case
            kept.append(pick)
            self.bytes += size - kept.popleft().size
            return
        self._keep(pick, size)

    def _next(self) -> int:
        self._made += 1
        least = self.last + 1
        self.last = least if self.sequences is None else max(least, self.sequences())
        return self.last

    def _size(self, decision: Decision | None, endpoints: tuple[Endpoint, ...]) -> int:
        size = _BYTES
        if endpoints is not self._endpoints and endpoints:  # a request that was not parsed has none
            size += self._take(endpoints)
        if decision is not None and decision.numbers is not None:
            # as if it shared no column with others
            columns = _COLUMNS + len(decision.steps)
            for run in decision.runs:
                columns += run.columns
            size += columns * len(endpoints) * _EACH
        return size

    def _keep(self, entry: Entry, size: int) -> None:
        kept, held = self._kept, self.bytes + size
        kept.append(entry)
        if len(kept) > self.most:
            held -= kept.popleft().size
        while held > self._max_bytes and len(kept) > 1:
            held -= kept.popleft().size
        self.bytes = held

    def _take(self, endpoints: tuple[Endpoint, ...]) -> int:
        """Bytes of the endpoints that no earlier decision had: it keeps them alive, and workers choose how large they are."""
        known = {id(endpoint) for endpoint in self._endpoints}
        self._endpoints = endpoints
        new = sum([_size_of_endpoint(one) for one in endpoints if id(one) not in known])
        return new + len(endpoints) * _EACH

    def ask_for(self, request_id: str) -> None:
        """Let the next request with this id be recorded whole: an operator asks what became of it, and may send it again."""
        self.asked_for.pop(request_id, None)
        self.asked_for[request_id] = None
        if len(self.asked_for) > _MOST_ASKED_FOR:
            del self.asked_for[next(iter(self.asked_for))]

    def newest(self) -> Iterator[Decision]:
        """All, the newest first."""
        return map(_decision_of, reversed(self._kept))

    def after(self, sequence: int) -> Iterator[Decision]:
        """The decisions after this one, the oldest first."""
        if not self._kept:
            return iter(())
        if self.sequences is not None:
            return map(_decision_of, dropwhile(lambda one: one.sequence <= sequence, self._kept))
        skipped = sequence + 1 - self._kept[0].sequence
        return map(_decision_of, islice(self._kept, max(0, skipped), None))


def _decision_of(entry: Entry) -> Decision:
    """The notes of a pick, and its end."""
    if isinstance(entry, Decision):
        return entry
    decision = entry.decision
    if decision is None:
        decision = Decision(entry.picked_at)
        decision.picked_at, decision.endpoints = entry.picked_at, entry.among
        decision.request = entry.request
        decision.picked(entry.endpoints, entry.helpers, entry.primary, entry.stages)
    decision.sequence, decision.size = entry.sequence, entry.size
    decision.served_by, decision.attempts = entry.served_by, entry.attempts
    decision.status, decision.responded_at = entry.status, entry.responded_at
    decision.expected, decision.first_byte_at = entry.expected, entry.first_byte_at
    decision.ended_at, decision.ended_by = entry.ended_at, entry.ended_by
    if entry.evicted_for is not None:
        decision.evicted(entry.evicted_for)
    return decision


def _size_of_endpoint(endpoint: Endpoint) -> int:
    texts = [*endpoint.models, *(model.id for model in endpoint.listed_models)]
    for name, value in endpoint.labels.items():
        texts += (name, value)
    return sum(map(len, texts)) + _TEXT * len(texts)


def time_to_headers(decision: Decision, now: float) -> float:
    """Seconds from the request to its response headers; so far, if they have not come."""
    if decision.responded_at != NOT_YET:
        return decision.responded_at - decision.at
    return (now if decision.ended_at == NOT_YET else decision.ended_at) - decision.at


def is_of(decision: Decision, request_id: str) -> bool:
    return decision.request_id == request_id[:MOST_TEXT]
