"""Answers as model servers write them, in every two pieces, in single bytes, and in pieces of any size."""

import itertools
import json
import tracemalloc
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.response.usage import MOST_TOKENS, NO_USAGE, Usage, read_usage
from epp.response.usage_reader import MAX_OBJECT, UsageReader, read_end

USED: Final = {"prompt_tokens": 7, "total_tokens": 17, "completion_tokens": 10, "prompt_tokens_details": None}
TOOLS: Final = [{"type": "function", "parameters": {"usage": {"prompt_tokens": 1}, "a": [{"usage": {}}]}}]
SAYS: Final = 'he wrote "usage": {"prompt_tokens": 99} \\ and "response": {"usage": {"prompt_tokens": 98}}'


def chat(usage: Any = USED, **more: Any) -> dict[str, Any]:
    """vLLM's ChatCompletionResponse, in its order: other fields come after the usage."""
    message = {
        "role": "assistant",
        "content": SAYS,
        "tool_calls": [{"arguments": json.dumps({"usage": USED})}],
    }
    choice = {"index": 0, "message": message, "logprobs": {"content": [{"token": '"', "usage": {}}]}}
    logprobs = [{"1": {"logprob": -0.5, "decoded_token": "\n{"}}, None]
    return {"id": "chatcmpl-1", "choices": [choice], "usage": usage, "prompt_logprobs": logprobs, **more}


def written(document: Any, **style: Any) -> bytes:
    return json.dumps(document, **style).encode()


def events(*documents: Any, done: bool = True, newline: bytes = b"\n") -> bytes:
    lines = [b"data: " + written(one) for one in documents] + [b"data: [DONE]"] * done
    return b"".join(line + newline * 2 for line in lines)


def delta(text: str, **more: Any) -> dict[str, Any]:
    return {"id": "1", "choices": [{"delta": {"content": text}, "finish_reason": None}], **more}


def read(pieces: Iterable[bytes], *, streamed: bool) -> Usage:
    reader = UsageReader(streamed=streamed)
    for piece in pieces:
        reader.feed(piece)
    return reader.end()


def ways_to_cut(answer: bytes) -> Iterator[list[bytes]]:
    yield [answer]
    yield [answer, b""]
    for at in range(len(answer)):
        yield [answer[:at], answer[at:]]
    yield [answer[at : at + 1] for at in range(len(answer))]


RESPONSES: Final = {"input_tokens": 31, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 16}}
WHOLE: Final[dict[str, tuple[bytes, Usage]]] = {
    "chat": (written(chat()), Usage(7, 10)),
    "chat, spread over lines": (written(chat(), indent=2), Usage(7, 10)),
    "chat, without spaces": (written(chat(), separators=(",", ":")), Usage(7, 10)),
    "chat without a usage": (written({"id": "1", "choices": []}), NO_USAGE),
    "chat with null": (written(chat(None)), NO_USAGE),
    "chat with a list": (written(chat([USED])), NO_USAGE),
    "chat with a number": (written(chat(7)), NO_USAGE),
    "responses": (
        written({"output": [{"text": SAYS}], "tools": TOOLS, "usage": RESPONSES, "user": None}),
        Usage(31, 4, 16),
    ),
    "tools alone": (written({"output": [], "tools": TOOLS}), NO_USAGE),
    "embeddings": (written({"data": [{"embedding": [0.5, -1e-9]}], "usage": {"prompt_tokens": 8}}), Usage(8)),
    "an escaped key": (rb'{"\u0075sage": {"prompt_tokens": 5}, "u\/sage": {"prompt_tokens": 6}}', NO_USAGE),
    "a lone surrogate": (b'{"a": "\\ud800", "usage": {"prompt_tokens": 5}}', Usage(5)),
    "twice: JSON's readers take the last": (
        b'{"usage": {"prompt_tokens": 5}, "usage": {"prompt_tokens": 6}}',
        Usage(6),
    ),
    "of something else, behind a list": (written({"item": {"a": [1], "usage": USED}}), NO_USAGE),
    "an error": (written({"error": {"message": SAYS, "usage": USED}}), NO_USAGE),
    "no JSON": (b'<p class="usage">: {"prompt_tokens": 5}</p>', NO_USAGE),
    "a broken end": (written(chat())[:-3], Usage(7, 10)),
    "cut off in the usage": (b'{"choices": [], "usage": {"prompt_tokens": 7', NO_USAGE),
    "closed too often": (b']}]}{"usage": {"prompt_tokens": 7}}', Usage(7)),
}
STREAMED: Final[dict[str, tuple[bytes, Usage]]] = {
    "chat with include_usage": (
        events(delta("He"), delta(SAYS, usage=None), {"id": "1", "choices": [], "usage": USED}),
        Usage(7, 10),
    ),
    "lines that end as in HTTP": (events(delta("He"), delta("", usage=USED), newline=b"\r\n"), Usage(7, 10)),
    "no newline at the end": (events(delta("", usage=USED), done=False).rstrip(), Usage(7, 10)),
    "the sum so far in every event": (
        events(*(delta("x", usage={"prompt_tokens": 3, "completion_tokens": n}) for n in range(4))),
        Usage(3, 3),
    ),
    "without include_usage": (events(delta("He"), delta(SAYS)), NO_USAGE),
    "responses": (
        b"event: response.created\ndata: "
        + written({"type": "response.created", "response": {"usage": None, "tools": TOOLS}})
        + b"\n\nevent: response.completed\ndata: "
        + written(
            {
                "type": "response.completed",
                "response": {"output": [{"text": SAYS}], "usage": RESPONSES, "tools": TOOLS},
            }
        )
        + b"\n\n",
        Usage(31, 4, 16),
    ),
    "messages": (
        events(
            {"type": "message_start", "message": {"usage": {"input_tokens": 25, "output_tokens": 1}}},
            done=False,
        )
        + events({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 15}}, done=False),
        Usage(25, 15),
    ),
    "tools further down": (events({"response": {"tools": TOOLS}, "item": {"usage": USED}}), NO_USAGE),
    "a broken event": (b'data: {"usage": {"prompt_tokens"\n\n' + events(delta("", usage=USED)), Usage(7, 10)),
}


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_in_every_two_pieces_and_in_bytes(streamed: bool) -> None:
    for what, (answer, usage) in (STREAMED if streamed else WHOLE).items():
        for pieces in ways_to_cut(answer):
            assert read(pieces, streamed=streamed) == usage, (what, pieces)


