"""Connectors beside NIXL's, `usage` with what the prefill worker had cached, and who may be asked for a prompt."""

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

import discovery
import registry
from registry.disaggregation.allowed_workers import AllowedWorkers, read_listed, read_target
from registry.disaggregation.cached_tokens import EventRewriter, cached_tokens, rewritten
from registry.disaggregation.connectors import (
    SglangConnector,
    SharedStorageConnector,
    TrtllmConnector,
    first_finish_reason,
)
from registry.disaggregation.prefill import PrefillLimits
from registry.disaggregation.proxy import BodyLimits
from tests.eventually import eventually
from tests.http_server import http_server
from tests.registry.disaggregation.conftest import BODY, CHAT, Bench, bench


@pytest.fixture
async def sglang() -> AsyncIterator[Bench]:
    async with bench(SglangConnector(8998)) as made:
        yield made


@pytest.fixture
async def trtllm() -> AsyncIterator[Bench]:
    async with bench(TrtllmConnector(lambda: 1_800_000_000.0, machine=5)) as made:
        made.prefill.answer = context_answer()
        yield made


@pytest.fixture
async def shared() -> AsyncIterator[Bench]:
    async with bench(SharedStorageConnector()) as made:
        yield made


async def test_sglangs_workers_meet_in_a_room(sglang: Bench) -> None:
    sglang.prefill.go.clear()  # it answers last, as one that waits for the decode worker does
    async with sglang.post(body=BODY | {"stream": True, "min_tokens": 3, "bootstrap_host": "evil"}) as answer:
        assert answer.status == 200
        assert (await answer.read()).endswith(b"data: [DONE]\n\n")
    sglang.prefill.go.set()
    await sglang.idle()
    (prefill,), (decode,) = sglang.prefill.seen, sglang.decode.seen
    names = ("bootstrap_host", "bootstrap_port", "bootstrap_room")
    room = decode.body["bootstrap_room"]
    assert [prefill.body[name] for name in names] == ["127.0.0.1", 8998, room]
    assert [decode.body[name] for name in names] == ["127.0.0.1", 8998, room]
    assert 0 <= room < 2**63
    assert (prefill.body["stream"], prefill.body["max_tokens"], "min_tokens" in prefill.body) == (
        False,
        1,
        False,
    )
    assert (decode.body["stream"], decode.body["max_tokens"], decode.body["min_tokens"]) == (True, 5, 3)
    assert sglang.metrics.apart == 1
    assert not sglang.prefill.cancelled


