"""The prefix plugins: the Go picker's values, and what counts as the same beginning."""

import json
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.prefix_index import Filled
from epp.endpoints.endpoint import EndpointPool
from epp.request.inference_request import InferenceRequest, PrefixChain, parse_request
from epp.scheduling.cached_scores import WeightedScorer, add_scores, run_scorers
from epp.scheduling.prefix.producer import BlockEnds, PrefixCacheProducer
from epp.scheduling.prefix.scorer import PrefixCacheScorer
from tests.epp.scheduling.endpoint_pools import make_endpoint, unread


def pool_of(count: int) -> EndpointPool:
    return unread([make_endpoint(f"pod{i + 1}", address=f"10.0.0.{i + 1}") for i in range(count)])


POOL = pool_of(3)


def asked(prompt: Any, model: str = "m", **fields: Any) -> InferenceRequest:
    body = json.dumps({"model": model, "prompt": prompt} | fields).encode()
    return parse_request({":path": "/v1/completions"}, body, lambda: "r")


def chat(*messages: dict[str, Any], **fields: Any) -> InferenceRequest:
    body = json.dumps({"model": "m", "messages": messages} | fields).encode()
    return parse_request({":path": "/v1/chat/completions"}, body, lambda: "r")


def blocks(producer: PrefixCacheProducer, request: InferenceRequest) -> list[int]:
    producer.prepare(request, POOL)
    return list(request.prefixes[producer].hashes)


def shared(producer: PrefixCacheProducer, one: InferenceRequest, other: InferenceRequest) -> int:
    """How many blocks their beginnings have in common."""
    pairs = list(zip(blocks(producer, one), blocks(producer, other), strict=False))
    return next((index for index, (a, b) in enumerate(pairs) if a != b), len(pairs))


def column(scorer: PrefixCacheScorer, request: InferenceRequest, pool: EndpointPool) -> list[float]:
    return add_scores(np.zeros(len(pool)), run_scorers([WeightedScorer(scorer)], request, pool)).tolist()


def scores(scorer: PrefixCacheScorer, request: InferenceRequest) -> list[float]:
    scorer.producer.prepare(request, POOL)
    return column(scorer, request, POOL)


def holding(total: int, *held: int, **scorer: Any) -> list[float]:
    """The scores of a chain of `total` blocks of one token, of which each endpoint holds the first ones."""
    producer = PrefixCacheProducer(block_tokens=1)
    for endpoint, count in zip(POOL.endpoints, held, strict=False):
        producer.index.record(range(count), endpoint.key, 1000)
    request = asked("x")
    request.prefixes[producer] = PrefixChain(range(total), 1, total, range(1, 999))
    return column(PrefixCacheScorer(producer, **scorer), request, POOL)


def test_the_scorer_s_values() -> None:
    # prefix-cache-scorer of the Go picker: the share of the blocks; with a weight, the square of the length too
    assert holding(10, 5, 2) == pytest.approx([0.5, 0.2, 0])
    half = {"length_weight": 0.5, "length_scale": 100}
    assert holding(10, 5, **half)[0] == pytest.approx(0.25125)
    assert holding(100, 50, **half)[0] == pytest.approx(0.375)
    assert holding(400, 400, **half)[0] == pytest.approx(1.0)


def test_the_scorer_s_values_where_many_hold_the_beginning() -> None:
    producer, pool = PrefixCacheProducer(block_tokens=1), pool_of(30)
    for row, endpoint in enumerate(pool.endpoints):
        producer.index.record(range(row), endpoint.key, 1000)
    request = asked("x")
    request.prefixes[producer] = PrefixChain(range(20), 1, 20, range(1, 999))
    expected = [0.5 * min(row, 20) / 20 + 0.5 * (min(row, 20) / 100) ** 2 for row in range(30)]
    assert column(PrefixCacheScorer(producer, 0.5, 100), request, pool) == pytest.approx(expected)
    assert column(PrefixCacheScorer(producer), request, pool) == [min(row, 20) / 20 for row in range(30)]


