"""Which models workers without metadata serve, by their own `/v1/models`: when they are asked, and what counts."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web

from discovery import Instance, InstanceAddedEvent, InstanceRemovedEvent, InstanceUpdatedEvent
from epp.endpoints.datastore import Datastore
from epp.scraping.model_lists import ModelListRules, ModelLists
from tests.eventually import eventually
from tests.fake_worker import hang
from tests.http_server import http_server

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
RULES = ModelListRules(interval=3600.0, retry=0.01, timeout=60.0)
"""No answer that comes is too late, however busy the machine is."""
IMPATIENT = replace(RULES, timeout=0.5)


def lists(*names: str) -> Answer:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response(
            {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}
        )

    return answer


def says(status: int, body: bytes = b"<html>", **headers: str) -> Answer:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, body=body, headers={"Content-Type": "text/html"} | headers)

    return answer


class Server:
    """Answers `GET /v1/models` with `answer`, and counts."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[web.Request] = []
        self.at_once = self.most_at_once = 0
        self.port = 0

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        return await self.answer(request)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Server"]:
        async with http_server({"/v1/models": self._handle}) as self.port:
            yield self


@asynccontextmanager
async def asking(store: Datastore, rules: ModelListRules = RULES) -> AsyncIterator[None]:
    task = asyncio.create_task(ModelLists(store, rules, random.Random(1)).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()


def instance(server: Server, name: str = "w", revision: str | None = None) -> Instance:
    return Instance(name, "ns", "c", "127.0.0.1", server.port, "a", revision=revision)


def add(store: Datastore, server: Server, name: str = "w", **document: object) -> None:
    store.apply(InstanceAddedEvent(instance(server, name)), document)


def listed(store: Datastore, name: str = "w") -> list[str]:
    return [
        model.id for endpoint in store.endpoints if endpoint.id == name for model in endpoint.listed_models
    ]


def serving(store: Datastore, model: str) -> list[str]:
    mask = store.serving(model)
    return [e.id for i, e in enumerate(store.endpoints) if mask is None or mask[i]]


async def test_a_request_goes_to_those_that_list_its_model_and_to_those_of_which_nothing_is_known() -> None:
    store = Datastore()
    servers = {"a": lists("m", "x"), "b": lists("m", "y"), "unknown": says(404)}
    async with AsyncExitStack() as stack:
        for name, answer in servers.items():
            add(store, await stack.enter_async_context(Server(answer).serving()), name)
        await stack.enter_async_context(asking(store))
        await eventually(lambda: listed(store, "a") and listed(store, "b"))
        assert serving(store, "m") == ["a", "b", "unknown"]
        assert serving(store, "x") == ["a", "unknown"]
        assert serving(store, "y") == ["b", "unknown"]
        assert serving(store, "z") == ["unknown"]


async def test_a_name_that_nobody_lists_is_for_the_workers_to_judge() -> None:
    """A list is no promise: Ollama takes names without their tag, SGLang any, vLLM resolves adapters when asked for."""
    store = Datastore()
    async with Server(lists("m")).serving() as server, asking(store):
        add(store, server)
        add(store, server, "declares", model={"name": "other"})
        await eventually(lambda: listed(store) == ["m"])
        assert serving(store, "llama3") == ["w"]
        assert serving(store, "other") == ["declares"]


@pytest.mark.parametrize(
    "answer",
    [
        says(200), says(204, b""), says(301, Location="/v2/models"), says(400), says(401), says(403), says(404), says(405),
        says(429), says(200, b"x" * (2 * 1024 * 1024)), says(200, b'{"data": [1]}'), lists(),
    ],
)  # fmt: skip
async def test_whatever_else_is_answered_there_is_no_restriction_and_no_second_question(
    answer: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    store = Datastore()
    async with Server(answer).serving() as server, asking(store):
        add(store, server)
        await eventually(lambda: "is asked for every model" in caplog.text)
        assert serving(store, "anything") == ["w"]
        await asyncio.sleep(0.05)
        assert len(server.requests) == 1


@pytest.mark.parametrize("answer", [says(500), says(503), hang], ids=["500", "503", "hang"])
async def test_a_server_that_is_starting_or_busy_is_asked_again(answer: Answer) -> None:
    store = Datastore()
    async with Server(answer).serving() as server, asking(store, IMPATIENT):
        add(store, server)
        await eventually(lambda: len(server.requests) > 1)
        assert serving(store, "anything") == ["w"]
        server.answer = lists("m")
        await eventually(lambda: listed(store) == ["m"])


async def test_a_server_that_fails_for_a_moment_keeps_its_models() -> None:
    store = Datastore()
    async with (
        Server(lists("m")).serving() as server,
        asking(store, ModelListRules(interval=0.02, retry=0.01)),
    ):
        add(store, server)
        await eventually(lambda: listed(store) == ["m"])
        server.answer = says(503)
        before = len(server.requests)
        await eventually(lambda: len(server.requests) > before + 3)
        assert listed(store) == ["m"]
        server.answer = lists("m", "lora")
        await eventually(lambda: listed(store) == ["m", "lora"])
        server.answer = says(401)
        await eventually(lambda: listed(store) == [])


async def test_a_process_that_is_replaced_again_and_again_is_asked_at_the_pace_of_retries() -> None:
    store = Datastore()
    async with (
        Server(lists("m")).serving() as server,
        asking(store, ModelListRules(interval=3600.0, retry=1800.0)),
    ):
        add(store, server)
        await eventually(lambda: listed(store) == ["m"])
        for _ in range(20):
            store.process_replaced(store.endpoints[0])
            await asyncio.sleep(0.01)
        assert len(server.requests) == 1


async def test_it_is_asked_again_when_its_process_was_replaced() -> None:
    store = Datastore()
    async with Server(lists("m")).serving() as server, asking(store):
        store.apply(InstanceAddedEvent(instance(server, revision="a.one.1")), {})
        await eventually(lambda: listed(store) == ["m"])
        server.answer = lists("n")
        changed = InstanceUpdatedEvent(
            instance(server, revision="a.one.1"), instance(server, revision="a.two.1")
        )
        store.apply(changed, {})
        await eventually(lambda: listed(store) == ["n"])


async def test_a_worker_that_declares_its_models_is_not_asked() -> None:
    store = Datastore()
    async with Server(lists("m")).serving() as server, asking(store):
        add(store, server, model={"name": "declared"})
        add(store, server, "other")
        await eventually(lambda: listed(store, "other") == ["m"])
        assert len(server.requests) == 1
        assert (serving(store, "declared"), serving(store, "m")) == (["w"], ["other"])


async def test_a_declaration_that_comes_later_counts_and_ends_the_questions() -> None:
    store = Datastore()
    async with Server(lists("m")).serving() as server, Server(lists("n")).serving() as other:
        async with asking(store, ModelListRules(interval=0.01)):
            add(store, server)
            add(store, other, "other")
            await eventually(lambda: listed(store) == ["m"])
            declares = {"model": {"name": "declared"}}
            store.apply(InstanceUpdatedEvent(instance(server), instance(server)), declares)
            before = len(server.requests), len(other.requests)
            await eventually(lambda: len(other.requests) > before[1] + 10)
        assert len(server.requests) <= before[0] + 1, "only what was already under way"
        assert "w" not in serving(store, "m")


async def test_at_most_so_many_are_asked_at_once() -> None:
    store = Datastore()
    running = most = 0

    async def slow(request: web.Request) -> web.Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return web.json_response({"data": [{"id": "m"}]})

    async with Server(slow).serving() as server, asking(store):
        for number in range(60):
            add(store, server, f"w{number}")
        await eventually(lambda: all(endpoint.listed_models for endpoint in store.endpoints))
    assert most <= 16


async def test_who_leaves_is_asked_no_more() -> None:
    store = Datastore()
    async with Server(lists("m")).serving() as server, Server(lists("n")).serving() as other:
        async with asking(store, ModelListRules(interval=0.01)):
            add(store, server)
            add(store, other, "other")
            await eventually(lambda: len(server.requests) > 2)
            store.apply(InstanceRemovedEvent(instance(server), "deleted"))
            before = len(server.requests), len(other.requests)
            await eventually(lambda: len(other.requests) > before[1] + 10)
        assert len(server.requests) <= before[0] + 1, "only what was already under way"
    assert not store.on_reset
    assert not store.on_change


async def test_one_line_says_which_way_is_used(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    store = Datastore()
    async with AsyncExitStack() as stack:
        for name, answer in {"a": lists("m", *"bcdefg"), "b": says(401)}.items():
            add(store, await stack.enter_async_context(Server(answer).serving()), name)
        add(store, Server(lists()), "c", model={"name": "m", "adapters": ["lora"]})
        await stack.enter_async_context(asking(store, ModelListRules(interval=0.01)))
        await eventually(lambda: len(caplog.records) >= 3)
        await asyncio.sleep(0.1)
        where = {endpoint.id: endpoint.destination for endpoint in store.endpoints}
    assert sorted(record.getMessage() for record in caplog.records if record.name.startswith("epp")) == [
        f"a ({where['a']}) serves 'm', 'b', 'c', 'd', 'e' and 2 more, as its /v1/models says",
        f"b ({where['b']}) is asked for every model, because its models are unknown: GET /v1/models: status 401, expected 200",
        f"c ({where['c']}) serves 'lora', 'm', as its metadata say",
    ]


async def test_the_same_models_with_another_date_are_no_news(caplog: pytest.LogCaptureFixture) -> None:
    dates = itertools.count(1_800_000_000)

    async def answer(request: web.Request) -> web.Response:  # vLLM dates its models when it is asked
        return web.json_response({"object": "list", "data": [{"id": "m", "created": next(dates)}]})

    caplog.set_level("INFO")
    store = Datastore()
    async with Server(answer).serving() as server, asking(store, ModelListRules(interval=0.01)):
        add(store, server)
        await eventually(lambda: listed(store) == ["m"])
        changes: list[None] = []
        store.on_change.append(lambda: changes.append(None))
        before = len(server.requests)
        await eventually(lambda: len(server.requests) > before + 4)
    assert not changes  # nothing that depends on the models is computed again
    assert sum("serves 'm'" in message for message in caplog.messages) == 1
