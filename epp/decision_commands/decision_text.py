"""Decisions as text for a terminal: in one line, or with every candidate; texts of clients without control characters. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

_MOST: Final = 60
_LEFT: Final = ("endpoint", "destination")
_IN_SHORT: Final = (
    "kept without its candidates and their scores, which the first five picks of a second have; "
    "a request with this id, or with the header x-adsum-record-decision, is kept whole from now on"
)
_LEAST_WAIT: Final = 0.0005
"""Seconds; what is shorter would be shown as 0 ms."""


def line(decision: Mapping[str, Any]) -> str:
    """`03:40:00.123 #17 6f1f… tiny -> decode-0 10.0.0.1:8000 (0.82, 1 of 4): 200 in 120 ms`"""
    request = decision["request"]
    what = " ".join(filter(None, (_plain(request["id"]), _plain(request["model"]))))
    return f"{decision['time'][11:23]} #{decision['sequence']} {what} {_where(decision)}: {_became(decision)}"


def details(decision: Mapping[str, Any]) -> Iterator[str]:
    """All about one decision, line by line."""
    request = decision["request"]
    yield _plain(request["path"]) + (f", request {_plain(request['id'])}" if request["id"] else "")
    yield from _facts(request)
    yield f"  {decision['time'][:23].replace('T', ' ')} UTC {_where(decision)}: {_became(decision)}"
    if decision["refusal"] is not None:
        yield f"  {_plain(decision['refusal']['message'], 400)}"
    if not decision["whole"]:
        yield f"  {_IN_SHORT}"
    if decision.get("stages"):  # an older picker does not say
        yield f"  {_plain(decision['stages'], 400)}"
    yield from _left_out(decision["left_out"])
    for profile in decision["profiles"]:
        yield from _profile(profile)
    yield from _learnt(decision.get("learnt"))  # an older picker does not say


def told_by(outcomes: Mapping[str, Any]) -> str:
    """How the picker hears what becomes of a request, as /status says it."""
    if outcomes["by"] != "access_log":
        stream = "its ext_proc stream tells, which lasts until the answer begins or ends"
        return f"  what becomes of it: {stream if outcomes['by'] else 'not known before the first request'}"
    late, without = outcomes["delay_seconds"], ", ".join(map(_plain, outcomes["without"]))
    told = "  what becomes of it: Envoy's access log tells" + ("" if late is None else f", {late:g} s late")
    return told + (f"; without answers this does not work: {without}" if without else "")


def _facts(request: Mapping[str, Any]) -> Iterator[str]:
    """The request's facts; nothing of one that could not be read: its numbers are not known."""
    asked = request["asked_model"]
    if not request["fairness_id"]:
        return
    facts = [
        f"model {_plain(request['model'])}" + (f" (asked for {_plain(asked)})" if asked is not None else ""),
        f"priority {request['priority']}"
        + (f" by {_plain(request['objective'])}" if request["objective"] else ""),
        f"fairness id {_plain(request['fairness_id'])}",
        f"about {request['prompt_tokens']} prompt tokens",
        *["streamed"] * request["streaming"],
    ]
    yield "  " + ", ".join(fact for fact in facts if request["model"] or not fact.startswith("model"))


def _where(decision: Mapping[str, Any]) -> str:
    choice = decision["choice"]
    if choice is None:
        count = decision["endpoints"]  # None: nobody looked for them
        return "-> nowhere" if count is None else f"-> nowhere, {count} endpoint{'' if count == 1 else 's'}"
    fallbacks = ", ".join(_plain(one["id"]) for one in decision["fallbacks"])
    helpers = [
        f"{_plain(role)} {_plain(one['id'])}" for role, group in decision["helpers"].items() for one in group
    ]
    more = [*[f"then {fallbacks}"] * bool(fallbacks), *helpers, f"of {decision['endpoints']}"]
    return f"-> {_plain(choice['id'])} {_plain(choice['destination'])} ({', '.join(more)})"


def _became(decision: Mapping[str, Any]) -> str:
    outcome, waited = decision["outcome"], decision["waited"]
    said = [outcome["state"]]
    if decision["refusal"] is not None:
        said.append(f"{decision['refusal']['status'] or 'fault'} {_plain(decision['refusal']['code'])}")
    elif outcome["status"]:
        said.append(f"{outcome['status']} in {_milliseconds(outcome['time_to_headers'])}")
    came, expected = outcome["time_to_first_byte"], outcome["expected_time_to_first_byte"]
    if came is not None:
        said.append(f"first byte in {_milliseconds(came)}")
    if expected is not None:
        said.append(f"{'' if came is not None else 'first byte '}expected in {_milliseconds(expected)}")
    if waited is not None and waited >= _LEAST_WAIT:
        said.append(f"waited {_milliseconds(waited)}")
    served, choice = outcome["served_by"], decision["choice"]
    if served and choice and served != choice["destination"]:
        said.append(f"served by {_plain(served)}")
    if outcome["seconds"] is not None and outcome["status"] is None:
        said.append(f"after {_milliseconds(outcome['seconds'])}")
    return ", ".join(said)