def test_the_producer_s_values() -> None:
    # approx-prefix-cache-producer of the Go picker, blocks of one token, which is four bytes
    scorer = PrefixCacheScorer(PrefixCacheProducer(block_tokens=1))
    first = asked("aaaabbbb")
    scorer.producer.prepare(first, POOL)
    for endpoint in (POOL.endpoints[0], POOL.endpoints[2]):
        scorer.producer.served(first, [endpoint])
    assert scores(scorer, asked("aaaacccc")) == [0.5, 0, 0.5]
    assert scores(scorer, asked("aaaabbbb")) == [1, 0, 1]
    assert scores(scorer, asked("ccccbbbb")) == [0, 0, 0]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"block_tokens": 1, "max_tokens": 2}, 2),
        ({"block_tokens": 1, "max_tokens": 2, "max_blocks": 3}, 2),
        ({"block_tokens": 1, "max_blocks": 3}, 3),
        ({"block_tokens": 1}, 4),
        ({"block_tokens": 3}, 2),
        ({"block_tokens": 3, "max_tokens": 2}, 1),
    ],
)
def test_how_much_is_looked_at(parameters: dict[str, int], expected: int) -> None:
    assert len(blocks(PrefixCacheProducer(**parameters), asked("aaaabbbbccccdddd"))) == expected


@given(length=st.integers(1, 9_000_000), part=st.floats(0, 1))
def test_the_share_of_a_long_prompt_is_told_to_a_few_percent_with_few_blocks(
    length: int, part: float
) -> None:
    cuts = BlockEnds(16)
    count = cuts.count(length)
    assert cuts.ends[count - 1] >= length > (cuts.ends[count - 2] if count > 1 else 0)
    assert cuts.ends[:3] == [1, 2, 3][: len(cuts.ends)]
    assert count <= 32 + 24 * math.log(max(1.0, length / 32)) + 2
    held = int(part * length)
    known = max((end for end in cuts.ends[:count] if end <= held), default=0)
    assert held - known < max(1, held / 16)


def test_the_score_of_a_long_prompt_is_the_share_of_its_length() -> None:
    scorer = PrefixCacheScorer(producer := PrefixCacheProducer(block_tokens=64))
    text = "".join(f"{number:07} " for number in range(20_000))
    producer.prepare(first := asked(text), POOL)
    producer.served(first, [POOL.endpoints[0]])
    assert len(producer.index) < 100
    assert scores(scorer, asked(text)) == [1, 0, 0]
    for share in (0.1, 0.5, 0.9):
        same = text[: int(share * len(text))]
        parted = scores(scorer, asked(same + "?" * (len(text) - len(same))))
        assert share * 15 / 16 <= parted[0] <= share
        longer = scores(scorer, asked(text + text[: int(share * len(text))]))
        assert 15 / 16 / (1 + share) <= longer[0] <= 1 / (1 + share)


def test_an_endpoint_is_believed_to_hold_so_many_blocks_of_the_shortest_kind() -> None:
    producer = PrefixCacheProducer(block_tokens=1, capacity=500)
    scorer = PrefixCacheScorer(producer)
    one, other = asked("abcd" * 400), asked("efgh" * 400)
    for request in (one, other):
        producer.prepare(request, POOL)
        producer.served(request, [POOL.endpoints[0]])
    assert scores(scorer, other)[0] == 1
    assert 0 < scores(scorer, one)[0] < 0.25


def test_an_endpoint_holds_what_its_cache_has_room_for() -> None:
    told, other = POOL.endpoints[:2]
    for auto_tune, held in ((True, 20), (False, 32)):
        producer = PrefixCacheProducer(block_tokens=4, capacity=32, auto_tune=auto_tune)
        producer.sized(told, 80)
        request = asked("abcdefgh" * 400)
        for endpoint in (told, other):
            producer.prepare(request, POOL)
            producer.served(request, [endpoint])
        prefix = request.prefixes[producer]
        counts = producer.index.match(prefix.hashes, POOL.endpoints)
        assert counts == {0: held, 1: 32}
        producer.retain([other])
        producer.forget(told)
        producer.served(request, [told])
        assert producer.index.match(prefix.hashes, POOL.endpoints) == {0: 32, 1: 32}, "it was away"


def test_the_last_block_may_be_short() -> None:
    assert len(blocks(PrefixCacheProducer(block_tokens=128), asked("x" * 192 * 4))) == 2


TURNS = [
    {"role": "system", "content": "You are helpful. " * 40},
    {"role": "user", "content": [{"type": "text", "text": "What is this? " * 40}]},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "look"}}] * 9},
    {"role": "tool", "content": "A cat. " * 40},
]


