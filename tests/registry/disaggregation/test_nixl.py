"""Two legs as vLLM with NIXL wants them, between real servers, and no block that stays behind."""

import asyncio
import json

import pytest

from registry.disaggregation.allowed_workers import AllowedWorkers
from registry.disaggregation.prefill import PrefillLimits
from tests.eventually import eventually
from tests.raw_server import raw_server
from tests.registry.disaggregation.conftest import BODY, CHAT, Bench, bench
from tests.registry.disaggregation.workers import CACHED


async def test_both_workers_get_what_they_need(nixl: Bench) -> None:
    body = BODY | {"stream_options": None, "seed": 12345678901234567890, "temperature": 0.10}
    async with nixl.post(body=body, headers={"x-request-id": "r1", "x-own": "v"}) as answer:
        assert answer.status == 200
        assert (await answer.json())["usage"]["prompt_tokens_details"] == {"cached_tokens": CACHED}
    (prefill,), (decode,) = nixl.prefill.seen, nixl.decode.seen
    assert prefill.body["kv_transfer_params"] == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    short = {"stream": False, "max_tokens": 1, "max_completion_tokens": 1, "min_tokens": 1}
    assert {name: prefill.body[name] for name in short} == short
    assert "stream_options" not in prefill.body
    assert decode.body == body | {"kv_transfer_params": decode.body["kv_transfer_params"]}
    assert decode.body["kv_transfer_params"]["of_a_later_version"] == 12345678901234567890
    for one in (prefill, decode):
        assert one.headers["x-request-id"] == "r1"
        assert one.headers["x-own"] == "v"
        assert "x-prefiller-host-port" not in one.headers
    assert not nixl.blocks.held
    assert nixl.metrics.apart == 1


async def test_a_request_without_an_id_has_one_on_both_legs(nixl: Bench) -> None:
    async with nixl.post() as answer:
        assert answer.status == 200
    assert nixl.prefill.seen[0].headers["x-request-id"] == nixl.decode.seen[0].headers["x-request-id"]


async def test_a_stream_passes_byte_for_byte_but_for_its_usage(nixl: Bench) -> None:
    async with nixl.session.post(nixl.url(), json=BODY | {"stream": True}) as alone:
        expected = await alone.read()
    async with nixl.post(body=BODY | {"stream": True}) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        received = await answer.read()
    assert received == expected.replace(
        json.dumps({"choices": [], "usage": {"prompt_tokens": 9, "total_tokens": 13, "prompt_tokens_details": None}}).encode(),
        b'{"choices":[],"usage":{"prompt_tokens":9,"total_tokens":13,"prompt_tokens_details":{"cached_tokens":7}}}',
    )  # fmt: skip
    assert nixl.prefill.seen[0].body["stream"] is False
    assert nixl.decode.seen[1].body["stream"] is True


@pytest.mark.parametrize(
    ("path", "own", "short"),
    [
        ("/v1/responses", {"max_output_tokens": 9}, {"max_output_tokens": 1}),
        (
            "/inference/v1/generate",
            {"sampling_params": {"max_tokens": 9, "top_k": 2}},
            {"sampling_params": {"max_tokens": 1, "min_tokens": 1, "top_k": 2}},
        ),
        ("/v1/messages", {"max_tokens": 9}, {"max_tokens": 1}),
    ],
)
async def test_each_interface_has_its_own_limit(
    nixl: Bench, path: str, own: dict[str, object], short: dict[str, object]
) -> None:
    async with nixl.post(path, {"model": "m"} | own) as answer:
        assert answer.status == 200
    prefill = nixl.prefill.seen[0].body
    assert {name: prefill[name] for name in short} == short
    assert {name: nixl.decode.seen[0].body[name] for name in own} == own


@pytest.mark.parametrize(
    ("reason", "statuses", "asked"),
    [("status", [500], 1), ("status", [503, 503, 503], 3), ("busy", [429], 1)],
)
async def test_a_prefill_worker_that_fails_is_replaced_by_the_decode_worker(
    reason: str, statuses: list[int], asked: int
) -> None:
    async with bench(limits=PrefillLimits(retries=2, backoff=0.01)) as nixl:
        nixl.prefill.statuses = statuses
        async with nixl.post() as answer:
            assert answer.status == 200
            assert answer.headers["x-adsum-prefill-fallback"] == reason
        assert len(nixl.prefill.seen) == asked
        assert nixl.decode.seen[0].body == BODY
        assert nixl.metrics.reasons[reason] == 1


async def test_a_transient_failure_is_asked_again() -> None:
    async with bench(limits=PrefillLimits(retries=2, backoff=0.01)) as nixl:
        nixl.prefill.statuses = [502, 504]
        async with nixl.post() as answer:
            assert answer.status == 200
            assert "x-adsum-prefill-fallback" not in answer.headers
        assert len(nixl.prefill.seen) == 3
        assert nixl.metrics.apart == 1


async def test_a_wrong_request_is_the_clients(nixl: Bench) -> None:
    nixl.prefill.statuses = [400]
    async with nixl.post() as answer:
        assert answer.status == 400
        assert await answer.json() == {"error": {"message": "status 400"}}
    assert not nixl.decode.seen


