import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from redis.asyncio import Redis

from dispatcher.broker.redis.broker import RedisBroker
from dispatcher.config.config_file import read_config
from dispatcher.server import DispatcherServer
from tests.dispatcher.dispatching import configured, document, producer
from tests.dispatcher.target import Asked, Target, never, ok
from tests.eventually import asked_until, eventually
from tests.in_time import TooLateError, with_more_time

ENQUEUE = {"X-Dispatch": "enqueue"}
BODY = {"model": "m", "messages": []}


class Door:
    """A client of the front door."""

    def __init__(self, client: aiohttp.ClientSession) -> None:
        self.client = client

    async def ask(self, method: str, path: str, **options: Any) -> tuple[int, dict[str, Any], dict[str, str]]:
        async with self.client.request(method, path, **options) as answer:
            return answer.status, await answer.json(), dict(answer.headers)

    async def post(
        self, headers: dict[str, str], body: Any = BODY
    ) -> tuple[int, dict[str, Any], dict[str, str]]:
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        headers = {"content-type": "application/json"} | headers
        return await self.ask("POST", "/v1/chat/completions", data=data, headers=headers)

    async def done(self, id: str) -> dict[str, Any]:
        async with asyncio.timeout(90):
            while True:
                status, shown, _ = await self.ask("GET", f"/v1/requests/{id}?wait=5")
                assert status == 200
                if shown["status"] in ("succeeded", "failed"):
                    return shown


@asynccontextmanager
async def door(target: Target, broker: str = "memory://", **said: Any) -> AsyncIterator[Door]:
    given = yaml.safe_load(document(target.url, broker=broker)) | {"front_door": {"queue": "batch", **said}}
    async with opened(given) as way_in:
        yield way_in


@asynccontextmanager
async def opened(given: dict[str, Any]) -> AsyncIterator[Door]:
    async with DispatcherServer(read_config(yaml.safe_dump(given), {"T": "secret"})) as server:
        http = dict(pair.split("=") for pair in server.ready_line.split()[1:])["http"]
        async with aiohttp.ClientSession(f"http://{http}") as client:
            yield Door(client)


async def test_29_enqueued_and_fetched(target: Target, redis_url: str) -> None:
    """The body stays byte for byte; of the headers, only what a client may say passes."""
    body = b'{ "model":"m",  "messages":[], "x":1.0e0, "y":"\\u00e9" }'
    mine = {"Authorization": "Bearer x", "X-LLM-D-Inference-Objective": "critical", "X-Forwarded-For": "1"}
    mine |= {"X-Original-Url": "/admin", "Accept": "*/*"}
    for broker in ("memory://", redis_url):
        async with door(target, broker) as way_in:
            status, said, headers = await way_in.post({"OpenAI-Project": "t"} | mine | ENQUEUE, body)
            assert status == 202
            assert headers["Location"] == f"/v1/requests/{said['id']}"
            shown = await way_in.done(said["id"])
            assert shown["response"] == {"status_code": 200, "body": {"served": said["id"]}}
            assert (shown["error"], shown["attempts"], shown["status"]) == (None, 1, "succeeded")
            sent = target.asked[-1]
            assert sent.body == body
            assert sent.headers["openai-project"] == "t"
            assert not {name.lower() for name in mine} & sent.headers.keys()


async def test_a_client_that_waits(target: Target) -> None:
    async with door(target) as way_in:
        status, said, _ = await way_in.post({"X-Dispatch": "wait"})
        assert status == 200
        assert said["served"].startswith("req-")


@with_more_time(300)
async def test_a_client_that_waits_hears_that_its_deadline_has_passed(target: Target, ms: int) -> None:
    """And gets no 202, with which it would have to ask again."""
    target.answer = never
    async with door(target) as way_in:
        deadline = {"X-Dispatch": "wait", "X-Dispatch-Deadline": f"{ms}ms"}
        status, said, _ = await way_in.post(deadline)
        if status == 202:  # on a machine that stands still for a second
            raise TooLateError
        assert (status, said["error"]["code"]) == (504, "DEADLINE_EXCEEDED")


