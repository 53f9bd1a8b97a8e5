"""Which decisions somebody asks for, and their JSON. Pure."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from adsum.quoting import quoted
from adsum.units import parse_duration
from epp.decisions.document import describe
from epp.decisions.ring import DecisionRing, is_of, time_to_headers
from epp.scheduling.decision import Decision

DEFAULT_LIMIT: Final = 50
DEFAULT_CANDIDATES: Final = 10
MOST_CANDIDATES: Final = 10_000
MOST_ROWS: Final = 20_000
"""Candidates in one answer, of all decisions together: it is at most some MB."""
MOST_LIMIT: Final = 1000
MOST_SAME_ID: Final = 20
"""Decisions of one request id in an answer: a client may send the same id again."""
_CANDIDATES_OF_ID: Final = 1000
"""The default where a request id is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionQuery:
    """`after` None: the newest decisions; else the first ones after this sequence. `slow`: seconds; those whose response
    headers took as long, or have not come for as long. `candidates`: of each profile.
    """

    limit: int = DEFAULT_LIMIT
    after: int | None = None
    request_id: str | None = None
    slow: float | None = None
    candidates: int = DEFAULT_CANDIDATES


def parse_query(given: Mapping[str, str]) -> DecisionQuery:
    """The query of a URL; raises ValueError."""
    for name in given:
        if name not in _PARAMETERS:
            raise ValueError(f"{quoted(name)} is no parameter; there are {', '.join(_PARAMETERS)}")
    request_id = given.get("request_id")
    limit = _count(given, "limit", MOST_LIMIT, DEFAULT_LIMIT)
    query = DecisionQuery(
        limit=limit if request_id is None else min(limit, MOST_SAME_ID),
        after=_count(given, "after", 10**15, 0) if "after" in given else None,
        request_id=request_id,
        slow=_duration(given, "slow"),
        candidates=_count(
            given,
            "candidates",
            MOST_CANDIDATES,
            DEFAULT_CANDIDATES if request_id is None else _CANDIDATES_OF_ID,
        ),
    )
    if query.limit * query.candidates > MOST_ROWS:
        raise ValueError(f"limit times candidates is more than {MOST_ROWS}; ask for fewer of one of them")
    return query


def select(ring: DecisionRing, query: DecisionQuery, now: float) -> list[Decision]:
    """At most `query.limit` decisions, the oldest first."""
    newest_first = query.after is None
    kept: Iterator[Decision] = ring.newest() if query.after is None else ring.after(query.after)
    if query.request_id is not None:
        request_id = query.request_id
        kept = (one for one in kept if is_of(one, request_id))
    if query.slow is not None:
        slow = query.slow
        kept = (one for one in kept if time_to_headers(one, now) >= slow)
    found = list(islice(kept, query.limit))
    return found[::-1] if newest_first else found


class DecisionReader:
    """Answers queries. `clock`: the picker's; `wall_clock`: seconds since 1970."""

    def __init__(
        self, ring: DecisionRing, clock: Callable[[], float], wall_clock: Callable[[], float]
    ) -> None:
        self.ring = ring
        self._clock = clock
        self._wall_clock = wall_clock

    def read(self, query: DecisionQuery) -> Iterator[dict[str, Any]]:
        """One decision after the other, so that a caller may do something else between two."""
        now = self._clock()
        if query.request_id is not None:
            self.ring.ask_for(query.request_id)
        for decision in select(self.ring, query, now):
            yield self.describe(decision, query.candidates)

    def describe(self, decision: Decision, candidates: int = DEFAULT_CANDIDATES) -> dict[str, Any]:
        now, wall = self._clock(), self._wall_clock()
        return describe(decision, now, lambda time: wall - (now - time), candidates)


_PARAMETERS: Final = ("limit", "after", "request_id", "slow", "candidates")
_NUMBER: Final = re.compile("[0-9]{1,15}")


def _count(given: Mapping[str, str], name: str, most: int, default: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    least = 1 if name == "limit" else 0
    if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise ValueError(f"{name}={quoted(text)} is not a whole number from {least} to {most}")
    return int(text)


def _duration(given: Mapping[str, str], name: str) -> float | None:
    text = given.get(name)
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
