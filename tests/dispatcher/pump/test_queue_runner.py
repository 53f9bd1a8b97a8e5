import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from aiohttp import web

from dispatcher.broker.contract.message import Claim, ErrorCode
from dispatcher.broker.contract.queue import Broker, Queue, QueueRules, State
from dispatcher.broker.contract.validation import LONGEST_LEASE_MS
from dispatcher.broker.memory.broker import MemoryBroker
from tests.dispatcher.dispatching import configured, dispatching, producer
from tests.dispatcher.queued import until_ms
from tests.dispatcher.target import Asked, Target, never, ok
from tests.eventually import asked_until, eventually
from tests.free_port import free_port
from tests.in_time import by, with_more_time, without_a_gap


async def kill(asked: Asked) -> web.StreamResponse:
    """End the connection without an answer, as a worker that dies."""
    asked.end()
    raise ConnectionResetError


def then(
    *answers: Callable[[Asked], Awaitable[web.StreamResponse]],
) -> Callable[[Asked], Awaitable[web.StreamResponse]]:
    """Each request gets the next of these; the last one stays."""
    left = list(answers)

    async def answer(asked: Asked) -> web.StreamResponse:
        return await (left.pop(0) if len(left) > 1 else left[0])(asked)

    return answer


class SlowQueue:
    """A queue whose first claims get to their owner only after `meanwhile`; `heard`: it has told of a cancellation."""

    def __init__(
        self, queue: Queue, meanwhile: Callable[[Sequence[Claim]], Awaitable[object]], heard: asyncio.Event
    ) -> None:
        self._queue = queue
        self._meanwhile: Callable[[Sequence[Claim]], Awaitable[object]] | None = meanwhile
        self._heard = heard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    async def claim(self, *args: Any, **options: Any) -> Sequence[Claim]:
        claims = await self._queue.claim(*args, **options)
        if claims and self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            await meanwhile(claims)
        return claims

    async def cancelled(self, timeout: float) -> Collection[str]:
        if fences := await self._queue.cancelled(timeout):
            self._heard.set()
        return fences


class SlowBroker:
    """The broker as its dispatchers see it: each queue is a `SlowQueue`."""

    def __init__(self, broker: Broker, meanwhile: Callable[[Sequence[Claim]], Awaitable[object]]) -> None:
        self._broker = broker
        self._meanwhile = meanwhile
        self.heard = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    @asynccontextmanager
    async def queue(self, name: str, rules: QueueRules) -> AsyncIterator[Queue]:
        async with self._broker.queue(name, rules) as queue:
            yield cast("Queue", SlowQueue(queue, self._meanwhile, self.heard))


def status(code: int, **headers: str) -> Callable[[Asked], Awaitable[web.StreamResponse]]:
    async def answer(asked: Asked) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=code, headers=named, body=f"said {code}".encode())

    return answer


async def test_a_request_is_sent_and_its_answer_is_its_result(broker: Broker, target: Target) -> None:
    config = configured(target.url, {"name": "batch", "objective": "low"}, caller_headers=["X-Own"])
    async with producer(broker, config) as queue, dispatching(broker, config):
        request = await queue.submit(
            "r1", tenant="acme", seconds=30, headers={"x-own": "1", "x-prefiller-host-port": "h:1"}
        )
        result = await queue.result(request)
    assert (result.status_code, result.error_code, result.attempts) == (200, None, 1)
    assert json.loads(result.payload) == {"served": "r1"}
    [asked] = target.asked
    assert asked.path == "/v1/chat/completions"
    assert json.loads(asked.body) == {"model": "m", "prompt": "r1"}
    assert asked.headers["x-llm-d-inference-fairness-id"] == "acme"
    assert asked.headers["x-llm-d-inference-objective"] == "low"
    assert asked.headers["x-own"] == "1"
    assert "x-prefiller-host-port" not in asked.headers


async def test_06_what_is_left_of_the_deadline_goes_along(broker: Broker, target: Target) -> None:
    arrived: list[int] = []

    async def answer(asked: Asked) -> web.StreamResponse:
        arrived.append(await broker.now_ms())
        return await ok(asked)

    target.answer = answer
    config = configured(target.url, request_timeout="5m")
    async with producer(broker, config) as queue, dispatching(broker, config):
        begun = await broker.now_ms()
        soon = await queue.submit("soon", seconds=60)
        await queue.result(soon)
        await queue.result(await queue.submit("late", seconds=3600))
    left, late = [int(asked.headers["x-envoy-upstream-rq-timeout-ms"]) for asked in target.asked]
    assert soon.deadline_ms - arrived[0] - 10 <= left <= soon.deadline_ms - begun + 10
    assert late == 300_000


