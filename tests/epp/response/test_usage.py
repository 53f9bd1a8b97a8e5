import json
from typing import Any

import pytest

from epp.response.usage import MOST_TOKENS, NO_USAGE, Usage, read_usage


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


def test_more_cached_than_there_was_is_unknown() -> None:
    assert read_usage(b'{"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 6}}') == Usage(5)


def test_a_whole_number_may_be_written_as_a_float() -> None:
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
