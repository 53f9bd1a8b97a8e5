"""A decision as JSON; docs/decisions.md describes it. Pure."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from epp.decisions.scored_candidates import (
    ScoredCandidates,
    candidates,
    left_out_by,
    tie,
    unlearnt_choice,
    unreported,
)
from epp.endpoints.endpoint import Column, Endpoint, Indices, Key
from epp.scheduling.decision import NOT_YET, CacheEvidence, Decision, ProfileRun

_DIGITS: Final = 6
_PUBLISHED: Final = {
    "waiting": int(Column.WAITING),
    "running": int(Column.RUNNING),
    "kv_usage": int(Column.KV_USAGE),
}


def describe(
    decision: Decision, now: float, wall_time: Callable[[float], float], most_candidates: int
) -> dict[str, Any]:
    """`now` and the argument of `wall_time` are times of the picker's clock; `wall_time` returns seconds since 1970.

    `most_candidates`: of each profile; the chosen ones come first and are always there.
    """
    numbers = _Numbers(decision)
    before = left_out_by(decision, decision.steps) if decision.steps else ()
    return {
        "sequence": decision.sequence,
        "time": datetime.fromtimestamp(wall_time(decision.at), UTC).isoformat(timespec="milliseconds"),
        "request": _request(decision),
        "whole": decision.whole or not decision.chosen,
        "waited": _seconds(decision.waited) if decision.queued else None,
        "endpoints": _count_of_all(decision),
        "choice": _name(decision.chosen[0]) if decision.chosen else None,
        "fallbacks": [_name(one) for one in decision.chosen[1:]],
        "helpers": {role: [_name(one) for one in group] for role, group in (decision.helpers or {}).items()},
        "stages": decision.stages or None,
        "profile": decision.primary or None,
        "profiles": [_profile(decision, run, numbers, most_candidates) for run in decision.runs],
        "left_out": _left_out(before, decision.steps, numbers, most_candidates),
        "refusal": _refusal(decision),
        "outcome": _outcome(decision, now),
        "learnt": decision.learnt,
    }


def _count_of_all(decision: Decision) -> int | None:
    """None: nobody looked for endpoints, as the request was refused or abandoned before."""
    looked = decision.numbers is not None or decision.endpoints or decision.would_wait
    return len(decision.endpoints) if looked else None


def state_of(decision: Decision) -> str:
    """Says in one word what became of the request; of an explained one, what would."""
    if decision.explained:
        if decision.refused_code:
            return "would be refused"
        return "would wait" if decision.would_wait else "would be sent"
    if decision.refused_code:
        return "evicted" if decision.chosen else "refused"
    if not decision.chosen:
        return "abandoned"
    if decision.ended_at == NOT_YET:
        return "answering" if decision.status else "sent"
    return "done" if decision.status else "cancelled"


def _request(decision: Decision) -> dict[str, Any]:
    return {
        "id": decision.request_id,
        "path": decision.path,
        "model": decision.model,
        "asked_model": decision.asked_model,
        "objective": decision.objective,
        "priority": decision.priority,
        "fairness_id": decision.fairness_id,
        "streaming": decision.streaming,
        "prompt_tokens": decision.prompt_tokens,
        "body_bytes": decision.body_bytes,
    }


def _refusal(decision: Decision) -> dict[str, Any] | None:
    if not decision.refused_code:
        return None
    return {
        "status": decision.refused_status or None,
        "code": decision.refused_code,
        "message": decision.refused_message,
        "reason": decision.refused_reason,
    }


def _outcome(decision: Decision, now: float) -> dict[str, Any]:
    ended = decision.ended_at != NOT_YET
    return {
        "state": state_of(decision),
        "status": decision.status or decision.refused_status or None,
        "time_to_headers": _seconds(decision.responded_at - decision.at) if decision.status else None,
        "time_to_first_byte": None
        if decision.first_byte_at == NOT_YET
        else _seconds(decision.first_byte_at - decision.picked_at),
        "expected_time_to_first_byte": _seconds(decision.expected) if decision.expected >= 0.0 else None,
        "served_by": decision.served_by or None,
        "attempts": decision.attempts or None,
        "seconds": None
        if decision.explained
        else _seconds((decision.ended_at if ended else now) - decision.at),
        "ended_by": decision.ended_by or None,
    }


def _profile(decision: Decision, run: ProfileRun, numbers: "_Numbers", most: int) -> dict[str, Any]:
    scored = candidates(decision, run)
    rows = _shown(decision, run, scored, most)
    ranks = {row: rank for rank, row in enumerate(scored.order.tolist(), 1)}
    names = [name for (_, _, name), _ in run.plan.scorers]
    unlearnt = unlearnt_choice(decision, run, scored)
    places = {id(endpoint): place for place, endpoint in enumerate(run.chosen, 1)}
    return {
        "name": run.name,
        "filters": [name for _, _, name in run.plan.filters],
        "verdicts": _verdicts(decision, run),
        "scorers": [
            {"name": name, "type": kind, "weight": weight} for (_, kind, name), weight in run.plan.scorers
        ],
        "picker": run.plan.picker[2],
        "scored": len(scored.order),
        "tie": tie(decision, run, scored),
        "without_what_is_learnt": None if unlearnt is None else _name(decision.endpoints[unlearnt]),
        "candidates": [
            {
                **numbers.of(row),
                "chosen": places.get(id(decision.endpoints[row])),
                "rank": ranks.get(row),
                "stale": bool(scored.stale[row]),
                "late": bool(scored.late[row]),
                "scores": {
                    name: _number(column[row]) for name, column in zip(names, scored.scores, strict=True)
                },
                "total": _number(scored.totals[row]),
            }
            for row in rows
        ],
        "left_out": _left_out(scored.left_out_by, run.steps, numbers, most),
    }


def _shown(decision: Decision, run: ProfileRun, scored: ScoredCandidates, most: int) -> list[int]:
    """The chosen rows first, then the others by their rank."""
    wanted = {id(endpoint) for endpoint in run.chosen}
    order: list[int] = scored.order.tolist()
    chosen = {
        id(decision.endpoints[row]): row for row in order if wanted and id(decision.endpoints[row]) in wanted
    }
    first = [chosen[id(endpoint)] for endpoint in run.chosen if id(endpoint) in chosen]
    return list(dict.fromkeys([*first, *order[:most]]))[: max(most, len(first))]


def _left_out(
    reasons: Sequence[str | None], steps: Iterable[tuple[str, Any]], numbers: "_Numbers", most: int
) -> list[dict[str, Any]]:
    """By what left them out: how many, and the first of them."""
    groups = []
    for by in dict.fromkeys(name for name, _ in steps):
        rows = [row for row, reason in enumerate(reasons) if reason == by]
        if rows:
            groups.append(
                {"by": by, "count": len(rows), "endpoints": [numbers.of(row) for row in rows[:most]]}
            )
    return groups


def _verdicts(decision: Decision, run: ProfileRun) -> list[dict[str, Any]]:
    """The filters that ran, in order: how many endpoints each got, and how many it kept."""

    def count(rows: Indices | None) -> int:
        return len(decision.endpoints if rows is None else rows)

    given = count(decision.steps[-1][1] if decision.steps else None)
    verdicts = []
    for by, rows in run.steps:
        kept = count(rows)
        verdicts.append({"by": by, "given": given, "kept": kept})
        given = kept
    return verdicts


class _Numbers:
    """The endpoints of a decision with their numbers."""

    def __init__(self, decision: Decision) -> None:
        self._decision = decision
        self._unreported = np.zeros(0) if decision.numbers is None else unreported(decision)

    def of(self, row: int) -> dict[str, Any]:
        decision = self._decision
        age = decision.picked_at - decision.numbers.item(Column.SCRAPED_AT, row)
        seen = math.isfinite(age)
        numbers = {
            name: _number(decision.numbers.item(column, row)) if seen else None
            for name, column in _PUBLISHED.items()
        }
        return {
            **_name(decision.endpoints[row]),
            "inflight": _number(decision.numbers.item(Column.INFLIGHT, row)),
            "peer_inflight": _number(decision.numbers.item(Column.PEER_INFLIGHT, row)),
            "unreported": _number(self._unreported.item(row)),
            **numbers,
            "age": _number(age),
            **({} if decision.caches is None else {"cache": self._cache(decision.caches, row)}),
        }

    def _cache(self, caches: Mapping[Key, CacheEvidence], row: int) -> dict[str, Any] | None:
        word = caches.get(self._decision.endpoints[row].key)
        return None if word is None else word._asdict()


def _name(endpoint: Endpoint) -> dict[str, str]:
    return {"id": endpoint.id, "destination": endpoint.destination}


def _number(value: float) -> float | None:
    return round(float(value), _DIGITS) if math.isfinite(value) else None


def _seconds(value: float) -> float:
    return round(max(0.0, value), _DIGITS)