def _left_out(groups: Sequence[Mapping[str, Any]], indent: str = "  ") -> Iterator[str]:
    for group in groups:
        names = ", ".join(_plain(one["id"]) for one in group["endpoints"][:8])
        more = f" and {group['count'] - 8} more" if group["count"] > 8 else ""
        yield f"{indent}left out by {_plain(group['by'])}: {names}{more}"


def _profile(profile: Mapping[str, Any]) -> Iterator[str]:
    scorers = profile["scorers"]
    weights = ", ".join(f"{_plain(one['name'])} x {one['weight']:g}" for one in scorers) or "nothing scored"
    yield f"  profile {_plain(profile['name'])}: {weights}; {_plain(profile['picker'])} of {profile['scored']}"
    verdicts = [
        f"{_plain(one['by'])} kept {one['kept']} of {one['given']}" for one in profile.get("verdicts", ())
    ]
    if verdicts:
        yield f"    {'; '.join(verdicts)}"
    yield from _left_out(profile["left_out"], "    ")
    if not profile["candidates"]:
        return
    yield from _table(scorers, profile["candidates"])
    if profile["scored"] > len(profile["candidates"]):
        yield f"    and {profile['scored'] - len(profile['candidates'])} more"
    yield from _caches(profile["candidates"])
    if profile["tie"] is not None:
        yield f"    {_tie(profile['tie'])}"
    without = profile.get("without_what_is_learnt")
    if without is not None:
        chosen = [one for one in profile["candidates"] if one["chosen"] == 1]
        same = any(one["destination"] == without["destination"] for one in chosen)
        yield f"    without what is learnt: {'the same choice' if same else _plain(without['id'])}"


def _table(scorers: Sequence[Mapping[str, Any]], candidates: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A row of each candidate, with what each scorer said of it."""
    names = [_plain(one["name"]) for one in scorers]
    head = ["", *_LEFT, "total", *names, "in flight", "waiting", "running", "cache", "age", ""]
    rows = [head, *[_row(one, scorers) for one in candidates]]
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    for row in rows:
        cells = [
            cell.ljust(width) if at in (1, 2, len(head) - 1) else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield ("    " + "  ".join(cells)).rstrip()


def _caches(candidates: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """By whose word the picker goes, of workers that say what they hold."""
    known = [(_plain(one["id"]), one["cache"]) for one in candidates if one.get("cache")]
    if names := [name for name, cache in known if cache["by"] == "events"]:
        yield f"    caches known from events: {', '.join(names)}"
    for name, cache in known:
        if cache["by"] != "events":
            told = f"confidence {cache['confidence']:g} after {cache['checks']} checks"
            yield f"    cache of {name} estimated, though it publishes events: {told}"


def _learnt(learnt: Mapping[str, Any] | None) -> Iterator[str]:
    """The costs of requests, each number with its standard error."""
    if learnt is None or learnt["seconds"] is None:
        return
    error = learnt["median_error"]
    wrong = "" if error is None else f", the last predictions were wrong by {error:.0%} (median)"
    others = f", and by {learnt['peers']} other pickers" if learnt.get("peers") else ""
    yield f"  learnt of {learnt['answers']} answers{others}{wrong}:"
    for name, (seconds, spread) in learnt["seconds"].items():
        yield f"    {name.replace('_', ' ')}: {seconds * 1000.0:.3g} ms, ± {spread * 1000.0:.2g}"


def _tie(tie: Mapping[str, Any]) -> str:
    count, fewest = tie["endpoints"], tie["fewest_in_flight"]
    if tie["broken_by"] == "inflight":
        return (
            f"tie: {count} endpoints were equally good; of these the choice had the fewest requests in flight"
        )
    among = (
        "all with as many requests in flight"
        if fewest == count
        else f"{fewest} of them with the fewest requests in flight"
    )
    return f"tie: {count} endpoints were equally good, {among}; chance chose"


def _row(candidate: Mapping[str, Any], scorers: Sequence[Mapping[str, Any]]) -> list[str]:
    age = candidate["age"]
    chosen = candidate["chosen"]
    of_peers = candidate.get("peer_inflight")  # an older picker does not say
    notes = [
        *["chosen" if chosen == 1 else f"fallback {(chosen or 1) - 1}"] * (chosen is not None),
        *["stale"] * candidate["stale"],
        *["late"] * candidate["late"],
        *[f"{_count(of_peers)} in flight of peers"] * bool(of_peers),
    ]
    kv_usage = candidate["kv_usage"]
    return [
        str(candidate["rank"] or "-"),
        _plain(candidate["id"]),
        _plain(candidate["destination"]),
        _score(candidate["total"]),
        *[_score(candidate["scores"].get(one["name"])) for one in scorers],
        _count(candidate["inflight"]),
        _count(candidate["waiting"]),
        _count(candidate["running"]),
        "-" if kv_usage is None else f"{kv_usage:.0%}",
        "never" if age is None else _milliseconds(age),
        ", ".join(notes),
    ]


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds >= 10.0 else f"{seconds * 1000.0:.0f} ms"


def _plain(text: str, most: int = _MOST) -> str:
    shown = text if len(text) <= most else f"{text[:most]}…"
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in shown)
