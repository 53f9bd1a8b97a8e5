"""The tokens of prompts from a model's files are those that an engine computes, or there are none."""

import json
import random
from array import array
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from epp.kv_events.tokenizer_files import ModelTokenizer, TokenizerFiles, UncertainPromptError
from epp.scheduling.kv_events.cache_index import CacheIndex
from examples.simulator.kv_messages import stored, vllm
from tests.epp.kv_events.model_files import words, write_model
from tests.epp.kv_events.steps import done, read_batch

CHAT, COMPLETIONS = "chat/completions", "completions"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    write_model(path)
    return path


@pytest.fixture
def model(folder: Path) -> ModelTokenizer:
    return ModelTokenizer(folder / "tokenizer.json")


@pytest.fixture
def reference(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def tokens_of(model: ModelTokenizer, api: str, **body: Any) -> list[int]:
    return array("I", model.of_request(json.dumps(body).encode(), api)).tolist()


def said(*texts: str) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]


def rendered(*texts: str, end: str = "<|im_start|>assistant\n") -> str:
    turns = (f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in said(*texts))
    return "".join(turns) + end


def test_a_chat_is_tokenized_as_its_template_says(model: ModelTokenizer, reference: Tokenizer) -> None:
    text = rendered("hello there", "yes", "more <s> of it  \n")
    expected = reference.encode(text, add_special_tokens=False).ids
    chat = said("hello there", "yes", "more <s> of it  \n")
    assert tokens_of(model, CHAT, messages=chat) == expected
    assert tokens_of(model, CHAT, messages=chat) == expected  # remembered
    parts = [*chat[:2], {"role": "user", "content": [{"type": "text", "text": "more <s> of it  \n"}]}]
    assert tokens_of(model, CHAT, messages=parts) == expected
    no_reply = tokens_of(model, CHAT, messages=chat[:1], add_generation_prompt=False)
    assert no_reply == reference.encode(rendered("hello there", end="")).ids
    no_thought = tokens_of(model, CHAT, messages=chat[:1], chat_template_kwargs={"enable_thinking": False})
    assert no_thought == reference.encode(rendered("hello there") + "<think>").ids


def test_tools_and_their_calls_are_a_part_of_the_prompt(model: ModelTokenizer, reference: Tokenizer) -> None:
    call = {"type": "function", "function": {"name": "look", "arguments": '{"place": "é"}'}}
    messages = [*said("go"), {"role": "assistant", "tool_calls": [call]}]
    tool = {"type": "function", "function": {"name": "look"}}
    text = (
        f"<|im_start|>system\n{json.dumps(tool)}<|im_end|>\n<|im_start|>user\ngo<|im_end|>\n"
        "<|im_start|>assistant\nlooké<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokens_of(model, CHAT, messages=messages, tools=[tool]) == reference.encode(text).ids


def test_a_completion_is_its_text(model: ModelTokenizer, reference: Tokenizer) -> None:
    assert tokens_of(model, COMPLETIONS, prompt="a text") == reference.encode("a text").ids


@pytest.mark.parametrize(
    "body",
    [
        {"messages": said("x"), "chat_template": "{{ messages }}"},
        {"messages": said("x"), "continue_final_message": True},
        {"messages": said("x"), "truncate_prompt_tokens": 5},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 2}]},
        {"messages": [{"role": "user", "content": 7}]},
    ],
)
def test_what_is_not_certain_has_no_tokens(model: ModelTokenizer, body: dict[str, Any]) -> None:
    with pytest.raises(UncertainPromptError):
        model.of_request(json.dumps(body).encode(), CHAT)


@pytest.mark.anyio
async def test_files_that_are_none_and_requests_that_fail_give_none(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    refusing = tmp_path / "refusing"
    write_model(refusing)
    (refusing / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    files = TokenizerFiles({"none": str(tmp_path), "good": str(folder), "refusing": str(refusing)})
    try:
        assert files.has("none")
        body = json.dumps({"messages": said("x")}).encode()
        assert await files.tokens("none", body, CHAT) is None
        assert not files.has("none")
        assert not files.has("unknown")
        assert await files.tokens("good", body, CHAT)
        assert await files.tokens("good", b"{}", CHAT) is None
        assert await files.tokens("good", body, "responses") is None
        assert await files.tokens("refusing", body, CHAT) is None
    finally:
        files.close()


def test_a_tokenizer_that_looks_over_the_whole_is_not_cut(tmp_path: Path) -> None:
    write_model(tmp_path)
    path = tmp_path / "tokenizer.json"
    document = json.loads(path.read_text())
    document["added_tokens"][1]["rstrip"] = True  # it takes the space after it
    path.write_text(json.dumps(document))
    text = rendered("a", "b")
    found = tokens_of(ModelTokenizer(path), CHAT, messages=said("a", "b"))
    assert found == Tokenizer.from_file(str(path)).encode(text).ids


def test_keys_of_prompts_are_those_of_the_events(model: ModelTokenizer, reference: Tokenizer) -> None:
    """Conversations that grow, stored as their worker tokenizes them: the picker finds each whole."""
    rng, vocabulary = random.Random(3), words()
    index = CacheIndex()
    holdings = index.add_publisher()
    talks: list[list[str]] = [[] for _ in range(40)]
    number = 0
    for _ in range(1000):
        talk = rng.choice(talks)
        talk += [" ".join(rng.choices(vocabulary, k=rng.randint(1, 30))) for _ in range(1 + 2 * bool(talk))]
        computed = reference.encode(rendered(*talk), add_special_tokens=False).ids
        names = list(range(number, number + len(computed) // 16))
        number += len(names)
        batch = read_batch(vllm(stored(names, computed[: len(names) * 16])))
        done(index.apply(holdings, batch.events))
        found = model.of_request(json.dumps({"messages": said(*talk)}).encode(), CHAT)
        assert found == array("I", computed).tobytes()
        assert index.match(found, index.root(None, ""), holdings.bit, 16).get(holdings.bit, 0) == len(names)
        if len(talk) > 20:
            talk.clear()
