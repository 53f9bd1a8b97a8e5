import json
import random
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epp.ext_proc.model_restorer import ModelRestorer, open_restorer
from epp.ext_proc.response_body import ResponseHead
from epp.request.inference_request import InferenceRequest
from epp.scheduling.pick import Pick
from tests.epp.json_texts import OBJECTS, SERVED, VALUES, Pairs, Writer, cut, joined, restored

NAMED = 'the "client\'s" ä'
NAME = json.dumps(NAMED, ensure_ascii=False).encode()


def seen(pieces: Sequence[bytes], *, events: bool, served: str = SERVED, named: str = NAMED) -> bytes:
    """What the client gets."""
    restorer = ModelRestorer(served, named, events=events)
    out = b""
    for piece in pieces:
        read = restorer.read(piece, 0.0)
        out += piece if read is None else bytes(read)
    return out + restorer.end(0.0)


CHAT = b'{"id":"1","model":"m","choices":[{"message":{"content":"\\"model\\":\\"m\\"","model":"m"}}],"usage":{"a":1}}'
SEEN_CHAT = CHAT.replace(b'"id":"1","model":"m"', b'"id":"1","model":"gpt"')
RESPONSES = b'{"type":"response.created","response":{"model" : "m","metadata":{"model":"m"}}}'
SEEN_RESPONSES = RESPONSES.replace(b'"model" : "m"', b'"model" : "gpt"')
MESSAGES = b'{"type":"message_start","message":{"id":"1","model":"\\u006d"}}'
SEEN_MESSAGES = MESSAGES.replace(b'"\\u006d"', b'"gpt"')
ANSWERS = [
    (CHAT, SEEN_CHAT),
    (RESPONSES, SEEN_RESPONSES),
    (MESSAGES, SEEN_MESSAGES),
    (b'{"model":"mm"}', b'{"model":"mm"}'),
    (
        b'{"model":{"model":"m"},"model":["m"],"model":null}',
        b'{"model":{"model":"m"},"model":["m"],"model":null}',
    ),
    (b'[{"model":"m"}]', b'[{"model":"m"}]'),
    (b'{"model":"m"}\n{"model":"m"}\n', b'{"model":"gpt"}\n{"model":"gpt"}\n'),
    (b'{"model":"m', b'{"model":"m'),
    (b'{"x":"\\"","model":"m"}', b'{"x":"\\"","model":"gpt"}'),
    (b'{"mod\\u0065l":"m","x\\"model":"m"}', b'{"mod\\u0065l":"gpt","x\\"model":"m"}'),
    (b'\xff\xfe not JSON } ] " \\', b'\xff\xfe not JSON } ] " \\'),
]
EVENTS = [
    (b"data: %s\n\n" % CHAT * 2 + b"data: [DONE]\n\n", b"data: %s\n\n" % SEEN_CHAT * 2 + b"data: [DONE]\n\n"),
    (
        b"event: response.created\r\ndata:%s\r\n\r\n" % RESPONSES,
        b"event: response.created\r\ndata:%s\r\n\r\n" % SEEN_RESPONSES,
    ),
    (b': "{\rdata: %s\r\r' % MESSAGES, b': "{\rdata: %s\r\r' % SEEN_MESSAGES),
    (b'data: {\ndata: "model":\ndata: "m"}\n\n', b'data: {\ndata: "model":\ndata: "gpt"}\n\n'),
    (b'data: {"a\n\ndata: {"model":"m"}\n\n', b'data: {"a\n\ndata: {"model":"gpt"}\n\n'),
    (b'data: {"model":"m\n\ndata: {"model":"m"}\n\n', b'data: {"model":"m\n\ndata: {"model":"gpt"}\n\n'),
    (b'data: {\n\ndata: {"model":"m"}\n\n', b'data: {\n\ndata: {"model":"gpt"}\n\n'),
    (b'id: {"model":"m"}\n\n', b'id: {"model":"m"}\n\n'),
]


@pytest.mark.parametrize(
    ("body", "expected", "events"),
    [(*answer, False) for answer in ANSWERS] + [(*answer, True) for answer in EVENTS],
)
def test_at_every_split_point(body: bytes, expected: bytes, events: bool) -> None:
    whole = [body]
    halves = [[body[:at], body[at:]] for at in range(len(body) + 1)]
    letters = [body[at : at + 1] for at in range(len(body))]
    for pieces in (whole, letters, *halves):
        assert seen(pieces, events=events, served="m", named="gpt") == expected, pieces


