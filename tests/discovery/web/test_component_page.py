"""A candidate's row is made once, and again as soon as anything that it says differs."""

from dataclasses import replace
from typing import Any

from discovery import Instance, InstanceStatus
from discovery.source import ComponentKey
from discovery.watch import WatchHealth, WatchState
from discovery.web.component_page import CandidateRows, ComponentState, component_document

FIRST, SECOND = (Instance(name, "prod", "decode", "10.0.0.1", 8000, "a") for name in ("first", "second"))
STATE = ComponentState(
    ComponentKey("prod", "decode"),
    "memory://",
    WatchHealth(WatchState.SYNCED, 0.0),
    0.0,
    known={"first": FIRST, "second": SECOND},
    published={"first": FIRST, "second": SECOND},
    models={"first": "m"},
    since={"first": 1.0},
)
GONE = replace(STATE, known={"second": SECOND}, published={"second": SECOND})


def row(state: ComponentState, kept: CandidateRows, name: str = "first") -> dict[str, Any]:
    [found] = [row for row in component_document(state, kept)["candidates"] if row["id"] == name]
    assert isinstance(found, dict)
    return found


def test_a_row_is_kept_while_nothing_about_its_candidate_differs() -> None:
    kept = CandidateRows()
    before = row(STATE, kept)
    assert row(replace(STATE, health_since=2.0, since={"first": 1.0, "second": 3.0}), kept) is before


def test_whatever_differs_is_shown() -> None:
    changes: list[dict[str, Any]] = [
        {"known": {}, "published": {}, "reasons": {"first": "it is dead"}},
        {"published": {"second": SECOND}},
        {"known": {"first": replace(FIRST, status=InstanceStatus.DRAINING)}, "published": {}},
        {"published": {"first": replace(FIRST, reachable=False)}},
        {"published": {"first": replace(FIRST, revision="two", labels={"a": "b"})}},
        {"reasons": {"first": "it shares its address"}},
        {"models": {}},
        {"since": {"first": 2.0}},
    ]
    kept = CandidateRows()
    for change in changes:
        before, changed = row(STATE, kept), replace(STATE, **change)
        after = row(changed, kept)
        assert after != before
        assert after == row(changed, CandidateRows())


def test_a_list_of_many_hosts_is_not_the_source_in_full() -> None:
    hosts = ",".join(f"10.0.0.{n}:8000" for n in range(200))
    shown = component_document(replace(STATE, source=f"static://{hosts}"))["source"]["url"]
    assert shown.startswith("static://10.0.0.0:8000,")
    assert len(shown) < 400


def test_a_candidate_that_is_gone_is_forgotten() -> None:
    kept = CandidateRows()
    component_document(STATE, kept)
    assert [one["id"] for one in component_document(GONE, kept)["candidates"]] == ["second"]
    component_document(STATE, kept)
    assert len(component_document(GONE, kept)["candidates"]) == 1


def test_a_listed_worker_that_has_never_answered_is_unreachable_and_a_registered_one_is_starting() -> None:
    silent = replace(STATE, published={"second": SECOND}, reasons={"first": "Connection refused"})
    for listed, state in ((True, "unreachable"), (False, "pending")):
        document = component_document(replace(silent, listed=listed))
        assert (
            document["candidates"][0] | {"state": state, "reason": "Connection refused"}
            == document["candidates"][0]
        )
        assert document["counts"][state] == 1