async def test_a_batch_of_sglang_has_a_room_for_each_prompt(sglang: Bench) -> None:
    async with sglang.post("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 2}) as answer:
        assert answer.status == 200
    rooms = sglang.decode.seen[0].body["bootstrap_room"]
    assert len(set(rooms)) == 2
    assert sglang.decode.seen[0].body["bootstrap_host"] == ["127.0.0.1"] * 2


async def test_a_batch_of_sglang_has_not_more_rooms_than_the_sidecar_can_make(sglang: Bench) -> None:
    body = {"prompt": ["a"] * 1025, "max_tokens": 2}
    async with sglang.post("/v1/completions", body) as answer:
        assert (answer.status, answer.headers.get("x-adsum-prefill-fallback")) == (200, "several")
    assert not sglang.prefill.seen
    assert sglang.decode.seen[0].body == body


async def test_sglangs_decode_worker_does_not_wait_for_a_prefill_worker_that_failed(sglang: Bench) -> None:
    sglang.decode.go.clear()
    sglang.prefill.go.clear()
    sglang.prefill.statuses = [500]
    asking = asyncio.ensure_future(sglang.post().__aenter__())
    await eventually(lambda: sglang.decode.seen)
    sglang.prefill.go.set()
    async with await asking as answer:
        assert (answer.status, answer.headers["x-adsum-prefill-fallback"]) == (503, "status")
        assert "no prefill worker computed the prompt: HTTP 500" in (await answer.json())["error"]["message"]
    await eventually(lambda: sglang.decode.cancelled)
    assert sglang.metrics.failed == 1


async def test_sglangs_prefill_worker_is_not_cancelled_with_its_client(sglang: Bench) -> None:
    sglang.prefill.go.clear()
    sglang.decode.tokens.clear()
    async with sglang.post(body=BODY | {"stream": True}) as answer:
        assert await answer.content.readany()
    await eventually(lambda: sglang.decode.cancelled)
    assert not sglang.prefill.cancelled
    sglang.prefill.go.set()
    await sglang.idle()


async def test_a_body_counts_as_long_as_a_prefill_worker_is_sent_it() -> None:
    body = BODY | {"stream": True, "user": "x" * 2000}
    async with bench(SglangConnector(8998), bodies=BodyLimits(one=4000, all=2000)) as sglang:
        sglang.prefill.go.clear()
        async with sglang.post(body=body) as answer:
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
        async with sglang.post() as answer:
            assert answer.status == 503
        sglang.prefill.go.set()
        await sglang.idle()
        async with sglang.post() as answer:
            assert answer.status == 200


def context_answer(**changed: Any) -> dict[str, Any]:
    choice = {
        "index": 0,
        "finish_reason": "length",
        "disaggregated_params": {
            "request_type": "context_only",
            "ctx_request_id": 7,
            "disagg_request_id": 8,
            "first_gen_tokens": [3],
            "encoded_opaque_state": "abc",
        },
    }
    return {
        "choices": [choice | changed],
        "prompt_token_ids": [1, 2, 3],
        "usage": {"prompt_tokens": 3, "total_tokens": 4},
    }


@pytest.mark.parametrize(("path", "tokens"), [(CHAT, "prompt_token_ids"), ("/v1/completions", "prompt")])
async def test_tensorrts_generation_begins_where_its_context_ended(
    trtllm: Bench, path: str, tokens: str
) -> None:
    body = BODY | {"prompt": "hi", "stream_options": {"include_usage": True}}
    async with trtllm.post(path, body) as answer:
        assert answer.status == 200
    (context,), (generation,) = trtllm.prefill.seen, trtllm.decode.seen
    own = context.body["disaggregated_params"]
    assert own["request_type"] == "context_only"
    assert own["disagg_request_id"] >= 2**42
    assert own["disagg_request_id"] >> 12 & 1023 == 5
    assert context.body["stream"] is False
    assert "stream_options" not in context.body
    assert context.body["max_tokens"] == 5  # it is no limit of the context
    expected = context_answer()["choices"][0]["disaggregated_params"]
    assert generation.body["disaggregated_params"] == expected | {
        "request_type": "generation_only",
        "ctx_usage": {"prompt_tokens": 3, "total_tokens": 4},
    }
    assert generation.body[tokens] == [1, 2, 3]


async def test_what_ended_with_its_context_is_the_answer(trtllm: Bench) -> None:
    trtllm.prefill.answer = context_answer(finish_reason="stop")
    async with trtllm.post() as answer:
        choice = (await answer.json())["choices"][0]
        assert choice == {"index": 0, "finish_reason": "stop"}
    assert not trtllm.decode.seen
    async with trtllm.post(body=BODY | {"stream": True}) as answer:
        assert answer.headers["x-adsum-prefill-fallback"] == "finished"
        assert (await answer.read()).endswith(b"data: [DONE]\n\n")


async def test_what_ended_at_a_server_that_computes_no_contexts_is_the_answer(trtllm: Bench) -> None:
    choice = {"index": 0, "finish_reason": "stop"}
    trtllm.prefill.answer = {"choices": [choice]}
    async with trtllm.post() as answer:
        assert (answer.status, await answer.json()) == (200, {"choices": [choice]})


@pytest.mark.parametrize(
    "given",
    [
        context_answer(disaggregated_params=None),
        context_answer(disaggregated_params={"ctx_request_id": 1}),
        {"choices": [{"index": 0}]},
        {"choices": ["a"]},
    ],
)
async def test_a_context_without_ids_is_none(trtllm: Bench, given: dict[str, Any]) -> None:
    trtllm.prefill.answer = given
    async with trtllm.post() as answer:
        assert (answer.status, answer.headers["x-adsum-prefill-fallback"]) == (200, "answer")
    assert trtllm.decode.seen[0].body == BODY


async def test_shared_storage_needs_nothing_of_the_answer(shared: Bench) -> None:
    shared.prefill.answer = {}
    async with shared.post(body=BODY | {"stream": True}) as answer:
        assert (await answer.read()).endswith(b"data: [DONE]\n\n")
    (prefill,), (decode,) = shared.prefill.seen, shared.decode.seen
    assert (prefill.body["max_tokens"], prefill.body["stream"], prefill.body["cache_hit_threshold"]) == (
        1,
        False,
        0,
    )
    assert decode.body == BODY | {"stream": True, "cache_hit_threshold": 0}


@pytest.mark.parametrize("stream", [False, True])
async def test_shared_storage_asks_the_decode_worker_first_if_the_client_says_so(
    shared: Bench, stream: bool
) -> None:
    body = BODY | {"cache_hit_threshold": 0.5, "stream": stream}
    async with shared.session.post(shared.url(), json=body) as alone:
        expected = await alone.read()
    async with shared.post(body=body) as answer:
        assert await answer.read() == expected
    assert not shared.prefill.seen
    assert [one.body for one in shared.decode.seen] == [body, body]


async def test_no_answer_that_the_sidecar_reads_is_encoded(shared: Bench) -> None:
    for more in ({}, {"cache_hit_threshold": 0.5}):
        async with shared.post(body=BODY | more, headers={"accept-encoding": "gzip"}) as answer:
            assert answer.status == 200
    assert "accept-encoding" not in shared.prefill.seen[0].headers
    assert [one.headers.get("accept-encoding") for one in shared.decode.seen] == ["gzip", None]


@pytest.mark.parametrize("stream", [False, True])
async def test_too_little_in_the_cache_means_prefill(shared: Bench, stream: bool) -> None:
    asked: list[float] = []
    plain = shared.decode.handle

    async def short(request: web.Request) -> web.StreamResponse:
        threshold = (await request.json())["cache_hit_threshold"]
        asked.append(threshold)
        if not threshold:
            return await plain(request)
        ended = {"choices": [{"index": 0, "text": "", "finish_reason": "cache_threshold"}]}
        if not stream:
            return web.json_response(ended)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        begin = {
            "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
        }
        for event in (begin, ended):
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
            await asyncio.sleep(0.05)  # each in a write of its own
        await response.write(b"data: [DONE]\n\n")
        return response

    async with (
        http_server({"/{rest:.*}": short}) as port,
        bench(SharedStorageConnector(), decode_at=("127.0.0.1", port)) as made,
    ):
        async with made.post(body=BODY | {"cache_hit_threshold": 0.5, "stream": stream}) as answer:
            text = await answer.read()
        assert len(made.prefill.seen) == 1
    assert asked == [0.5, 0]
    assert b"cache_threshold" not in text
    assert text.endswith(b"data: [DONE]\n\n" if stream else b"}")


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (b"", None),
        (b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n', None),
        (b'data: {"choices":[{"delta":{"content":"a"}}]}\n', ""),
        (b'data: {"choices":[{"delta":{"content":"a"}}]}', None),
        (b'data: {"choices":[{"text":"a"}]}\n\n', ""),
        (b'data: {"choices":[{"text":"","finish_reason":"cache_threshold"}]}\n\n', "cache_threshold"),
        (b": a comment\n\ndata: [DONE]\n\n", ""),
    ],
)
def test_when_a_stream_has_decided(stream: bytes, reason: str | None) -> None:
    assert first_finish_reason(stream) == reason


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


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("10.0.0.1:8000", ("10.0.0.1", 8000)),
        (" [FD00::1]:8000 ", ("fd00::1", 8000)),
        ("http://Pod-1.ns:80", ("pod-1.ns", 80)),
    ],
)
def test_one_address(text: str, target: tuple[str, int]) -> None:
    assert read_target([text]) == target


