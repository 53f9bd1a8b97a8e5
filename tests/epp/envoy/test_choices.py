"""The default policy's three choices behind the Envoy that `envoy-config` prints: they are tried in order, and who served is
where the request, its prompt and its failures count."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from epp.scheduling.affinity.sessions import TOKEN_HEADER
from tests.epp.envoy.picker_stage import picker_behind_envoy
from tests.eventually import eventually
from tests.free_port import free_port
from tests.http_server import http_server

REFUSALS = ["a closed port", "503"]
OUTCOMES = [(), ("--outcomes=access-log",)]
BLOCK = "a prompt of many words, " * 200
IDLE = ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc")
SESSIONS = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: session-affinity-scorer}
- {type: max-score-picker, parameters: {maxNumOfEndpoints: 3}}
"""


class Worker:
    """`refuses`: by "503", or by "a closed port" beside the one with its metadata and its page, so that it looks idle."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.refuses: str | None = None
        self.got: list[Mapping[str, str]] = []
        self.pages = 0
        self.held: asyncio.Event | None = None
        self.port = self.serves_at = 0

    async def start(self) -> "Worker":
        pages = {"/v1/completions": self._answer, "/metadata": self._metadata, "/metrics": self._page}
        self.port = self.serves_at = await self._stack.enter_async_context(http_server(pages))
        return self

    def refuse(self, how: str) -> None:
        self.refuses = how
        if how == "a closed port":
            self.serves_at = free_port()

    @property
    def destination(self) -> str:
        return f"127.0.0.1:{self.serves_at}"

    async def _metadata(self, _: web.Request) -> web.Response:
        return web.json_response({"transport": {"http": {"port": self.serves_at, "metrics_port": self.port}}})

    async def _page(self, _: web.Request) -> web.Response:
        self.pages += 1
        return web.Response(text="".join(f"vllm:{name} 0\n" for name in IDLE))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.got.append({name.lower(): value for name, value in request.headers.items()})
        if self.refuses is not None:
            return web.Response(status=503, text="not now")
        if self.held is not None:
            answer = web.StreamResponse()
            await answer.prepare(request)
            await self.held.wait()
            return answer
        return web.Response(text=self.destination)


class Stage:
    def __init__(
        self, workers: Sequence[Worker], envoy: Any, metrics: str, client: aiohttp.ClientSession
    ) -> None:
        self.workers = workers
        self.by_destination = {worker.destination: worker for worker in workers}
        self._url, self._metrics, self.client = envoy.url("/v1/completions"), metrics, client

    async def ask(self, prompt: str, **headers: str) -> tuple[int, str, Mapping[str, str]]:
        body = {"model": "m", "prompt": prompt}
        async with self.client.post(self._url, json=body, headers=headers) as answer:
            return answer.status, await answer.text(), answer.headers

    async def page(self, path: str) -> Any:
        async with self.client.get(f"http://{self._metrics}{path}") as answer:
            return json.loads(await answer.text())

    async def in_flight(self) -> set[str]:
        """The workers at which any request counts."""
        async with self.client.get(f"http://{self._metrics}/metrics") as answer:
            counts = re.findall(r"per_endpoint_inflight_requests{(.*)} (.*)", await answer.text())
        busy = [labels for labels, count in counts if float(count)]
        return {one.destination for one in self.workers if any(f"-{one.port}" in labels for labels in busy)}

    async def decision(self) -> Any:
        """The newest one, whose outcome is known."""
        newest: Any = None

        async def ended() -> bool:
            nonlocal newest
            newest = (await self.page("/debug/decisions"))["decisions"][-1]
            return newest["outcome"]["state"] == "done"

        await eventually(ended)
        return newest


@asynccontextmanager
async def staged(
    running_envoy: Any, flags: Sequence[str], how: str, config: str | None = None, count: int = 4
) -> AsyncIterator[Stage]:
    """So many workers, of which the first refuses every request."""
    async with AsyncExitStack() as stack:
        workers = [await Worker(stack).start() for _ in range(count)]
        workers[0].refuse(how)
        ports = [worker.port for worker in workers]
        behind = picker_behind_envoy(running_envoy, ports, *flags, config_text=config)
        envoy, addresses = await stack.enter_async_context(behind)
        client = await stack.enter_async_context(aiohttp.ClientSession())
        await eventually(lambda: all(worker.pages > 1 for worker in workers))
        yield Stage(workers, envoy, addresses["metrics"], client)


@pytest.mark.parametrize("flags", OUTCOMES)
@pytest.mark.parametrize("how", REFUSALS)
async def test_the_second_choice_serves_and_is_where_the_request_counts(
    running_envoy: Any, how: str, flags: Sequence[str]
) -> None:
    async with staged(running_envoy, flags, how) as stage:
        refuses, number = stage.workers[0].destination, 0

        async def is_ejected() -> bool:
            nonlocal number
            number += 1
            prompt = f"{number} {BLOCK}"
            status, served, _ = await stage.ask(prompt)
            decision = await stage.decision()
            choice, *fallbacks = [decision["choice"], *decision["fallbacks"]]
            named = [one["destination"] for one in (choice, *fallbacks)]
            assert (status, len(set(named))) == (200, 3)
            assert served == named[named[0] == refuses]
            assert stage.by_destination[served].got[-1]["x-gateway-destination-endpoint"] == ",".join(named)
            if named[0] == refuses:
                outcome = decision["outcome"]
                assert (outcome["attempts"], outcome["served_by"]) == (2, served)
                assert (await stage.ask(prompt))[1] == served, "the prompt counts as held where it was served"
                again = await stage.decision()
                assert again["choice"]["destination"] == served
            outliers = (await stage.page("/status"))["outliers"]
            assert {one["destination"] for one in outliers} <= {refuses}
            return bool(outliers)

        await eventually(is_ejected, within=90)
        assert [one["cause"] for one in (await stage.page("/status"))["outliers"]] == [
            "consecutive_local_origin_failure"
        ]
        assert number >= 5


@pytest.mark.parametrize("how", REFUSALS)
async def test_a_request_is_in_flight_where_it_is_served(running_envoy: Any, how: str) -> None:
    async with staged(running_envoy, ("--response-trailer=SEND",), how) as stage:
        refuses, *others = stage.workers
        choice, number = "", 0
        while choice != refuses.destination:
            held = asyncio.Event()
            for worker in others:
                worker.held, worker.got = held, []
            number += 1
            asked = asyncio.ensure_future(stage.ask(f"{number} {BLOCK}"))
            await eventually(lambda: any(worker.got for worker in others))
            decision = (await stage.page("/debug/decisions"))["decisions"][-1]
            choice, second = decision["choice"]["destination"], decision["fallbacks"][0]["destination"]
            server = second if choice == refuses.destination else choice

            async def is_counted(server: str = server) -> bool:
                return await stage.in_flight() == {server}

            await eventually(is_counted)
            held.set()
            assert (await asked)[0] == 200


async def test_a_session_goes_on_at_the_worker_that_served_it(running_envoy: Any) -> None:
    async with staged(running_envoy, (), "503", SESSIONS) as stage:
        first, refuses = stage.workers[0], stage.workers[0].destination
        first.refuses = None
        token = ""
        while not first.got:
            token = (await stage.ask("hello"))[2][TOKEN_HEADER]
        first.refuses = "503"
        _, served, headers = await stage.ask("hello", **{TOKEN_HEADER: token})
        decision = await stage.decision()
        assert decision["choice"]["destination"] == refuses
        assert served == decision["fallbacks"][0]["destination"] == decision["outcome"]["served_by"]
        assert headers[TOKEN_HEADER] != token
        for _ in range(5):
            again, where, _ = await stage.ask("hello", **{TOKEN_HEADER: headers[TOKEN_HEADER]})
            assert (again, where) == (200, served)


async def test_a_worker_without_another_choice_keeps_its_own_words(running_envoy: Any) -> None:
    async with staged(running_envoy, (), "503", count=1) as stage:
        assert (await stage.ask("hello"))[:2] == (503, "not now")
        assert len(stage.workers[0].got) <= 3
        assert (await stage.decision())["outcome"]["served_by"] in (None, stage.workers[0].destination)


async def test_where_all_choices_refuse_the_client_gets_their_own_words(running_envoy: Any) -> None:
    async with staged(running_envoy, (), "503") as stage:
        for worker in stage.workers:
            worker.refuse("503")
        status, said, _ = await stage.ask("hello")
        assert (status, said) == (503, "not now")
        decision = await stage.decision()
        named = [one["destination"] for one in (decision["choice"], *decision["fallbacks"])]
        assert [len(stage.by_destination[one].got) for one in named] == [1, 1, 1]
        assert decision["outcome"]["served_by"] == named[2]
