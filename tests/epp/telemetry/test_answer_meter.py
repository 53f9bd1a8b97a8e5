"""Answers as the exchange passes them: what is on the page afterwards, in the Go picker's families."""

import gzip
import json
from typing import Any

import pytest
from prometheus_client import generate_latest

from epp.ext_proc.response_body import ResponseHead
from epp.telemetry.counters import Telemetry
from epp.telemetry.request_families import HISTOGRAMS, OLDER_MODELS

M = {"model_name": "m", "target_model_name": "m", "fairness_id": "default-flow", "priority": "0"}
OLDER = {"model_name": "m", "target_model_name": "m"}
USED = {"prompt_tokens": 700, "completion_tokens": 11, "prompt_tokens_details": {"cached_tokens": 512}}
CHAT = json.dumps({"choices": [], "usage": USED}).encode()
EVENTS = b'data: {"choices": [{}], "usage": null}\n\ndata: {"usage": ' + json.dumps(USED).encode() + b"}\n\n"


def head(kind: str = "application/json", status: int | None = 200, **headers: str) -> ResponseHead:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ResponseHead(status, {"content-type": kind, **named})


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


def answer(
    telemetry: Telemetry,
    pick: Any,
    start: ResponseHead,
    pieces: list[tuple[float, bytes]],
    *,
    ended: float | None,
) -> None:
    """One request at 100 s: `pieces` of its answer with their times; `ended` None: it breaks off."""
    telemetry.picked(pick, 100.5)
    reader = telemetry.read_answer(pick, start, 100.0, 101.0)
    assert reader is not None
    assert not reader.changes_body
    for at, piece in pieces:
        assert reader.read(piece, at) is None
    if ended is not None:
        assert reader.end(ended) == b""
    telemetry.released(pick, 100.0, 120.0)


def counted(telemetry: Telemetry) -> dict[str, tuple[float, float]]:
    """Of each histogram of requests, by its short name: how many values, and their sum."""
    found: dict[str, dict[str, float]] = {}
    for family in telemetry.registry.collect():
        for sample in family.samples:
            name, _, part = sample.name.rpartition("_")
            if part in ("count", "sum") and family.name.startswith("llm_d_epp_request_"):
                found.setdefault(name.removeprefix("llm_d_epp_request_"), {})[part] = sample.value
            elif part in ("count", "sum") and family.name.startswith("llm_d_epp_response_"):
                found.setdefault(name.removeprefix("llm_d_epp_"), {})[part] = sample.value
    found.pop("duration_seconds")
    return {name: (parts["count"], parts["sum"]) for name, parts in found.items()}


def test_an_answer_that_is_not_streamed(telemetry: Telemetry, picking: Any) -> None:
    pieces = [(102.0, CHAT[:20]), (103.0, CHAT[20:]), (104.0, b"")]
    pick = picking("10.0.0.1:8000")
    pick.request.prompt_size = 400  # what the answer says counts instead of an estimate
    answer(telemetry, pick, head(), pieces, ended=104.0)
    assert counted(telemetry) == {
        "input_tokens": (1, 700),
        "output_tokens": (1, 11),
        "cached_tokens": (1, 512),
        "ttft_seconds": (1, 4.0),
        "ntpot_seconds": (1, pytest.approx(4 / 11)),
        "response_size_bytes": (1, len(CHAT)),
    }
    value = telemetry.registry.get_sample_value
    assert value("llm_d_epp_request_ttft_seconds_count", M | {"streaming": "false"}) == 1


def test_an_answer_that_is_streamed(telemetry: Telemetry, picking: Any) -> None:
    pieces = [(102.0, EVENTS[:10]), (102.5, EVENTS[10:60]), (104.0, EVENTS[60:]), (105.0, b"")]
    answer(telemetry, picking("10.0.0.1:8000"), head("text/event-stream; charset=utf-8"), pieces, ended=105.0)
    assert counted(telemetry) == {
        "input_tokens": (1, 700),
        "output_tokens": (1, 11),
        "cached_tokens": (1, 512),
        "ttft_seconds": (1, 2.0),
        "ntpot_seconds": (1, pytest.approx(5 / 11)),
        "streaming_tpot_seconds": (1, pytest.approx(3 / 10)),
        "streaming_itl_seconds": (2, 2.0),
        "response_size_bytes": (1, len(EVENTS)),
    }
    value = telemetry.registry.get_sample_value
    assert value("llm_d_epp_request_ttft_seconds_count", M | {"streaming": "true"}) == 1