def test_a_chat_that_goes_on_begins_as_it_did() -> None:
    producer = PrefixCacheProducer(block_tokens=16)
    before = blocks(producer, chat(*TURNS[:3]))
    after = blocks(producer, chat(*TURNS))
    assert len(after) > len(before) > 20
    assert after[: len(before) - 1] == before[:-1]


@pytest.mark.parametrize(
    "other",
    [
        asked("x" * 999, model="other"),
        asked("x" * 999, cache_salt="tenant"),
        asked("y" + "x" * 999),
        chat({"role": "user", "content": "x" * 999}),
    ],
)
def test_what_shares_no_cache_shares_no_block(other: InferenceRequest) -> None:
    assert shared(PrefixCacheProducer(), asked("x" * 999), other) == 0


def test_a_chat_s_tools_roles_and_calls_are_part_of_it() -> None:
    producer = PrefixCacheProducer(block_tokens=1)
    plain = chat({"role": "user", "content": "x" * 99})
    assert shared(producer, plain, chat({"role": "user", "content": "x" * 99})) == 27
    assert shared(producer, plain, chat({"role": "user", "content": "x" * 99}, tools=[{"type": "f"}])) == 0
    assert shared(producer, plain, chat({"role": "system", "content": "x" * 99})) == 0
    called = TURNS[2] | {"tool_calls": [{"id": "2", "function": {"name": "look"}}] * 9}
    same = shared(producer, chat(TURNS[0], TURNS[2]), chat(TURNS[0], called))
    assert len(blocks(producer, chat(TURNS[0]))) <= same < len(blocks(producer, chat(TURNS[0], called)))


def test_two_pickers_name_blocks_differently() -> None:
    assert blocks(PrefixCacheProducer(seed=1), asked("x")) != blocks(PrefixCacheProducer(seed=2), asked("x"))


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/models", b""), ("/v1/rerank", b'{"model":"m","query":"q"}'), ("/x", b"\x00")]
)
def test_a_request_without_a_prompt_has_no_blocks(path: str, body: bytes) -> None:
    scorer = PrefixCacheScorer(producer := PrefixCacheProducer())
    request = parse_request({":path": path}, body, lambda: "r")
    assert scores(scorer, request) == [0, 0, 0]
    producer.served(request, [POOL.endpoints[0]])
    assert len(producer.index) == 0


CONTENT = st.text(max_size=40) | st.lists(st.text(max_size=9), max_size=2) | st.none()
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.text(max_size=4), "content": CONTENT}), min_size=1, max_size=5
)


@given(messages=MESSAGES, limit=st.integers(0, 300))
def test_the_head_of_a_chat_is_the_beginning_of_all_of_it(messages: list[dict[str, Any]], limit: int) -> None:
    prompt = chat(*messages).prompt
    assert prompt is not None
    assert prompt.prefix(limit) == prompt.prefix(None)[:limit]


@given(text=st.text(min_size=1, max_size=60), limit=st.integers(0, 80))
def test_the_head_of_a_text(text: str, limit: int) -> None:
    prompt = asked(text).prompt
    assert prompt is not None
    assert prompt.prefix(limit) == json.dumps(text)[1:-1].encode()[:limit]


@given(one=st.text(min_size=1), other=st.text(min_size=1))
def test_as_many_blocks_are_shared_as_are_equal(one: str, other: str) -> None:
    producer = PrefixCacheProducer(block_tokens=1, grain=1000)
    first, second = (json.dumps(text)[1:-1].encode() for text in (one, other))
    same = 0
    while (piece := first[same * 4 : same * 4 + 4]) and piece == second[same * 4 : same * 4 + 4]:
        same += 1
    assert shared(producer, asked(one), asked(other)) == same


WORKERS = 10


@pytest.mark.parametrize(("workers_in_all", "least"), [(1000, 0.6), (100, 0.95)])
def test_it_remembers_what_caches_of_a_million_tokens_hold_in_a_gibibyte(
    workers_in_all: int, least: float
) -> None:
    filled = Filled(WORKERS, 1000, 1024**3 * WORKERS // workers_in_all)
    assert filled.remembered() >= least
    assert filled.index.used_bytes <= filled.index.max_bytes


@pytest.mark.parametrize("prompt_tokens", [256, 1000])
def test_it_takes_the_memory_that_it_says(prompt_tokens: int) -> None:
    tracemalloc.start()
    try:
        filled = Filled(1, prompt_tokens)
        traced, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert filled.index.used_bytes / 2 < traced < filled.index.used_bytes * 1.1
