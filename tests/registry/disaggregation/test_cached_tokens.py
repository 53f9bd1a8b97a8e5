"""`usage` of the decode worker says what the prefill worker had cached; all other bytes stay."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.disaggregation.cached_tokens import EventRewriter, cached_tokens, rewritten


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            b'{"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 9, "audio_tokens": 1}}}',
            b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4,"audio_tokens":1}}}',
        ),
        (
            b'{"id": 1.50, "usage": {"prompt_tokens": 9}}',
            b'{"id":1.50,"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}',
        ),
        (
            b'{"type": "response.completed", "response": {"usage": {"input_tokens": 9}}}',
            b'{"type":"response.completed","response":{"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":4}}}}',
        ),
    ],
)
def test_the_number_is_replaced(before: bytes, after: bytes) -> None:
    assert rewritten(before, 4) == after
    assert rewritten(after, 4) == after


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b'{"usage": null}',
        b'{"usage": []}',
        b'{"usage": {"other": 1}}',
        b'["usage"]',
        b'{"a": "usage"}',
        b'{"usage": {"prompt_tokens": 1, "prompt_tokens_details": 5}}',
        b'{"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}} }',
        b'{"usage": ' + b"[" * 10_000,
    ],
)
def test_what_has_none_stays(document: bytes) -> None:
    assert rewritten(document, 4) == document


@given(st.data(), st.lists(st.binary(max_size=20), max_size=10))
def test_a_stream_without_usage_stays_however_it_is_cut(data: st.DataObject, parts: list[bytes]) -> None:
    stream = b"".join(parts).replace(b'"usage"', b"")
    rewriter = EventRewriter(3)
    out = b"".join(map(rewriter.feed, cut(data, stream))) + rewriter.end()
    assert out == stream


@given(st.data())
def test_a_stream_with_usage_is_changed_however_it_is_cut(data: st.DataObject) -> None:
    usage = b'{"choices":[],"usage":{"prompt_tokens":9}}'
    stream = b'data: {"choices":[1]}\r\n\r\ndata:' + usage + b"\r\n\r\n: c\n\ndata: [DONE]\n\n"
    rewriter = EventRewriter(3)
    out = b"".join(map(rewriter.feed, cut(data, stream))) + rewriter.end()
    assert out == stream.replace(usage, rewritten(usage, 3))


def cut(data: st.DataObject, stream: bytes) -> list[bytes]:
    at = sorted({0, len(stream), *data.draw(st.lists(st.integers(0, len(stream)), max_size=8))})
    return [stream[a:b] for a, b in pairwise(at)]


@pytest.mark.parametrize(
    ("usage", "count"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 5}}, 5),
        ({"input_tokens_details": {"cached_tokens": 6}}, 6),
        ({"prompt_tokens_details": None}, 0),
        ({"prompt_tokens_details": {"cached_tokens": "x"}}, 0),
        (None, 0),
    ],
)
def test_what_a_prefill_worker_says(usage: object, count: int) -> None:
    assert cached_tokens(json.loads(json.dumps(usage))) == count