JSON_VALUES: Final = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text('"\\{}[]:,usage\n\u00e9', max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["usage", "response", "a", '"', "{"]), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["usage", "response", "message", "a", '{"']), JSON_VALUES, max_size=5),
    st.lists(st.integers(0, 400), max_size=6),
)
def test_any_document_in_any_pieces(document: dict[str, Any], cuts: list[int]) -> None:
    """The last usage object in the document's order is the one that a JSON parser finds at the same places."""
    document = {**document, "z": None}
    expected = None
    for key, value in document.items():
        inner = value.get("usage") if key in ("response", "message") and isinstance(value, dict) else None
        for candidate in (inner, value if key == "usage" else None):
            expected = candidate if isinstance(candidate, dict) else expected
    text = written(document)
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    scanner = UsageReader(streamed=False)
    found = None
    for begin, end in itertools.pairwise(bounds):
        scanner.feed(text[begin:end])
    if scanner._document is not None and scanner._document.found is not None:
        found = json.loads(scanner._document.found)
    assert found == expected


def test_a_usage_that_is_too_long_is_no_usage() -> None:
    padding = {"prompt_tokens": 5, "padding": "x" * MAX_OBJECT}
    for pieces in ways_to_cut(written({"usage": padding, "id": 1})[: MAX_OBJECT + 200]):
        assert read(pieces[:2], streamed=False) == NO_USAGE
    assert read([written({"usage": padding})], streamed=False) == NO_USAGE
    assert read([events({"usage": padding}, {"usage": USED})], streamed=True) == Usage(7, 10)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("filling", "megabytes"),
    [
        (b"x" * 65_536, 100),
        (b'\\"usage\\": {' * 5_000, 10),
        (b'"},{"a":[{"token":"b","logprob":-0.1}],"b":"' * 1_500, 10),
    ],
    ids=["text", "escapes", "logprobs"],
)
def test_a_long_answer_holds_a_few_kilobytes(filling: bytes, megabytes: int, streamed: bool) -> None:
    reader = UsageReader(streamed=streamed)
    start, end = b'{"choices": [{"text": "', b'"}], "usage": {"prompt_tokens": 7, "completion_tokens": 9}}'
    tracemalloc.start()
    try:
        reader.feed(b"data: " * streamed + start)
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for _ in range(megabytes * 2**20 // len(filling)):
            reader.feed(filling)
        held, peak = (each - before for each in tracemalloc.get_traced_memory())
        reader.feed(end)
        assert reader.end() == Usage(7, 9)
    finally:
        tracemalloc.stop()
    assert held < 8_192
    assert peak < 8_192 + len(filling)


DEEP: Final = [b'{"a":', *[b"[" * 65_536] * 40, *[b"]" * 65_536] * 40, b"}\n"]
"""5 MB that are nothing but structure."""
TOLD: Final = b'{"usage":{"prompt_tokens":1}}\n'


@pytest.mark.parametrize(
    ("answer", "streamed"),
    [
        pytest.param([*DEEP, TOLD], False, id="whole"),
        pytest.param([TOLD, b"data: ", *DEEP, TOLD], True, id="in an event"),
        pytest.param([TOLD * 2_000] * 80, True, id="usage without end"),
    ],
)
def test_the_usage_of_an_answer_that_is_all_brackets_is_unknown(answer: list[bytes], streamed: bool) -> None:
    assert read(answer, streamed=streamed) == NO_USAGE


def test_what_real_answers_hold_is_read_to_the_end() -> None:
    """Ten thousand tokens with their probabilities, and a stream that says the sum so far in every event."""
    token = b'{"token":"abc","logprob":-0.12,"bytes":[97,98],"top_logprobs":[{"token":"a","logprob":-1,"bytes":[97]}]},'
    begin, end = (
        b'{"id":"1","choices":[{"index":0,"logprobs":{"content":[',
        b']}}],"usage":{"prompt_tokens":7}}',
    )
    assert read([begin, *[token * 100] * 100, token[:-1] + end], streamed=False) == Usage(7)
    said = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    event = events({**said, **delta("a", usage=USED)}, done=False)
    assert read([event] * 20_000, streamed=True) == Usage(7, 10)


def test_a_key_that_never_ends_is_not_kept() -> None:
    reader = UsageReader(streamed=False)
    tracemalloc.start()
    try:
        reader.feed(b'{"')
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20_000):
            reader.feed(b"\\")  # a piece may end within an escape
            reader.feed(b'"')
        assert tracemalloc.get_traced_memory()[0] - before < 8_192
    finally:
        tracemalloc.stop()
    reader.feed(b'": 1, "usage": {"prompt_tokens": 7}}')
    assert reader.end() == Usage(7)


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        pytest.param(written(chat()), Usage(7, 10), id="chat"),
        pytest.param(written(chat(), indent=1), Usage(7, 10), id="indented"),
        pytest.param(events(delta("a"), {"choices": [], "usage": USED}), Usage(7, 10), id="events"),
        pytest.param(
            events(delta("a", usage=USED), delta("b", usage=None)), Usage(7, 10), id="not in the last"
        ),
        pytest.param(
            events({"message": {"usage": {"input_tokens": 5}}}, {"usage": {"output_tokens": 9}}),
            Usage(5),
            id="Anthropic's messages",
        ),
        pytest.param(written({"text": SAYS}), NO_USAGE, id="a text about usage"),
        pytest.param(b'{"usage": {"prompt_tokens": 1', NO_USAGE, id="cut"),
        pytest.param(b"", NO_USAGE, id="empty"),
    ],
)
def test_the_end_of_an_answer_is_enough_to_know_its_prompt(answer: bytes, usage: Usage) -> None:
    assert read_end(answer) == usage
    assert read_end(b'"}}, "a": [{"b": "' + answer) == usage, "which may begin anywhere"