async def test_what_a_waiting_client_has_is_not_kept(target: Target, redis_url: str) -> None:
    """Without a key it cannot ask again, and nobody else knows the id."""
    config = configured(target.url)
    async with (
        RedisBroker(redis_url) as broker,
        producer(broker, config) as queue,
        door(target, redis_url) as way_in,
    ):

        async def kept() -> list[str]:
            leased = await queue.queue.lease_results(9, lease_ms=1)
            return [one.result.id for one in leased]

        _, said, _ = await way_in.post({"X-Dispatch": "wait"})
        await asked_until(kept, lambda found: found == [])
        status, _, _ = await way_in.ask("GET", f"/v1/requests/{said['served']}")
        assert status == 404
        key = {"Idempotency-Key": "k", "X-Dispatch": "wait"}
        first, second = [(await way_in.post(key))[1]["served"] for _ in range(2)]
        assert first == second, "asked again, it is answered as before"
        assert await kept() == [first]
        assert (await queue.queue.totals()).succeeded == 2


async def test_an_answer_that_its_client_did_not_take_is_kept(target: Target, redis_url: str) -> None:
    """It leaves when half of the answer is on its way: the rest is in our memory."""

    async def large(asked: Asked) -> web.StreamResponse:
        return web.Response(body=b'"' + b"x" * 20_000_000 + b'"')

    target.answer = large
    config = configured(target.url)
    async with RedisBroker(redis_url) as broker, producer(broker, config) as queue:
        async with door(target, redis_url) as way_in:
            answer = await way_in.client.post(
                "/v1/completions", json=BODY, headers={"X-Dispatch": "wait"}, read_bufsize=1024
            )
            await answer.content.readexactly(1024)
            answer.close()
            async with way_in.client.get("/healthz") as healthy:
                assert healthy.status == 200
        [leased] = await queue.queue.lease_results(9)
        assert len(leased.result.payload) == 20_000_002


async def test_22_the_same_key_is_the_same_request(target: Target) -> None:
    key = {"Idempotency-Key": "k1"} | ENQUEUE
    async with door(target) as way_in:
        _, first, _ = await way_in.post(key)
        _, second, _ = await way_in.post(key)
        assert first["id"] == second["id"]
        await way_in.done(first["id"])
        assert len(target.asked) == 1
        status, said, _ = await way_in.post(key, {"model": "another"})
        assert status == 409
        assert "idempotency key" in said["error"]["message"]


async def test_21_a_request_is_cancelled(target: Target) -> None:
    target.answer = never
    async with door(target) as way_in:
        _, said, _ = await way_in.post(ENQUEUE)
        await eventually(lambda: target.asked)
        status, shown, _ = await way_in.ask("DELETE", f"/v1/requests/{said['id']}")
        assert status == 200
        assert shown["error"]["code"] == "CANCELLED"
        await eventually(lambda: target.asked[0].closed)


async def test_a_trace_that_cannot_go_on_is_no_reason_to_refuse_a_request(target: Target) -> None:
    wrong = {
        "traceparent": "\xff",
        "tracestate": "v=\xff",
        "baggage": "b" * 8000 + "\xff",
        "openai-project": "1",
    }
    async with door(target) as way_in:
        status, _, _ = await way_in.post({"X-Dispatch": "wait"} | wrong)
    assert status == 200
    sent = target.asked[-1].headers
    assert sent["openai-project"] == "1"
    assert not {"traceparent", "tracestate", "baggage"} & sent.keys()