def test_the_older_names_have_the_same_values_without_fairness_ids(
    telemetry: Telemetry, picking: Any
) -> None:
    for fairness_id in ("a", "b"):
        pick = picking("10.0.0.1:8000")
        pick.request.fairness_id, pick.request.body_size = fairness_id, 100
        answer(telemetry, pick, head(), [(102.0, CHAT)], ended=104.0)
    value = telemetry.registry.get_sample_value
    for family in HISTOGRAMS:
        for part in ("count", "sum"):
            if family.older is not None:
                current = sum(
                    value(f"llm_d_epp_{family.name}_{part}", M | {"fairness_id": one}) or 0
                    for one in ("a", "b")
                )
                assert value(f"inference_objective_{family.older}_{part}", OLDER) == current > 0, family.name
    assert value("inference_objective_request_total", OLDER | {"priority": "0"}) == 2
    assert value("inference_objective_running_requests", {"model_name": "m"}) == 0


@pytest.mark.parametrize(
    ("start", "body"),
    [
        pytest.param(head(content_encoding="gzip"), gzip.compress(CHAT), id="compressed"),
        pytest.param(head(), b'{"choices": []}', id="without usage"),
        pytest.param(head(), b'{"usage": {"prompt_tokens": "7", "completion_tokens": -1}}', id="wrong types"),
        pytest.param(head("audio/mpeg"), CHAT, id="no JSON"),
        pytest.param(
            head("text/event-stream"), b'data: {"choices": []}\n\ndata: [DONE]\n\n', id="not included"
        ),
    ],
)
def test_an_answer_that_does_not_say(
    telemetry: Telemetry, picking: Any, start: ResponseHead, body: bytes
) -> None:
    pick = picking("10.0.0.1:8000")
    pick.request.prompt_size = 401
    answer(telemetry, pick, start, [(102.0, body)], ended=104.0)
    found = counted(telemetry)
    assert found.pop("input_tokens") == (1, 101), "estimated: 4 bytes of the prompt are a token"
    assert set(found) == {"ttft_seconds", "response_size_bytes"}


@pytest.mark.parametrize("status", [404, 500, None])
def test_an_error_has_no_tokens_and_no_times(telemetry: Telemetry, picking: Any, status: int | None) -> None:
    pieces = [(102.0, CHAT[:9]), (103.0, CHAT[9:])]
    start = head("text/event-stream", status)
    answer(telemetry, picking("10.0.0.1:8000"), start, pieces, ended=104.0)
    assert counted(telemetry) == {"response_size_bytes": (1, len(CHAT))}


def test_an_answer_that_breaks_off_counts_only_what_was_between_its_pieces(
    telemetry: Telemetry, picking: Any
) -> None:
    pieces = [(102.0, EVENTS[:10]), (102.5, EVENTS[10:])]
    answer(telemetry, picking("10.0.0.1:8000"), head("text/event-stream"), pieces, ended=None)
    assert counted(telemetry) == {"streaming_itl_seconds": (1, 0.5)}


def test_an_empty_answer(telemetry: Telemetry, picking: Any) -> None:
    answer(telemetry, picking("10.0.0.1:8000"), head(status=204), [], ended=104.0)
    assert counted(telemetry) == {"response_size_bytes": (1, 0)}


def test_a_clock_that_stands_still_makes_nothing_negative(telemetry: Telemetry, picking: Any) -> None:
    answer(telemetry, picking("10.0.0.1:8000"), head("text/event-stream"), [(90.0, EVENTS)], ended=89.0)
    page = generate_latest(telemetry.registry).decode()
    values = [float(line.rpartition(" ")[2]) for line in page.splitlines() if not line.startswith("#")]
    assert all(0 <= value < float("inf") for value in values)