def test_an_end_full_of_usage_is_searched_a_few_times_only() -> None:
    assert read_end(b'{"usage": {"prompt_tokens": 7}}' + b'{"usage":{}}' * 100) == NO_USAGE


@pytest.mark.parametrize(
    ("said", "read"),
    [
        pytest.param(
            {
                "prompt_tokens": 7,
                "total_tokens": 17,
                "completion_tokens": 10,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
            Usage(7, 10, 4),
            id="chat",
        ),
        pytest.param(
            {"prompt_tokens": 7, "completion_tokens": 0, "prompt_tokens_details": None},
            Usage(7, 0, None),
            id="vllm without details",
        ),
        pytest.param(
            {
                "input_tokens": 36,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": 87,
                "output_tokens_details": {"reasoning_tokens": 0},
            },
            Usage(36, 87, 0),
            id="responses",
        ),
        pytest.param(
            {"input_tokens": 3, "output_tokens": 5, "cache_read_input_tokens": 900},
            Usage(3, 5, 900),
            id="messages: its input is without what was cached",
        ),
        pytest.param({"prompt_tokens": 8, "total_tokens": 8}, Usage(8, None, None), id="embeddings"),
        pytest.param({}, NO_USAGE, id="nothing"),
    ],
)
def test_the_fields_of_each_api(said: dict[str, Any], read: Usage) -> None:
    assert read_usage(json.dumps(said).encode()) == read


@pytest.mark.parametrize(
    "value",
    ["12", True, None, [], {}, -1, 0.5, 1e300, MOST_TOKENS + 1, 10**30],
    ids=lambda value: str(value)[:12],
)
def test_what_is_no_count_is_unknown_and_hides_nothing_else(value: Any) -> None:
    said = {"prompt_tokens": value, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": value}}
    assert read_usage(json.dumps(said).encode()) == Usage(None, 3, None)


def test_more_cached_than_there_was_is_unknown_and_a_float_may_be_a_whole_number() -> None:
    assert read_usage(b'{"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 6}}') == Usage(5)
    assert read_usage(b'{"prompt_tokens": 5.0}') == Usage(5)


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"null", b"[]", b"\xff", b'{"prompt_tokens": NaN}', b'{"a":' + b"[" * 4000],
    ids=range(7),
)
def test_what_is_no_object_says_nothing(text: bytes) -> None:
    assert read_usage(text) == NO_USAGE


def test_a_later_event_counts_where_it_says_something() -> None:
    first, last = Usage(input=25, output=1, cached=3), Usage(output=15)
    assert first.updated(last) == Usage(25, 15, 3)
    assert NO_USAGE.updated(first) == first