@pytest.mark.parametrize(
    ("headers", "body", "status", "message"),
    [
        ({}, BODY, 400, "the header X-Dispatch is missing"),
        ({"X-Dispatch": "later"}, BODY, 400, "'later'; expected enqueue"),
        (ENQUEUE, b"", 400, "not a JSON object"),
        (ENQUEUE, b"[]", 400, "not a JSON object"),
        (ENQUEUE, b"[" * 100_000, 400, "not a JSON object"),
        (ENQUEUE, b'{"a": nul}', 400, "not a JSON object"),
        (ENQUEUE, b'{"a": "' + b"x" * 11_000_000 + b'"}', 413, "larger than 10485760 bytes"),
        ({"X-Dispatch-Deadline": "tomorrow"} | ENQUEUE, BODY, 400, "is not a duration"),
        ({"X-Dispatch-Deadline": "0s"} | ENQUEUE, BODY, 400, "deadline"),
        ({"OpenAI-Project": "\u00e9\u20ac"} | ENQUEUE, BODY, 400, "header"),
    ],
)
async def test_what_is_refused(
    target: Target, headers: dict[str, str], body: Any, status: int, message: str
) -> None:
    async with door(target) as way_in:
        answered, said, _ = await way_in.post(headers, body)
        assert answered == status
        assert message in said["error"]["message"]
        assert said["error"]["type"] == "invalid_request_error"
    assert target.asked == []


async def test_a_queue_may_take_less_than_the_front_door(target: Target) -> None:
    given = yaml.safe_load(document(target.url, {"name": "batch", "max_payload": "1KiB"}))
    given["front_door"] = {"queue": "batch"}
    async with opened(given) as way_in:
        answered, said, _ = await way_in.post(ENQUEUE, {"a": "x" * 2000})
        assert (answered, said["error"]["type"]) == (413, "invalid_request_error")
        assert "larger than 1024 bytes" in said["error"]["message"]


async def test_tenants_are_told_by_their_tokens(target: Target) -> None:
    async with door(target, tokens={"acme": "${T}", "other": "word"}) as way_in:
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}):
            status, said, _ = await way_in.post(given | ENQUEUE)
            assert (status, said["error"]["type"]) == (401, "invalid_request_error")
        own = {"Authorization": "bearer secret"}
        status, said, _ = await way_in.post(own | ENQUEUE)
        assert status == 202
        status, _, _ = await way_in.ask("GET", f"/v1/requests/{said['id']}")
        assert status == 401
        status, _, _ = await way_in.ask("GET", f"/v1/requests/{said['id']}?wait=9", headers=own)
        assert status == 200
        await eventually(lambda: target.asked)
    assert target.asked[0].headers["x-llm-d-inference-fairness-id"] == "acme"
    assert "authorization" not in target.asked[0].headers


async def test_29_a_tenant_sees_and_cancels_its_own_requests_only(target: Target, redis_url: str) -> None:
    target.answer = never
    config = read_config(document(target.url, broker=redis_url), {})
    async with door(target, redis_url, tokens={"acme": "${T}", "other": "word"}) as way_in:
        acme, other = {"Authorization": "Bearer secret"}, {"Authorization": "Bearer word"}
        _, said, _ = await way_in.post(acme | ENQUEUE)
        async with RedisBroker(redis_url) as broker, producer(broker, config) as batch:
            await batch.submit("nightly:1", tenant="acme")
        for id in (said["id"], "nightly:1"):
            for method in ("GET", "DELETE"):
                status, shown, _ = await way_in.ask(method, f"/v1/requests/{id}", headers=other)
                assert (status, shown["error"]["type"]) == (404, "invalid_request_error")
        status, shown, _ = await way_in.ask("GET", f"/v1/requests/{said['id']}", headers=acme)
        assert (status, shown["status"]) in ((200, "pending"), (200, "claimed"))