PLACES = st.lists(st.integers(0, 10_000), max_size=8)


@given(OBJECTS | VALUES, PLACES, st.randoms(use_true_random=False))
def test_any_json_in_any_pieces(answer: Pairs, places: list[int], rng: random.Random) -> None:
    parts = Writer(rng).parts(answer)
    assert seen(cut(joined(parts), places), events=False) == restored(parts, SERVED, NAME)


@given(st.lists(OBJECTS, max_size=4), PLACES, st.randoms(use_true_random=False))
def test_any_events_in_any_pieces(answers: list[Pairs], places: list[int], rng: random.Random) -> None:
    """Also with data of several lines, and with every end of a line that there is."""
    body = expected = b""
    for answer in answers:
        end = rng.choice([b"\n", b"\r\n", b"\r"])
        parts = Writer(rng, (b"", b"", b" ", b"\t", end + b"data:", end + b"data: ")).parts(answer)
        head = rng.choice([b"", b"event: x" + end, b': a "comment {' + end]) + rng.choice(
            [b"data:", b"data: "]
        )
        body += head + joined(parts) + end * 2
        expected += head + restored(parts, SERVED, NAME) + end * 2
    assert seen(cut(body, places), events=True) == expected


@given(st.binary(max_size=200), PLACES, st.booleans())
def test_what_has_no_name_in_it_is_not_changed(body: bytes, places: list[int], events: bool) -> None:
    assert seen(cut(body, places), events=events, served="no such name") == body


LIKE = b'data: {"id":"1","model":"m","text":"%s"}\n\n'
HIDDEN = b'","mod\\u0065l":"m","x":"'
CHUNKS = [
    *(
        LIKE % text
        for text in (b"a", b"\\u4f60", b'\\"model\\":', b'","model":"m","x":"', HIDDEN, b"\rdata: ")
    ),
    *((LIKE % b"a").replace(b"\n\n", end) for end in (b"", b"\n", b"\r\n\r\n", b'\ndata: ,"model":"m"}\n\n')),
    (LIKE % b"a").replace(b'"id":"1"', b'"id":"2"'),
    (LIKE % b"a").replace(b'"id":"1"', b'"model":"m"'),
    (LIKE % b"a").replace(b'"1"', b'"model"'),
    b"data: [DONE]\n\n",
    b"data: {\n",
    b"event: x",
    b": ping\r",
    b"\n",
]


@given(st.lists(st.lists(st.sampled_from(CHUNKS), min_size=1, max_size=4).map(b"".join), max_size=3), PLACES)
@example([LIKE % HIDDEN], [])
@example([b"data: {\n", LIKE % b"a"], [])
@example([b"event: x", LIKE % b"a"], [])
@example([b'data: {"model":"m', LIKE % b"a"], [])
@example([(LIKE % b"a").replace(b"\n\n", b""), LIKE % b"a"], [])
@example([(LIKE % b"a") + b"x" + LIKE % b"a"], [])
def test_events_that_are_alike_are_read_as_letter_by_letter(pieces: list[bytes], places: list[int]) -> None:
    """A piece is replaced as a whole if it has the form of one before; a single letter never is."""
    body = LIKE % b"first" + b"".join(pieces)
    letters = seen([body[at : at + 1] for at in range(len(body))], events=True, served="m")
    assert seen([LIKE % b"first", *pieces], events=True, served="m") == letters
    assert seen(cut(body, places), events=True, served="m") == letters


def test_a_piece_without_a_name_is_reported_as_unchanged() -> None:
    restorer = ModelRestorer("m", "gpt", events=True)
    assert restorer.read(b'data: {"choices":[]}\n\n', 0.0) is None
    assert restorer.read(b'data: {"model":"other"}\n\n', 0.0) is None


