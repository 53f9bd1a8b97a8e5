"""The tokens of prompts from a model's files are those that an engine computes, or there are none."""

import json
import random
import time
from array import array
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tokenizers import Tokenizer
from xxhash import xxh3_64_intdigest

from epp.kv_events.tokenizer_files import ModelTokenizer, TokenizerFiles, UncertainPromptError
from epp.scheduling.kv_events.cache_index import CacheIndex
from examples.simulator.kv_messages import stored, vllm
from tests.epp.kv_events.model_files import words, write_model
from tests.epp.kv_events.steps import done, read_batch

CHAT, COMPLETIONS = "chat/completions", "completions"
ODD = ["<s>", "<|im_end|>", "<|", "[", "\n\n", "   ", "é", "日本", "🙂", "1234"]
"""Beside words, what a tokenizer may cut in another way."""


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


class Compared(NamedTuple):
    """`wrong`: prompts whose tokens or keys differ. `seconds`: of processor time, for the tokens of all prompts."""

    wrong: int
    tokens: int
    blocks: int
    seconds: float


def compare_with_events(folder: Path, prompts: int, seed: int = 3) -> Compared:
    """Chats and completions that grow; their worker tokenizes each as a whole, and stores what it has not, as vLLM does."""
    path = folder / "tokenizer.json"
    model, reference = ModelTokenizer(path), Tokenizer.from_file(str(path))
    rng, pieces = random.Random(seed), [*words(), *ODD]
    index = CacheIndex()
    holdings, root, size = index.add_publisher(), index.root(None, ""), 16
    talks: list[list[str]] = [[] for _ in range(40)]
    held: set[int] = set()
    wrong = tokens = 0
    seconds = 0.0
    for _ in range(prompts):
        at = rng.randrange(len(talks))
        talk = talks[at]
        if len(talk) > 20:
            talk.clear()
        talk += [" ".join(rng.choices(pieces, k=rng.randint(1, 30))) for _ in range(1 + 2 * bool(talk))]
        text = rendered(*talk) if at % 2 else "\n".join(talk)
        body = {"messages": said(*talk)} if at % 2 else {"prompt": text}
        computed = array("I", reference.encode(text, add_special_tokens=False).ids)
        names: list[int] = []
        for end in range(size, len(computed) + 1, size):
            names.append(xxh3_64_intdigest(computed[end - size : end].tobytes(), names[-1] if names else 0))
        known = sum(name in held for name in names)
        request, began = json.dumps(body).encode(), time.process_time()
        found = model.of_request(request, CHAT if at % 2 else COMPLETIONS)
        seconds += time.process_time() - began
        before = index.match(found, root, holdings.bit, size).get(holdings.bit, 0)
        if known < len(names):
            fresh = computed[known * size : len(names) * size].tolist()
            event = stored(names[known:], fresh, parent=names[known - 1] if known else None)
            done(index.apply(holdings, read_batch(vllm(event)).events))
            held.update(names)
        after = index.match(found, root, holdings.bit, size).get(holdings.bit, 0)
        wrong += found != computed.tobytes() or (before, after) != (known, len(names))
        tokens += len(computed)
    return Compared(wrong, tokens, len(index), seconds)


def test_keys_of_prompts_are_those_of_the_events(folder: Path) -> None:
    """The picker finds what its worker holds of each, before and after: no block less, and none more."""
    compared = compare_with_events(folder, 1000)
    assert compared.wrong == 0
    assert compared.blocks > 1000