@with_more_time(1_500)
async def test_06_a_deadline_in_flight(broker: Broker, target: Target, ms: int) -> None:
    target.answer = never
    target.asked.clear()
    config = configured(target.url, {"name": f"q{ms}"})
    async with producer(broker, config, f"q{ms}") as queue, dispatching(broker, config):
        async with by(await broker.now_ms() + ms, broker.now_ms), asyncio.timeout(ms / 1000):
            request = await queue.submit("r1", seconds=ms / 1000)
            await eventually(lambda: target.asked)
        result = await queue.result(request)
        assert (result.status_code, result.error_code, result.attempts) == (0, ErrorCode.DEADLINE_EXCEEDED, 1)
        await eventually(lambda: target.asked[0].closed)
        assert len(target.asked) == 1


async def test_a_clock_that_went_back_as_after_a_failover_holds_nobody_up(target: Target) -> None:
    back = 0
    config = configured(target.url)
    async with (
        MemoryBroker(lambda: int(time.time() * 1000) - back) as broker,
        producer(broker, config) as queue,
        dispatching(broker, config),
    ):
        await queue.result(await queue.submit("before"))
        back = 200_000
        assert (await queue.result(await queue.submit("after", seconds=600))).attempts == 1


async def test_21_what_is_cancelled_before_its_owner_has_it_is_not_sent(
    broker: Broker, target: Target
) -> None:
    config = configured(target.url)
    async with producer(broker, config) as queue:

        async def cancel(claims: Sequence[Claim]) -> None:
            assert await queue.queue.cancel(claims[0].request.id) is State.CLAIMED
            await slow.heard.wait()

        slow = SlowBroker(broker, cancel)
        async with dispatching(slow, config):
            result = await queue.result(await queue.submit("r1"))
            assert (await queue.result(await queue.submit("r2"))).status_code == 200
    assert result.error_code is ErrorCode.CANCELLED
    assert [asked.headers["x-request-id"] for asked in target.asked] == ["r2"]


@with_more_time(500)
async def test_06_a_deadline_behind_a_closed_gate(broker: Broker, target: Target, ms: int) -> None:
    nothing = {"type": "endpoint-scrape", "params": {"url": "http://127.0.0.1:9/metrics", "metric": "x"}}
    config = configured(target.url, {"name": f"q{ms}", "gate": nothing})
    async with producer(broker, config, f"q{ms}") as queue, dispatching(broker, config):
        async with by(await broker.now_ms() + ms, broker.now_ms):
            request = await queue.submit("r1", seconds=ms / 1000)
        result = await queue.result(request)
    assert result.error_code is ErrorCode.DEADLINE_EXCEEDED
    assert target.asked == []


async def test_a_request_that_ends_its_connection_becomes_a_dead_letter(
    broker: Broker, target: Target
) -> None:
    async def answer(asked: Asked) -> web.StreamResponse:
        return await (kill if asked.headers["x-request-id"] == "poison" else ok)(asked)

    target.answer = answer
    config = configured(target.url, {"name": "batch", "max_disconnects": 1})
    async with producer(broker, config) as queue, dispatching(broker, config):
        result = await queue.result(await queue.submit("poison"))
        assert (await queue.result(await queue.submit("r2"))).status_code == 200
        [letter] = await queue.queue.dead_letters(5)
    assert (result.error_code, result.attempts) == (ErrorCode.INFERENCE_ERROR, 1)
    assert "ended before an answer (max_disconnects)" in result.error_message
    assert (letter.id, letter.reason) == ("poison", result.error_message)