async def test_a_key_that_is_no_text_harms_nobody_else(target: Target, redis_url: str) -> None:
    async with door(target, redis_url) as way_in:
        url = way_in.client._base_url  # aiohttp's own client sends no such bytes
        assert url is not None
        reader, writer = await asyncio.open_connection(url.host, url.port)
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-dispatch: enqueue\r\nidempotency-key: \xff\r\n"
        writer.write(head + b"content-length: 2\r\n\r\n{}")
        assert (await reader.readline()).split()[1] == b"400"
        writer.close()
        status, _, _ = await way_in.post({"Idempotency-Key": "k" * 8000} | ENQUEUE)
        assert status == 400
        status, _, _ = await way_in.post(ENQUEUE)
        assert status == 202


async def test_a_client_that_goes_away_is_not_waited_for(target: Target, redis_url: str) -> None:
    target.answer = never
    async with door(target, redis_url) as way_in, Redis.from_url(redis_url) as redis:

        async def has_listener() -> bool:
            return bool(await redis.pubsub_channels("*done:req-*"))

        waiting = asyncio.create_task(way_in.post({"X-Dispatch": "wait"}))
        await eventually(has_listener)
        waiting.cancel()
        await asyncio.wait([waiting])
        await asked_until(has_listener, lambda found: not found)


async def test_a_request_that_nobody_knows_is_not_waited_for(target: Target, redis_url: str) -> None:
    for broker in ("memory://", redis_url):
        async with door(target, broker) as way_in, asyncio.timeout(30):
            for method, query in (("GET", ""), ("DELETE", ""), ("GET", "?wait=60")):
                status, said, _ = await way_in.ask(method, f"/v1/requests/req-nothing{query}")
                assert status == 404
                assert "there is no request 'req-nothing'" in said["error"]["message"]
            assert (await way_in.ask("GET", "/v1/requests/req-nothing?wait=soon"))[0] == 400


async def test_many_who_wait_at_once(target: Target, redis_url: str) -> None:
    async with door(target, redis_url) as way_in:
        answers = await asyncio.gather(*(way_in.post({"X-Dispatch": "wait"}) for _ in range(150)))
    assert {status for status, _, _ in answers} == {200}
    assert len({said["served"] for _, said, _ in answers}) == 150


async def test_an_answer_that_is_an_error(target: Target) -> None:
    async def bad(asked: Asked) -> web.StreamResponse:
        return web.Response(status=422, text="no such model") if target.asked[1:] else await ok(asked)

    target.answer = bad
    async with door(target) as way_in:
        await way_in.post({"X-Dispatch": "wait"})
        _, said, _ = await way_in.post(ENQUEUE)
        shown = await way_in.done(said["id"])
        assert (shown["status"], shown["response"]) == (
            "failed",
            {"status_code": 422, "body": "no such model"},
        )
        async with way_in.client.post("/v1/completions", json=BODY, headers={"X-Dispatch": "wait"}) as answer:
            assert (answer.status, await answer.text()) == (422, "no such model")
    assert target.asked[-1].path == "/v1/completions"


async def test_without_a_front_door_in_the_file(target: Target) -> None:
    given = read_config(document(target.url), {})
    async with DispatcherServer(given) as server, aiohttp.ClientSession() as client:
        http = dict(pair.split("=") for pair in server.ready_line.split()[1:])["http"]
        async with client.post(f"http://{http}/v1/completions", json=BODY, headers=ENQUEUE) as answer:
            assert answer.status == 503
            assert "its file has no front_door" in (await answer.json())["error"]["message"]


async def test_a_full_queue_is_429_with_its_limit(target: Target) -> None:
    target.answer = never
    queue = {"name": "batch", "max_tenant_requests": 1}
    given = yaml.safe_load(document(target.url, queue)) | {"front_door": {"queue": "batch"}}
    async with opened(given) as way_in:
        assert (await way_in.post(ENQUEUE))[0] == 202
        status, said, headers = await way_in.post(ENQUEUE)
    assert status == 429
    assert said["error"]["code"] == "queue_full"
    assert "1 requests of tenant 'default' (max_tenant_requests)" in said["error"]["message"]
    assert 1 <= int(headers["Retry-After"]) <= 4
