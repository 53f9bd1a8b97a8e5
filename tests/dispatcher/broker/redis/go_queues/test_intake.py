"""Go producers and consumers, which know nothing of us."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from dispatcher.broker.contract.queue import Queue, QueueError, QueueLimits, QueueRules, State
from dispatcher.broker.redis.broker import RedisBroker
from dispatcher.broker.redis.go_queues.go_message import GoMessage, Malformed, ResultLists, parse
from dispatcher.broker.redis.go_queues.intake import GoSource
from tests.dispatcher.queued import answer, claimed, counts, submitted
from tests.eventually import asked_until, eventually
from tests.redis_server import RedisServer

GO_LIST = QueueRules(result_list="result-list")
SOURCE = GoSource()


def message(id: str, deadline: int, *, token: str = "t", **data: Any) -> bytes:
    body = {"id": id, "created": 1, "deadline": deadline, "payload": {"model": "m", "n": 1}, **data}
    internal = {"request_token": token, "request_queue_name": "request-sortedset"} if token else {}
    return json.dumps({"internal": internal, "request_kind": "redis", "data": body}).encode()


class Producer:
    """What the Go producer does, in the order in which it does it."""

    def __init__(self, client: Redis) -> None:
        self.client: Any = client

    async def now(self) -> int:
        seconds, _ = await self.client.time()
        return int(seconds)

    async def submit(self, id: str, within: int = 3600, *, token: str = "t", **data: Any) -> bytes:
        deadline = await self.now() + within
        member = message(id, deadline, token=token, **data)
        await self.client.delete(f"request-cancel:{id}")
        await self.client.set(f"request-active:{id}", token)
        await self.client.zadd("request-sortedset", {member: deadline})
        return member

    async def cancel(self, id: str) -> None:
        token = await self.client.get(f"request-active:{id}")
        await self.client.set(f"request-cancel:{id}", token)

    async def result(self, name: str = "result-list") -> dict[str, Any]:
        """As a consumer takes it."""
        _, raw = await self.client.brpop(name, timeout=90)
        result: dict[str, Any] = json.loads(raw)
        return result


@pytest.fixture
async def broker(redis_url: str) -> AsyncIterator[RedisBroker]:
    async with RedisBroker(redis_url) as opened:
        yield opened


@pytest.fixture
async def producer(redis_url: str) -> AsyncIterator[Producer]:
    async with Redis.from_url(redis_url) as client:
        yield Producer(client)


async def waiting(queue: Queue, count: int) -> None:
    await asked_until(queue.totals, lambda found: found.pending == count)


async def test_a_go_producer_and_its_consumer_work_unchanged(broker: RedisBroker, producer: Producer) -> None:
    body = {"payload": {"n": 1.10, "m": "Ü"}}
    async with broker.queue("q", GO_LIST) as queue, broker.go_intake("q", GO_LIST, SOURCE):
        await producer.submit(
            "a", metadata={"userid": "ann", "k": "v"}, headers={"X-A": "1"}, endpoint="/v1/x", **body
        )
        await waiting(queue, 1)
        claim = await claimed(queue)
        request = claim.request
        assert (request.id, request.token, request.tenant, request.path) == ("a", "t", "ann", "/v1/x")
        assert (request.headers, request.metadata) == ({"X-A": "1"}, {"userid": "ann", "k": "v"})
        assert (request.created_ms, request.deadline_ms % 1000) == (1000, 0)
        assert await queue.finish(claim, answer(claim, b'{"ok":"\xc3\x9c"}', 200))
        assert await queue.finish(claim, answer(claim))  # an answer to the first may have been lost
        assert await producer.result() == {
            "id": "a", "status_code": 200, "payload": '{"ok":"Ü"}', "request_token": "t"
        }  # fmt: skip
        assert (
            await producer.client.exists(
                "request-active:a", "request-cancel:a", "request-sortedset", "result-list"
            )
            == 0
        )
        assert await queue.lease_results(9) == []
        assert await counts(queue) == {"submitted": 1, "succeeded": 1}


async def test_26_a_payload_is_forwarded_byte_for_byte(broker: RedisBroker, producer: Producer) -> None:
    payload = b'{ "big" : 12345678901234567890.10,\t"u":"\\u00e9\xc3\xa9", "e":1E5 }'
    deadline = await producer.now() + 60
    member = b'{"internal":{},"request_kind":"plain","data":{"id":"a","deadline":%d,"payload":%b}}' % (
        deadline,
        payload,
    )
    async with broker.queue("q", QueueRules()) as queue, broker.go_intake("q", QueueRules(), SOURCE):
        await producer.client.zadd("request-sortedset", {member: deadline})
        await waiting(queue, 1)
        assert (await claimed(queue)).request.payload == payload


async def test_results_may_be_leased_instead(broker: RedisBroker, producer: Producer) -> None:
    async with broker.queue("q", QueueRules()) as queue, broker.go_intake("q", QueueRules(), SOURCE):
        await producer.submit("a")
        await waiting(queue, 1)
        claim = await claimed(queue)
        await queue.finish(claim, answer(claim))
        [leased] = await queue.lease_results(9)
        assert leased.result.token == "t"
        assert await producer.client.exists("result-list") == 0


async def test_requests_that_came_otherwise_answer_to_the_list_too(
    broker: RedisBroker, producer: Producer
) -> None:
    async with broker.queue("q", GO_LIST) as queue:
        await submitted(broker, queue, "a")
        claim = await claimed(queue)
        await queue.finish(claim, answer(claim, b"no such model", 404))
        result = await producer.result()
        assert (result["id"], result["status_code"], result["payload"]) == ("a", 404, "no such model")
        assert "error_code" not in result


@pytest.mark.parametrize(
    ("rules", "named", "goes_to"),
    [(GO_LIST, "mine", "mine"), (QueueRules(result_list="configured"), "mine", "configured")],
)
async def test_a_message_may_name_its_list_where_the_queue_does_not(
    broker: RedisBroker, producer: Producer, rules: QueueRules, named: str, goes_to: str
) -> None:
    async with broker.queue("q", rules) as queue, broker.go_intake("q", rules, SOURCE):
        await producer.submit("a", result_queue_name=named)
        await waiting(queue, 1)
        claim = await claimed(queue)
        await queue.finish(claim, answer(claim))
        assert (await producer.result(goes_to))["id"] == "a"


@pytest.mark.parametrize("named", ["request-sortedset", "other-intake", "adsum:{q}:x", "request-cancel:b"])
async def test_a_list_that_no_message_may_name_is_refused(
    broker: RedisBroker, producer: Producer, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An intake that is empty does not exist: a result in its place would stop all its producers."""
    source = replace(SOURCE, lists=ResultLists(frozenset({"other-intake"})))
    async with broker.queue("q", GO_LIST) as queue, broker.go_intake("q", GO_LIST, source) as intake:
        for number in range(3):
            await producer.submit(f"a{number}", result_queue_name=named)
        results = [await producer.result() for _ in range(3)]
        assert {result["id"] for result in results} == {"a0", "a1", "a2"}
        assert {result["error_code"] for result in results} == {"INVALID_REQUEST"}
        assert all("result_queue_name" in result["error_message"] for result in results)
        assert len(await queue.dead_letters(9)) == 3
        assert await producer.client.exists(named) == 0
        await producer.submit("b")
        await waiting(queue, 1)
        assert not intake.problem
    lines = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 1, "whoever sends many fills no log"
    assert "a0" in lines[0].getMessage()