async def test_12_a_tenant_over_its_limit_does_not_stop_the_others(broker: Broker, target: Target) -> None:
    """429 without the picker's reason, as of a rate limit at the gateway."""

    async def answer(asked: Asked) -> web.StreamResponse:
        over = asked.headers["x-llm-d-inference-fairness-id"] == "over"
        return await (status(429, Retry_After="86400") if over else ok)(asked)

    target.answer = answer
    config = configured(target.url)
    async with producer(broker, config) as queue, dispatching(broker, config):
        limited = await queue.submit("r1", tenant="over", seconds=3600)
        while not (await queue.queue.totals()).delayed:
            await asyncio.sleep(0.01)
        others = await queue.submit_all(["r2", "r3", "r4"], tenant="others")
        assert {result.status_code for result in await queue.results(others)} == {200}
        assert (await queue.queue.state(limited.id))[0] is State.DELAYED


@with_more_time(5_000)
async def test_16_the_last_answer_is_kept_when_time_is_up(broker: Broker, target: Target, ms: int) -> None:
    """With less than a second left there is no further attempt: the second answer comes then."""

    async def answer(asked: Asked) -> web.StreamResponse:
        if asked.headers["x-dispatch-attempt"] == "2":
            await until_ms(broker, request.deadline_ms - 950)
        return await status(503)(asked)

    target.answer = answer
    target.asked.clear()
    config = configured(target.url, {"name": f"q{ms}"})
    async with (
        producer(broker, config, f"q{ms}") as queue,
        dispatching(broker, config),
        by(await broker.now_ms() + ms, broker.now_ms),
    ):
        request = await queue.submit("r1", seconds=ms / 1000)
        result = await queue.result(request, within=ms)
        assert result.status_code == 503
        assert result.payload == b"said 503"
        assert result.error_code is ErrorCode.DEADLINE_EXCEEDED
        assert result.attempts == len(target.asked) == 2


async def test_15_a_gateway_that_is_not_there_yet(broker: Broker) -> None:
    late = Target(port=free_port())
    config = configured(late.url)
    async with producer(broker, config) as queue, dispatching(broker, config):
        request = await queue.submit("r1")
        await asked_until(queue.queue.totals, lambda found: found.delayed)
        async with late:
            result = await queue.result(request)
            assert result.status_code == 200
            assert len(late.asked) == 1


async def test_25_every_attempt_says_which_it_is(broker: Broker, target: Target) -> None:
    target.answer = then(status(500), ok)
    config = configured(target.url)
    async with producer(broker, config) as queue, dispatching(broker, config):
        request = await queue.submit("r1")
        await queue.result(request)
    assert [asked.headers["x-dispatch-attempt"] for asked in target.asked] == ["1", "2"]
    assert {asked.headers["idempotency-key"] for asked in target.asked} == {request.token}
    assert {asked.headers["x-request-id"] for asked in target.asked} == {"r1"}


async def test_21_cancelled_in_flight(broker: Broker, target: Target) -> None:
    target.answer = then(never, ok)
    config = configured(target.url)
    async with producer(broker, config) as queue, dispatching(broker, config) as queues:
        request = await queue.submit("r1")
        await eventually(lambda: target.asked)
        await queue.queue.cancel("r1")
        result = await queue.result(request)
        assert result.error_code is ErrorCode.CANCELLED
        await eventually(lambda: target.asked[0].closed, within=90)
        await eventually(lambda: queues.running["batch"].runner.in_flight == 0)
        again = await queue.result(await queue.submit("r1"))
        assert again.status_code == 200, "an older cancel must not reach a new request of the same id"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"path": "//evil.example/x"}, "path"),
        ({"path": "/admin"}, "not allowed"),
        ({"headers": {"x-a": "b\r\nc: d"}}, "header"),
    ],
)
async def test_29_what_must_not_be_sent(
    broker: Broker, target: Target, fields: dict[str, object], said: str
) -> None:
    config = configured(target.url)
    async with producer(broker, config) as queue, dispatching(broker, config):
        result = await queue.result(await queue.submit("r1", **fields))
    assert result.error_code is ErrorCode.INVALID_REQUEST
    assert said in result.error_message
    assert target.asked == []


async def test_19_a_closed_gate_holds_up_no_other_queue(broker: Broker, target: Target) -> None:
    nothing = {"type": "endpoint-scrape", "params": {"url": "http://127.0.0.1:9/metrics", "metric": "x"}}
    config = configured(target.url, {"name": "batch"}, {"name": "closed", "gate": nothing}, concurrency=1)
    async with producer(broker, config, "closed") as closed, producer(broker, config) as queue:
        await closed.submit_all([f"c{number}" for number in range(100)])
        async with dispatching(broker, config):
            results = await queue.results(await queue.submit_all([f"r{number}" for number in range(50)]))
        assert {result.status_code for result in results} == {200}
        assert (await closed.queue.totals()).pending == 100
    assert not any(id.startswith("c") for id in target.ids())


