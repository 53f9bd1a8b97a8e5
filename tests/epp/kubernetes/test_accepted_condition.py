"""The condition that a picker writes, and when it writes none."""

import datetime
from typing import Any

import pytest

from epp.kubernetes.followed_resource import accepted_patch

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
READY = {"type": "Ready", "status": "Unknown", "reason": "Pending", "message": "Waiting for controller"}


def resource(*conditions: dict[str, Any], generation: int = 2) -> dict[str, Any]:
    metadata = {"name": "a", "generation": generation, "resourceVersion": "17"}
    return {"metadata": metadata, "status": {"conditions": list(conditions)}}


def test_others_conditions_stay_and_a_change_meanwhile_makes_it_fail() -> None:
    pending = {"type": "Accepted", "status": "Unknown", "reason": "Pending"}
    change = accepted_patch(resource(READY, pending), NOW)
    assert change is not None
    assert change["metadata"] == {"resourceVersion": "17"}
    [kept, accepted] = change["status"]["conditions"]
    assert kept == READY
    assert accepted == {
        "type": "Accepted",
        "status": "True",
        "reason": "Accepted",
        "message": "a picker of the InferencePool applies it",
        "observedGeneration": 2,
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    }


def test_what_is_written_is_not_written_again_but_for_a_newer_generation() -> None:
    change = accepted_patch(resource(), NOW)
    assert change is not None
    written = change["status"]["conditions"]
    assert accepted_patch(resource(*written), NOW) is None
    assert accepted_patch(resource(*written, generation=3), NOW) is not None


def test_a_status_that_is_not_there_or_makes_no_sense_is_none() -> None:
    for obj in (
        {"metadata": {"name": "a"}},
        {"metadata": {"name": "a"}, "status": {"conditions": ["x", None]}},
    ):
        change = accepted_patch(obj, NOW)
        assert change is not None
        assert len(change["status"]["conditions"]) == 1


@pytest.mark.parametrize(
    "status", ["x", ["x"], 1, {"conditions": "x"}, {"conditions": 5}, {"conditions": {"a": 1}}]
)
def test_a_status_of_another_form_is_written_anew(status: Any) -> None:
    change = accepted_patch({**resource(), "status": status}, NOW)
    assert change is not None
    assert [one["type"] for one in change["status"]["conditions"]] == ["Accepted"]
