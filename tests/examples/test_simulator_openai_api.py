import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.simulator.openai_api import ApiError, Generation, Profile, Reply, models, parse
from examples.simulator.tokens import block_digests, echo, tokenize

PROFILE = Profile(instance_id="decode-1", model="tiny", adapters=("poet",), max_model_len=100)


def completion(**fields: Any) -> Generation:
    body = {"model": "tiny", "prompt": "hello there"} | fields
    return parse(json.dumps(body).encode(), chat=False, profile=PROFILE)


def chat(*contents: Any, **fields: Any) -> Generation:
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": content} for index, content in enumerate(contents)]
    body = {"model": "tiny", "messages": messages} | fields
    return parse(json.dumps(body).encode(), chat=True, profile=PROFILE)


def test_a_completion_echoes_as_many_tokens_as_asked() -> None:
    generation = completion(max_tokens=5)
    assert (generation.prompt, len(generation.answer)) == (["hell", "o", " ther", "e"], 5)
    assert (generation.finish_reason, generation.adapter, generation.stream) == ("length", None, False)
    assert len(completion().answer) == 16


def test_a_chat_answers_once_or_as_long_as_asked() -> None:
    generation = chat("good morning")
    assert ("".join(generation.answer), generation.finish_reason) == ("good morning", "stop")
    assert len(chat("good morning", max_tokens=9).answer) == 9
    assert len(chat("good morning", max_tokens=9, max_completion_tokens=3).answer) == 3


def test_the_next_turn_begins_with_the_last_turn_and_its_answer() -> None:
    first = chat("good morning", max_tokens=7)
    second = chat("good morning", "".join(first.answer), "and then")
    before = [*first.prompt, *first.answer]
    assert list(second.prompt[: len(before)]) == before


def test_content_in_parts_and_without_text() -> None:
    parts = [{"type": "text", "text": "see "}, {"type": "image_url", "image_url": {"url": "x"}}]
    assert "".join(chat(parts).prompt) == "<|user|>see <|image_url|><|assistant|>"
    assert "".join(chat(None).answer) == "I am here."


def test_token_ids_are_a_prompt() -> None:
    assert len(completion(prompt=[1, 2, 3]).prompt) == 3


def test_an_adapter_is_asked_for_as_a_model() -> None:
    generation = completion(model="poet")
    assert (generation.model, generation.adapter) == ("poet", "poet")


def test_an_answer_ends_where_the_model_ends() -> None:
    generation = chat("word " * 45)
    assert len(generation.prompt) + len(generation.answer) <= 100
    assert generation.finish_reason == "stop"
    generation = chat("word " * 60)
    assert len(generation.prompt) + len(generation.answer) == 100
    assert generation.finish_reason == "length"


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b"\xff", 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON|Expected `object`"),
        (b"[]", 400, "Expected `object`, got `array`"),
        (b'{"prompt": "a"}', 400, "missing required field `model`"),
        (b'{"model": "tiny"}', 400, "missing required field `prompt`"),
        (b'{"model": 5, "prompt": "a"}', 400, r"Expected `str`, got `int` - at `\$.model`"),
        (b'{"model": "tiny", "prompt": 5}', 400, r"at `\$.prompt`"),
        (b'{"model": "tiny", "prompt": ""}', 400, "prompt must not be empty"),
        (b'{"model": "tiny", "prompt": "a", "max_tokens": "9"}', 400, r"at `\$.max_tokens`"),
        (b'{"model": "tiny", "prompt": "a", "max_tokens": 0}', 400, "at least 1"),
        (
            b'{"model": "tiny", "prompt": "a", "max_tokens": 100}',
            400,
            "maximum context length is 100 tokens, but 101",
        ),
        (b'{"model": "tiny", "prompt": "a", "n": 2}', 400, "n must be 1"),
        (b'{"model": "huge", "prompt": "a"}', 404, "`huge` does not exist. This worker serves: tiny, poet"),
    ],
)
def test_bad_completions_are_refused(body: bytes, status: int, why: str) -> None:
    with pytest.raises(ApiError, match=why) as caught:
        parse(body, chat=False, profile=PROFILE)
    assert caught.value.status == status
    assert caught.value.body()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], "at least one message"),
        ("hello", r"at `\$.messages`"),
        ([{"content": "a"}], "missing required field `role`"),
        ([{"role": "user", "content": 5}], r"at `\$.messages\[0\].content`"),
        ([{"role": "user", "content": "word " * 200}], "maximum context length"),
    ],
)
def test_bad_chats_are_refused(messages: object, why: str) -> None:
    with pytest.raises(ApiError, match=why):
        parse(json.dumps({"model": "tiny", "messages": messages}).encode(), chat=True, profile=PROFILE)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