def test_a_key_that_never_ends_is_not_kept() -> None:
    restorer = ModelRestorer("m", NAMED, events=False)
    tracemalloc.start()
    try:
        restorer.read(b'{"', 0.0)
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20_000):
            restorer.read(b"\\", 0.0)  # a piece may end within an escape
            restorer.read(b'"', 0.0)
        assert tracemalloc.get_traced_memory()[0] - before < 8_192
    finally:
        tracemalloc.stop()
    assert restorer.read(b'":1,"model":"m"}', 0.0) == b'":1,"model":%s}' % NAME


def test_no_more_than_a_name_is_held_back() -> None:
    restorer = ModelRestorer("m", "gpt", events=False)
    assert restorer.read(b'{"model":"', 0.0) == b'{"model":'
    held = sent = 0
    for _ in range(100):
        read = restorer.read(b"x" * 1_000, 0.0)
        sent += 1_000 if read is None else len(read)
        held = max(held, 1_000 * (_ + 1) + 1 - sent)
    assert held <= 8_000
    assert sent == 100_001


def restorer(named: str = "gpt", served: str = "m", **headers: str) -> ModelRestorer | None:
    request = InferenceRequest("r", "/v1/completions", {}, named)
    if served != named:
        request.rewrite(served)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return open_restorer(Pick(request, ()), ResponseHead(200, sent))


@pytest.mark.parametrize(
    "kind",
    [
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/problem+json",
        "text/event-stream; charset=utf-8",
    ],
)
def test_answers_that_name_a_model_are_read(kind: str) -> None:
    assert restorer(content_type=kind) is not None
    assert restorer(content_type=kind, content_encoding="identity") is not None


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content_type": "text/html"},
        {"content_type": "audio/mpeg"},
        {"content_type": "application/json", "content_encoding": "gzip"},
        {"content_type": "application/json", "served": "gpt"},
        {"content_type": "application/json", "named": "n" * 2_000},
    ],
    ids=["no type", "a page", "sound", "compressed", "not rewritten", "a long name"],
)
def test_all_others_pass(headers: dict[str, str]) -> None:
    assert restorer(**headers) is None


@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize("repeated", [b"[", b"{", b",", b'"",', b'[{"', b'"model":', b"\n", b"data:[\n"])
def test_whatever_is_given_up_passes_byte_for_byte(repeated: bytes, events: bool) -> None:
    """Beyond, the bytes pass as they are."""
    given_up: list[str] = []
    restorer = ModelRestorer("m", "gpt", events=events, given_up=lambda: given_up.append("once"))
    piece = (b"data:" if events else b"") + b'{"model":"m","a":' + repeated * (100_000 // len(repeated))
    out = [piece if read is None else read for read in (restorer.read(piece, 0.0) for _ in range(5))]
    out.append(restorer.end(0.0))
    assert b"".join(out).replace(b'"gpt"', b'"m"') == piece * 5
    assert len(given_up) <= 1


def test_an_answer_that_is_all_brackets_passes_with_the_worker_s_name() -> None:
    given_up: list[str] = []
    restorer = ModelRestorer("m", "gpt", events=False, given_up=lambda: given_up.append("once"))
    for _ in range(10):
        restorer.read(b"[" * 10_000, 0.0)
    assert restorer.read(b'{"model":"m"}', 0.0) is None
    assert given_up == ["once"]


def test_what_real_answers_hold_is_renamed_to_the_end() -> None:
    """A million tokens with their probabilities, and a stream of as many events, the model behind the choices."""
    token = b'{"token":"abc","logprob":-0.12,"bytes":[97,98],"top_logprobs":[{"token":"a","logprob":-1,"bytes":[97]}]},'
    restorer = ModelRestorer("m", "gpt", events=False)
    restorer.read(b'{"id":"1","choices":[{"index":0,"logprobs":{"content":[', 0.0)
    for _ in range(300):
        restorer.read(token * 100, 0.0)
    assert restorer.read(token[:-1] + b']}}],"model":"m"}', 0.0) == token[:-1] + b']}}],"model":"gpt"}'
    event = b'data: {"id":"1","object":"chunk","created":1,"choices":[{"index":0,"delta":{"content":"a"}}],"model":"m"}\n\n'
    restorer = ModelRestorer("m", "gpt", events=True)
    for _ in range(20_000):
        assert restorer.read(event, 0.0) == event.replace(b'"m"', b'"gpt"')