@pytest.mark.parametrize(
    "text", ["10.0.0.1", "a b:80", "a:70000", "fd00::1:80", "a:80/x", "user@a:80", "127.1:80", "a:0"]
)
def test_no_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"host|address"):
        read_target([text])


def test_a_list_has_hosts_and_addresses() -> None:
    allowed = AllowedWorkers([read_listed("10.0.0.1"), read_listed("a.b:8000"), read_listed("[fd00::1]")])
    assert allowed.allows(("10.0.0.1", 1))
    assert allowed.allows(("a.b", 8000))
    assert not allowed.allows(("a.b", 8001))
    assert allowed.allows(("fd00::1", 9))
    assert not allowed.allows(("10.0.0.2", 1))


async def test_discovery_says_who_is_a_worker_and_when_one_is_lost() -> None:
    url = "memory://prefill-workers"
    allowed = AllowedWorkers()
    async with (
        bench(allowed=allowed, limits=PrefillLimits(timeout=3600)) as made,
        discovery.open(url) as service,
        service.watch("prod", "prefill") as stream,
    ):
        following = asyncio.ensure_future(allowed.follow(stream))
        async with made.post() as answer:
            assert answer.headers["x-adsum-prefill-fallback"] == "refused"
        async with registry.open(url).register_instance("prod", "prefill") as handle:
            handle.set_ready("ready")
            await eventually(lambda: allowed.allows(("127.0.0.1", made.prefill.port)))
            async with made.post() as answer:
                assert "x-adsum-prefill-fallback" not in answer.headers
            made.prefill.go.clear()
            asking = asyncio.ensure_future(made.post().__aenter__())
            await eventually(lambda: len(made.prefill.seen) == 2)
        assert (await asking).headers["x-adsum-prefill-fallback"] == "lost"
        following.cancel()