@pytest.mark.parametrize("answer", [b"{", b"[]", b"{}", b'{"kv_transfer_params": null}'])
async def test_an_answer_without_blocks_is_none(nixl: Bench, answer: bytes) -> None:
    nixl.prefill.answer = answer
    async with nixl.post() as got:
        assert (got.status, got.headers["x-adsum-prefill-fallback"]) == (200, "answer")
    assert nixl.decode.seen[0].body == BODY


@pytest.mark.parametrize("more", [{"n": 2}, {"best_of": 3}])
async def test_several_answers_come_from_one_worker(nixl: Bench, more: dict[str, int]) -> None:
    async with nixl.post(body=BODY | more) as got:
        assert (got.status, got.headers["x-adsum-prefill-fallback"]) == (200, "several")
    assert not nixl.prefill.seen


@pytest.mark.parametrize(
    "values", [["a:1,b:2"], ["a:1", "b:2"], [""], ["nothing"], ["a:0"], ["x" * 400 + ":1"]]
)
async def test_exactly_one_address_counts(nixl: Bench, values: list[str]) -> None:
    headers = [("x-prefiller-host-port", value) for value in values]
    async with nixl.session.post(nixl.url(), json=BODY, headers=headers) as got:
        assert (got.status, got.headers["x-adsum-prefill-fallback"]) == (200, "header")
    assert "x-prefiller-host-port" not in nixl.decode.seen[0].headers


async def test_an_address_that_is_not_allowed_is_never_connected_to() -> None:
    async with bench(allowed=AllowedWorkers([("10.0.0.1", None)])) as nixl:
        async with nixl.post() as got:
            assert (got.status, got.headers["x-adsum-prefill-fallback"]) == (200, "refused")
        assert not nixl.prefill.seen


async def test_a_prefill_worker_that_is_not_there(nixl: Bench) -> None:
    async with nixl.post(headers={"x-prefiller-host-port": "127.0.0.1:1"}) as got:
        assert (got.status, got.headers["x-adsum-prefill-fallback"]) == (200, "unreachable")


async def test_a_silent_prefill_worker_is_given_up() -> None:
    async with bench(limits=PrefillLimits(timeout=0.3)) as nixl:
        nixl.prefill.go.clear()
        async with nixl.post() as got:
            assert (got.status, got.headers["x-adsum-prefill-fallback"]) == (200, "timeout")


async def test_a_client_that_leaves_while_the_prompt_is_computed(nixl: Bench) -> None:
    nixl.prefill.go.clear()
    await nixl.leave_once(lambda: nixl.prefill.seen)
    await eventually(lambda: nixl.prefill.cancelled)
    await nixl.idle()
    assert not nixl.decode.seen
    assert not nixl.blocks.held


async def test_a_client_that_leaves_before_the_decode_worker_has_the_blocks(nixl: Bench) -> None:
    nixl.decode.go.clear()
    await nixl.leave_once(lambda: nixl.decode.seen)
    await eventually(lambda: not nixl.port._running)  # the sidecar has noticed
    assert nixl.blocks.held
    assert not nixl.decode.cancelled  # it has not fetched them
    nixl.decode.go.set()
    await eventually(lambda: not nixl.blocks.held)
    await nixl.idle()


async def test_a_client_that_leaves_in_the_midst_of_the_tokens(nixl: Bench) -> None:
    nixl.decode.tokens.clear()
    async with nixl.post(body=BODY | {"stream": True}) as answer:
        assert await answer.content.readany()
    await eventually(lambda: nixl.decode.cancelled)  # the GPU works for nobody
    await nixl.idle()
    assert not nixl.blocks.held


async def test_a_client_that_leaves_while_the_decode_worker_computes_alone(nixl: Bench) -> None:
    nixl.prefill.statuses = [500]
    nixl.decode.go.clear()
    await nixl.leave_once(lambda: nixl.decode.seen)
    await eventually(lambda: nixl.decode.cancelled)
    await nixl.idle()


async def test_blocks_that_were_staged_for_a_client_that_had_gone_are_fetched_with_one_token(
    nixl: Bench,
) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def slow_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        nixl.blocks.held["r9"] = [1]
        transfer = {"do_remote_prefill": True, "remote_request_id": "r9"}
        body = json.dumps({"kv_transfer_params": transfer}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body[:5])
        await writer.drain()
        begun.set()
        await release.wait()
        writer.write(body[5:])

    async with raw_server(slow_answer) as port:
        headers = {"x-prefiller-host-port": f"127.0.0.1:{port}"}
        await nixl.leave_once(begun.is_set, body=BODY | {"stream": True}, headers=headers)
        await eventually(lambda: not nixl.port._running)  # it has noticed
        release.set()
        await eventually(lambda: not nixl.blocks.held)
        await nixl.idle()
    (decode,) = nixl.decode.seen
    assert (decode.body["max_tokens"], decode.body["stream"]) == (1, False)
    assert nixl.metrics.released == 1


async def test_a_body_that_is_no_object_goes_to_the_decode_worker_as_it_is(nixl: Bench) -> None:
    async with nixl.session.post(
        nixl.url(CHAT), data=b'{"a": ', headers={"x-prefiller-host-port": nixl.prefill.address}
    ) as got:
        assert got.headers["x-adsum-prefill-fallback"] == "body"