def test_without_reading_answers_the_tokens_of_prompts_are_estimated(picking: Any) -> None:
    telemetry = Telemetry()
    for size in (0, 1, 4, 5):
        pick = picking("10.0.0.1:8000")
        pick.request.prompt_size, pick.request.body_size = size, 2 * size
        telemetry.picked(pick, 100.0)
        telemetry.released(pick, 100.0, 101.0)
    assert counted(telemetry) == {"input_tokens": (3, 4), "size_bytes": (3, 20)}


def test_the_older_names_tell_few_models_apart(picking: Any) -> None:
    telemetry = Telemetry()
    for number in range(OLDER_MODELS + 50):
        pick = picking("10.0.0.1:8000")
        pick.request.model = f"m{number}"
        telemetry.picked(pick, 100.0)
        telemetry.released(pick, 100.0, 101.0)
    name = "inference_objective_request_duration_seconds"
    [family] = [family for family in telemetry.registry.collect() if family.name == name]
    counts = {one.labels["model_name"]: one.value for one in family.samples if one.name == f"{name}_count"}
    assert len(counts) == OLDER_MODELS + 1
    assert counts["other"] == 50
    assert sum(counts.values()) == OLDER_MODELS + 50


def pass_by(telemetry: Telemetry, pick: Any, start: ResponseHead, pieces: list[bytes], *, ends: bool) -> None:
    """One request whose answer passes the picker although nobody asked for it."""
    pick.request.prompt_size = 400
    telemetry.picked(pick, 100.5)
    reader = telemetry.read_usage(pick, start, 100.0, 101.0)
    for piece in pieces if reader is not None else ():
        assert reader is not None
        assert reader.read(piece, 102.0) is None
    if reader is not None and ends:
        assert reader.end(103.0) == b""
    telemetry.released(pick, 100.0, 120.0)


@pytest.mark.parametrize(
    ("start", "pieces"),
    [
        pytest.param(head(), [CHAT], id="whole"),
        pytest.param(head(), [CHAT[:40], memoryview(CHAT)[40:50], CHAT[50:], b""], id="pieces"),
        pytest.param(head("text/event-stream; charset=utf-8"), [EVENTS, b"data: [DONE]\n\n"], id="events"),
        pytest.param(head(), [bytes([one]) for one in b"x" * 5000 + CHAT], id="bytes"),
    ],
)
def test_an_answer_that_passes_anyway_says_the_tokens_of_its_prompt_and_nothing_else(
    picking: Any, start: ResponseHead, pieces: list[bytes]
) -> None:
    telemetry = Telemetry()
    told: list[Any] = []
    telemetry.on_usage = [lambda *said: told.append(said)]
    pass_by(telemetry, picking("10.0.0.1:8000"), start, pieces, ends=True)
    assert counted(telemetry) == {"input_tokens": (1, 700)}
    assert told == [], "the end of an answer can be mistaken: good enough for a metric, not for a decision"


@pytest.mark.parametrize(
    ("start", "body", "ends"),
    [
        pytest.param(head(), CHAT, False, id="breaks off"),
        pytest.param(head(status=500), CHAT, True, id="an error"),
        pytest.param(head(status=None), CHAT, True, id="no status"),
        pytest.param(head("audio/mpeg"), CHAT, True, id="no JSON"),
        pytest.param(head(content_encoding="gzip"), CHAT, True, id="compressed"),
        pytest.param(head(), CHAT + b" " * 3000, True, id="too far from the end"),
        pytest.param(head(), b'{"usage": {"prompt_tokens": -1}}', True, id="no count"),
    ],
)
def test_an_answer_that_passes_and_does_not_say_leaves_the_estimate(
    picking: Any, start: ResponseHead, body: bytes, ends: bool
) -> None:
    telemetry = Telemetry()
    pass_by(telemetry, picking("10.0.0.1:8000"), start, [body], ends=ends)
    assert counted(telemetry) == {"input_tokens": (1, 100)}