async def test_no_more_on_their_way_than_there_are_places(broker: Broker, target: Target) -> None:
    async def answer(asked: Asked) -> web.StreamResponse:
        await asyncio.sleep(0.01)
        return await ok(asked)

    target.answer = answer
    config = configured(target.url, {"name": "batch"}, {"name": "more"}, concurrency=5)
    async with producer(broker, config) as queue, producer(broker, config, "more") as more:
        requests = await queue.submit_all([f"r{number}" for number in range(100)], seconds=600)
        others = await more.submit_all([f"o{number}" for number in range(100)], seconds=600)
        async with dispatching(broker, config):
            await asyncio.gather(queue.results(requests), more.results(others))
    assert target.most == 5
    first = target.ids()[:60]
    assert 10 <= sum(id.startswith("o") for id in first) <= 50, "two queues of one target take turns"


@with_more_time(2_000)
async def test_a_request_that_takes_longer_than_its_lease(broker: Broker, target: Target, ms: int) -> None:
    lease_ms, name = min(ms, LONGEST_LEASE_MS), f"q{ms}"

    async def slow(asked: Asked) -> web.StreamResponse:
        await asyncio.sleep(2.5 * lease_ms / 1000)
        return await ok(asked)

    target.answer = slow
    target.asked.clear()
    config = configured(target.url, {"name": name, "lease": f"{lease_ms}ms"})
    async with (
        producer(broker, config, name) as queue,
        dispatching(broker, config),
        without_a_gap(lease_ms / 2000, broker.now_ms),
    ):
        result = await queue.result(await queue.submit("r1", seconds=600), within=600)
        assert (await queue.queue.totals()).redelivered == 0
        assert (result.status_code, len(target.asked)) == (200, 1), "its heartbeat kept the claim"


async def test_a_claim_that_was_taken_away_stops_its_request(broker: Broker, target: Target) -> None:
    target.answer = never
    config = configured(target.url, {"name": "batch", "lease": "4s"})
    async with producer(broker, config) as queue, dispatching(broker, config) as queues:
        await queue.submit("r1", seconds=600)
        await eventually(lambda: target.asked)

        async def is_taken_away() -> bool:
            claims = [one.claim for one in queues.running["batch"].runner._deliveries.values()]
            return any([await queue.queue.retry(claim, 300_000) for claim in claims])

        await eventually(is_taken_away)
        await eventually(lambda: all(asked.closed for asked in target.asked))
        await eventually(lambda: queues.running["batch"].runner.in_flight == 0)
        assert (await queue.queue.totals()).delayed == 1


async def test_30_many_at_once_are_sent_once_each_and_never_more_than_may_be(
    broker: Broker, target: Target
) -> None:
    """How many a second stands in benchmarks/README.md."""
    under_way = most = 0

    async def counted(asked: Asked) -> web.StreamResponse:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        return await ok(asked)

    target.answer = counted
    config = configured(target.url, concurrency=256)
    async with producer(broker, config) as queue:
        requests = await queue.submit_all([f"r{number}" for number in range(1000)], seconds=600)
        async with dispatching(broker, config):
            results = await queue.results(requests)
    assert {result.status_code for result in results} == {200}
    assert sorted(target.ids()) == sorted(request.id for request in requests)
    assert 1 < most <= 256


async def test_what_is_on_its_way_is_handed_back_when_the_process_leaves(
    broker: Broker, target: Target
) -> None:
    target.answer = never
    config = configured(target.url)
    async with producer(broker, config) as queue:
        async with dispatching(broker, config):
            await queue.submit_all(["r1", "r2", "r3"])
            await eventually(lambda: len(target.asked) == 3)
        totals = await queue.queue.totals()
        assert (totals.pending, totals.claimed) == (3, 0)
        await eventually(lambda: all(asked.closed for asked in target.asked))
        claims = await queue.queue.claim(3, owner="another")
        assert [claim.request.id for claim in claims] == ["r1", "r2", "r3"]
        assert {claim.delivery for claim in claims} <= {1, 2}