fields = st.sampled_from(["model", "prompt", "messages", "max_tokens", "stream", "stream_options", "n"])


@given(body=st.binary() | st.dictionaries(fields, json_values).map(lambda value: json.dumps(value).encode()))
def test_any_body_is_parsed_or_refused(body: bytes) -> None:
    for as_chat in (False, True):
        with suppress(ApiError):
            parse(body, chat=as_chat, profile=PROFILE)


@pytest.mark.parametrize("as_chat", [True, False])
def test_chunks_joined_are_the_whole(as_chat: bool) -> None:
    generation = chat("a b c d") if as_chat else completion(prompt="a b c d", max_tokens=4)
    reply = Reply(generation, request_id="r1", instance_id="decode-1", created=1)
    response_body = reply.response_body(cached_tokens=2)
    chunks = [reply.chunk(index)["choices"][0] for index in range(len(generation.answer))]
    if as_chat:
        said = "".join(chunk["delta"]["content"] for chunk in chunks)
        assert said == response_body["choices"][0]["message"]["content"]
        assert [chunk["delta"].get("role") for chunk in chunks] == ["assistant", None, None, None]
    else:
        assert "".join(chunk["text"] for chunk in chunks) == response_body["choices"][0]["text"]
    assert [chunk["finish_reason"] for chunk in chunks] == [None] * 3 + [generation.finish_reason]
    assert response_body["usage"] == reply.usage_chunk(2)["usage"]
    assert response_body["usage"]["total_tokens"] == len(generation.prompt) + 4
    assert response_body["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    assert response_body["system_fingerprint"] == "decode-1"
    assert response_body["id"] == ("chatcmpl-r1" if as_chat else "cmpl-r1")


def test_models_lists_adapters_with_their_parent() -> None:
    entries = models(PROFILE, created=1)["data"]
    assert [(entry["id"], entry["parent"]) for entry in entries] == [("tiny", None), ("poet", "tiny")]


@given(st.text())
def test_tokens_joined_are_the_text(text: str) -> None:
    assert "".join(tokenize(text)) == text


@given(st.text(), st.integers(1, 200))
def test_an_answer_has_the_length_asked_for_and_reads_back_as_the_same_tokens(text: str, count: int) -> None:
    answer = echo(text, count)
    assert len(answer) == count
    assert tokenize("".join(answer)) == answer


def test_without_a_length_the_text_is_said_once() -> None:
    assert "".join(echo("  how are you ", None)) == "how are you"
    assert "".join(echo("", None)) == "I am here."


def test_digests_are_equal_as_far_as_the_prefixes_are() -> None:
    left = block_digests("m", list("aaaabbbbcccc"), 4)
    right = block_digests("m", list("aaaaXbbbcccc"), 4)
    assert len(left) == len(right) == 3
    assert [a == b for a, b in zip(left, right, strict=True)] == [True, False, False]
    assert block_digests("other", list("aaaa"), 4) != block_digests("m", list("aaaa"), 4)


def test_a_block_that_is_not_full_has_no_digest() -> None:
    assert block_digests("m", list("aaa"), 4) == ()
    assert len(block_digests("m", list("aaaab"), 4)) == 1