async def test_a_request_that_was_taken_in_before_puts_no_result_among_the_requests(
    broker: RedisBroker, producer: Producer
) -> None:
    async with broker.queue("q", GO_LIST) as queue, broker.go_intake("q", GO_LIST, SOURCE):
        await producer.submit("a")
        await waiting(queue, 1)
        [entry] = [key async for key in producer.client.scan_iter("adsum:{q}:e:*")]
        await producer.client.hset(entry, "list", SOURCE.key)
        claim = await claimed(queue)
        await queue.finish(claim, answer(claim))
        assert [leased.result.id for leased in await queue.lease_results(9)] == ["a"]
        assert await producer.client.exists(SOURCE.key) == 0


async def test_an_intake_that_is_no_sorted_set_is_said_until_it_is_one(
    broker: RedisBroker, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    await producer.client.rpush(SOURCE.key, "a result")
    async with broker.queue("q", GO_LIST) as queue, broker.go_intake("q", GO_LIST, SOURCE) as intake:
        await eventually(lambda: "is no sorted set" in intake.problem)
        await asyncio.sleep(2.5)
        assert len([one for one in caplog.records if "is no sorted set" in one.getMessage()]) == 1
        await producer.client.delete(SOURCE.key)
        await producer.submit("a")
        await waiting(queue, 1)
        await eventually(lambda: not intake.problem)  # it asks for cancellations first


@pytest.mark.parametrize("mark", ["request-cancel:a", "request-active:a"])
async def test_a_cancel_key_of_another_kind_loses_no_request(
    broker: RedisBroker, producer: Producer, mark: str
) -> None:
    """An error in the middle of a script leaves what it wrote: a request in no line, or one without its result."""
    async with broker.queue("q", GO_LIST) as queue:
        await producer.submit("a")
        await producer.client.delete(mark)
        await producer.client.rpush(mark, "no text")
        async with broker.go_intake("q", GO_LIST, SOURCE):
            await waiting(queue, 1)
            claim = await claimed(queue)
            assert await queue.finish(claim, answer(claim))
            assert (await producer.result())["id"] == "a"
        assert (await counts(queue))["submitted"] == (await counts(queue))["succeeded"] == 1


async def test_a_list_that_is_none_costs_no_result(broker: RedisBroker, producer: Producer) -> None:
    await producer.client.set("occupied", "text")
    async with broker.queue("q", GO_LIST) as queue, broker.go_intake("q", GO_LIST, SOURCE):
        await producer.submit("a", result_queue_name="occupied")
        await waiting(queue, 1)
        claim = await claimed(queue)
        assert await queue.finish(claim, answer(claim))
        [leased] = await queue.lease_results(9)
        assert leased.result.id == "a"


async def test_06_what_came_too_late_is_answered(broker: RedisBroker, producer: Producer) -> None:
    async with broker.queue("q", GO_LIST) as queue, broker.go_intake("q", GO_LIST, SOURCE):
        await producer.submit("late", within=-5)
        result = await producer.result()
        assert (result["id"], result["error_code"]) == ("late", "DEADLINE_EXCEEDED")
        assert json.loads(result["payload"])["error"] == result["error_message"]
        assert "status_code" not in result
        assert await counts(queue) == {"submitted": 1, "expired": 1}


@pytest.mark.parametrize(
    ("member", "id", "said"),
    [
        (b"\xff not JSON", None, "malformed"),
        (b'{"request_kind":"redis"}', None, "data"),
        (b'{"request_kind":"redis","data":{"deadline":9999999999,"payload":{}}}', None, "id"),
        (b'{"request_kind":"other","data":{"id":"r","deadline":9999999999,"payload":{}}}', "r", "request_kind"),
        (b'{"data":{"id":"r","deadline":9999999999,"payload":{}}}', "r", "request_kind"),
        (b'{"request_kind":"redis","data":{"id":"r","payload":{}}}', "r", "deadline"),
        (b'{"request_kind":"redis","data":{"id":"r","deadline":-1,"payload":{}}}', "r", "Unix seconds"),
        (b'{"request_kind":"redis","data":{"id":"r","deadline":9223372036854775807,"payload":{}}}', "r", "no time"),
        (b'{"request_kind":"redis","data":{"id":"r","deadline":9999999999}}', "r", "no payload"),
        (b'{"request_kind":"redis","data":{"id":"r","deadline":9999999999,"payload":{"x":"%b"}}}' % (b"x" * 2000), "r", "bytes"),
        (b'{"request_kind":"redis","data":{"id":"r","deadline":9999999999,"payload":{},"headers":{"a":1}}}', "r", "headers"),
        (b'{"request_kind":"redis","data":{"id":"\\ud800","deadline":9999999999,"payload":{}}}', None, ""),
        (b'{"request_kind":"redis","data":{"id":"r","deadline":9999999999,"payload":{},"x":%b' % (b"[" * 20_000), None, ""),
        (b'{"request_kind":"redis","data":{"id":"r","deadline":9999999999,"payload":{},"metadata":{"a":%b' % (b"[" * 20_000), None, ""),
        (b'{"request_kind":"redis","data":{"id":"","deadline":9999999999,"payload":{}}}', None, "id"),
    ],
)  # fmt: skip
async def test_07_a_malformed_message_is_kept_and_answered(
    broker: RedisBroker, producer: Producer, member: bytes, id: str | None, said: str
) -> None:
    rules = QueueRules(result_list="result-list", max_payload=1000)
    await producer.client.zadd("request-sortedset", {member: 1})
    async with broker.queue("q", rules) as queue, broker.go_intake("q", rules, SOURCE):
        await eventually(lambda: queue.dead_letters(1))
        [letter] = await queue.dead_letters(9)
        assert (letter.raw, letter.id) == (member, id)
        assert said in letter.reason
        if id is not None:
            result = await producer.result()
            assert (result["id"], result["error_code"]) == (id, "INVALID_REQUEST")
        assert await producer.client.exists("request-sortedset", "result-list") == 0
        assert (await counts(queue)).get("submitted", 0) == (id is not None)


async def test_two_replicas_double_and_lose_nothing(
    broker: RedisBroker, producer: Producer, redis_url: str
) -> None:
    ids = [f"r{n}" for n in range(200)]
    async with AsyncExitStack() as stack:
        queue = await stack.enter_async_context(broker.queue("q", GO_LIST))
        for id in ids:
            await producer.submit(id, token=f"t-{id}")
        for _ in range(3):
            other = await stack.enter_async_context(RedisBroker(redis_url))
            await stack.enter_async_context(other.go_intake("q", GO_LIST, SOURCE))
        await waiting(queue, 200)
        claims = [claim for _ in range(4) for claim in await queue.claim(64, owner="o")]
        assert sorted(claim.request.id for claim in claims) == sorted(ids)
        assert (await counts(queue))["submitted"] == 200


async def test_a_replica_that_saw_a_message_too_long_ago_takes_nothing_in(
    broker: RedisBroker, producer: Producer
) -> None:
    async with broker.queue("q", GO_LIST) as queue:
        member = await producer.submit("a")
        seen = parse(member, GO_LIST, "userid")
        assert isinstance(seen, GoMessage)
        async with broker.go_intake("q", GO_LIST, SOURCE) as intake:
            await waiting(queue, 1)
            claim = await claimed(queue)
            await queue.finish(claim, answer(claim))
            await intake._submit([(member, seen)])
            await intake._reject(member, Malformed("late", "a", "t", "result-list"))
        assert await counts(queue) == {"submitted": 1, "succeeded": 1}


async def test_08_messages_of_one_deadline_keep_the_order_of_their_scores(
    broker: RedisBroker, producer: Producer
) -> None:
    deadline = await producer.now() + 60
    for n, id in enumerate(("z", "m", "a")):
        await producer.client.zadd("request-sortedset", {message(id, deadline): deadline + n / 1000})
    async with broker.queue("q", QueueRules()) as queue, broker.go_intake("q", QueueRules(), SOURCE):
        await waiting(queue, 3)
        assert [claim.request.id for claim in await queue.claim(9, owner="o")] == ["z", "m", "a"]


async def test_21_a_go_producer_cancels_what_waits_and_what_is_on_its_way(
    broker: RedisBroker, producer: Producer
) -> None:
    async with broker.queue("q", GO_LIST) as queue:
        await producer.submit("early", token="1")
        await producer.cancel("early")
        async with broker.go_intake("q", GO_LIST, SOURCE):
            assert (await producer.result())["error_code"] == "CANCELLED"
            await producer.submit("held", token="2")
            await waiting(queue, 1)
            claim = await claimed(queue)
            await producer.cancel("held")
            async with asyncio.timeout(90):
                assert list(await queue.cancelled(30)) == [claim.fence]
            assert (await producer.result())["id"] == "held"
            assert not await queue.finish(claim, answer(claim))
            await producer.submit("held", token="3")
            await waiting(queue, 1)
            assert (await queue.state("held", "3"))[0] is State.PENDING
        assert await counts(queue) == {"submitted": 3, "cancelled": 2, "pending": 1}


async def test_21_a_backlog_delays_no_cancellation(broker: RedisBroker, producer: Producer) -> None:
    backlog = {f"{number:x}": f"t\0b{number}" for number in range(2**40, 2**40 + 300_000)}
    async with broker.queue("q", GO_LIST) as queue, broker.go_intake("q", GO_LIST, SOURCE):
        await producer.client.hset("adsum:{q}:go", mapping=backlog)
        await producer.submit("held", token="1")
        await waiting(queue, 1)
        claim = await claimed(queue)
        await producer.cancel("held")
        async with asyncio.timeout(90):  # the figure is 1 s
            assert list(await queue.cancelled(30)) == [claim.fence]
        await producer.submit("next", token="2")
        await waiting(queue, 1)
        await producer.cancel("next")
        assert await queue.claim(1, owner="o") == []
        for id in ("held", "next"):
            result = await producer.result()
            assert (result["id"], result["error_code"]) == (id, "CANCELLED")
        await producer.submit("last", token="3")
        await waiting(queue, 1)
        claim = await claimed(queue)
        await producer.cancel("last")
        async with asyncio.timeout(90):
            assert list(await queue.cancelled(30)) == [claim.fence]


async def test_what_an_older_cancellation_left_does_not_touch_an_id_used_again(
    broker: RedisBroker, producer: Producer
) -> None:
    async with broker.queue("q", GO_LIST) as queue, broker.go_intake("q", GO_LIST, SOURCE):
        await producer.submit("a", token="new")
        await producer.client.set("request-cancel:a", "old")
        await waiting(queue, 1)
        claim = await claimed(queue)
        await producer.client.set("request-active:a", "newer")
        assert await queue.finish(claim, answer(claim))
        assert (await producer.result())["status_code"] == 200
        assert await producer.client.get("request-active:a") == b"newer"
        assert await producer.client.get("request-cancel:a") == b"old"


async def test_a_cluster_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    with RedisServer(tmp_path_factory.mktemp("cluster"), cluster=True) as server:
        async with RedisBroker(server.url) as broker:
            with pytest.raises(QueueError, match="is a cluster.*not clustered"):
                async with broker.go_intake("q", QueueRules(), SOURCE):
                    pass


async def test_a_key_of_another_kind_stops_nothing(broker: RedisBroker, producer: Producer) -> None:
    await producer.client.set("request-sortedset", "text")
    async with broker.queue("q", QueueRules()) as queue, broker.go_intake("q", QueueRules(), SOURCE):
        await producer.client.delete("request-sortedset")
        await producer.submit("a")
        await waiting(queue, 1)


def test_a_message_without_token_has_the_same_one_whoever_reads_it() -> None:
    member = message("a", 99, token="")
    one, two = parse(member, QueueRules(), "userid"), parse(member, QueueRules(), "userid")
    assert isinstance(one, GoMessage)
    assert isinstance(two, GoMessage)
    assert one.request.token == two.request.token != ""
    assert isinstance(parse(b"{}", QueueRules(), "userid"), Malformed)


def test_a_large_or_strange_kind_of_message_is_quoted_and_cut() -> None:
    kind = "\x1b[31m" + "x" * 5_000_000
    data = {"id": "r", "deadline": 9_999_999_999, "payload": {}}
    parsed = parse(json.dumps({"request_kind": kind, "data": data}).encode(), QueueRules(), "userid")
    assert isinstance(parsed, Malformed)
    assert len(parsed.reason) < 200
    assert parsed.reason.isprintable()


async def test_what_does_not_fit_stays_in_the_intake_and_hides_no_other(
    broker: RedisBroker, producer: Producer
) -> None:
    rules = QueueRules(result_list="result-list", limits=QueueLimits(tenant_requests=2))
    for number in range(150):
        await producer.submit(f"a{number:03}", metadata={"userid": "ann"})
    await producer.submit("z", metadata={"userid": "bob"}, within=7000)

    async def waiting(tenant: str) -> int:
        return next((line.waiting for line in await queue.backlog(9) if line.tenant == tenant), 0)

    async with broker.queue("q", rules) as queue, broker.go_intake("q", rules, SOURCE):

        async def moved() -> bool:
            return await waiting("ann") == 2 and await waiting("bob") == 1

        await eventually(moved)
        assert await producer.client.zcard("request-sortedset") == 148
        for claim in await queue.claim(2, owner="o", skip_tenants=["bob"]):
            await queue.finish(claim, answer(claim))
        await asked_until(lambda: producer.client.zcard("request-sortedset"), lambda found: found == 146)
        assert await waiting("ann") <= 2
