"""The metrics port asks the API server about each token, and is never open when that does not say yes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web

from adsum.serving.pages import PageServer
from adsum.serving.sockets import listening_sockets
from discovery.kubernetes import Cluster, ClusterTransport, Timings
from epp.__main__ import main
from epp.kubernetes.access_review import AccessReviews
from epp.telemetry import metrics_port
from epp.telemetry.metrics_port import MetricsAuth
from tests.epp.epp_program import LOCAL, epp_program
from tests.eventually import eventually
from tests.in_process import run_here
from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.api_server import FakeApiServer
from tests.kubernetes.fake.calls import Answer, Call, Handler
from tests.kubernetes.fake.faults import answers

PROMETHEUS = "system:serviceaccount:monitoring:prometheus"
PATIENT = Timings(header_deadline=60.0, connect_timeout=60.0)


def reviewing() -> FakeApi:
    """An API server that knows Prometheus, which may get /metrics, and a stranger, who may not."""
    api = FakeApi()
    api.reviews.accounts = {"right": PROMETHEUS, "poor": "system:serviceaccount:default:stranger"}
    api.reviews.grants = {(PROMETHEUS, "get", "/metrics")}
    return api


@dataclass
class Port:
    """A metrics port whose clock stands still."""

    url: str
    auth: MetricsAuth
    now: list[float] = field(default_factory=lambda: [0.0])

    async def get(self, token: str | None, path: str = "/metrics", **headers: str) -> tuple[int, str]:
        given = headers if token is None else {"Authorization": f"Bearer {token}", **headers}
        async with aiohttp.ClientSession() as session, session.get(self.url + path, headers=given) as answer:
            return answer.status, await answer.text()


@asynccontextmanager
async def port(server: str) -> AsyncIterator[Port]:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text="numbers")

    now = [0.0]
    app = web.Application()
    app.router.add_get("/metrics", page)
    app.router.add_get("/healthz", page)
    async with aclosing(ClusterTransport(Cluster(server), PATIENT)) as transport:
        auth = MetricsAuth(AccessReviews(transport), lambda: now[0])
        app.middlewares.append(auth.check)
        pages = PageServer(app, listening_sockets("127.0.0.1", 0), "test")
        await pages.start()
        try:
            yield Port(f"http://127.0.0.1:{pages.port}", auth, now)
        finally:
            await pages.aclose()


async def test_who_may_get_the_page_gets_it() -> None:
    async with FakeApiServer(reviewing()) as server, port(server.url) as asked:
        assert await asked.get("right") == (200, "numbers")
        status, said = await asked.get(None)
        assert (status, said) == (401, "a bearer token is required\n")
        assert await asked.get("wrong") == (401, "the token is not valid\n")
        status, said = await asked.get("poor")
        assert status == 403
        assert "'system:serviceaccount:default:stranger' may not get /metrics" in said
        assert "nonResourceURLs: [/metrics], verbs: [get]" in said
        assert (await asked.get("right", "/debug/endpoints"))[0] == 403, "a right is for one path"
        assert (await asked.get(None, "/healthz"))[0] == 200


@pytest.mark.parametrize("value", ["right", "Basic right", "Bearer", "Bearer ", "Bearer " + "x" * 5000])
async def test_what_is_no_token_is_refused(value: str) -> None:
    async with FakeApiServer(reviewing()) as server, port(server.url) as asked:
        status, _ = await asked.get(None, Authorization=value)
        assert status == 401


async def test_a_refusal_says_how_to_authenticate() -> None:
    async with (
        FakeApiServer(reviewing()) as server,
        port(server.url) as asked,
        aiohttp.ClientSession() as client,
        client.get(asked.url + "/metrics") as answer,
    ):
        assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")


async def test_an_accepted_token_is_reviewed_again_after_a_minute() -> None:
    api = reviewing()
    async with FakeApiServer(api) as server, port(server.url) as asked:
        for _ in range(3):
            assert (await asked.get("right"))[0] == 200
        assert len(api.calls) == 2, "one TokenReview, one SubjectAccessReview"
        api.reviews.grants.clear()
        asked.now[0] = metrics_port.ALLOWED_FOR - 1
        assert (await asked.get("right"))[0] == 200
        asked.now[0] = metrics_port.ALLOWED_FOR
        assert (await asked.get("right"))[0] == 403
        api.reviews.grants.add((PROMETHEUS, "get", "/metrics"))
        asked.now[0] += metrics_port.REFUSED_FOR
        assert (await asked.get("right"))[0] == 200


async def test_without_the_api_server_the_page_is_not_open(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeApiServer(reviewing()) as server, port(server.url) as asked:
        assert (await asked.get("right"))[0] == 200
        await server.stop()
        for _ in range(3):
            status, said = await asked.get("wrong")
            assert status == 500
            assert said.startswith("the token cannot be checked: no TokenReview: ")
        assert (await asked.get("right"))[0] == 200, "known for a minute"
        asked.now[0] = metrics_port.ALLOWED_FOR
        assert (await asked.get("right"))[0] == 500
        await server.start()
        assert (await asked.get("right"))[0] == 200
    told = [line for line in caplog.messages if "the metrics port answers 500" in line]
    assert len(told) == 2, "once a minute"


async def test_without_the_right_to_review_the_rules_are_named(caplog: pytest.LogCaptureFixture) -> None:
    api = reviewing()
    api.reviews.forbidden = True
    async with FakeApiServer(api) as server, port(server.url) as asked:
        status, said = await asked.get("right")
    assert status == 500
    assert "HTTP 403: the service account needs these rules in a ClusterRole" in said
    assert 'resources: ["tokenreviews"]' in caplog.text


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"<html>", 201),
        (b"[]", 201),
        (b"{}", 201),
        (b'{"status": []}', 201),
        (b'{"status": {"authenticated": true, "user": {}}}', 201),
        (b'{"status": {"authenticated": true}}', 201),
        (b'{"status": {"authenticated": true, "user": {"username": "a"}}}', 503),
        (b'{"status": {"authenticated": true, "user": {"username": "a"}}}' + b" " * 2**20, 201),
        (b"[" * 100_000, 201),
    ],
    ids=range(9),
)
async def test_an_answer_that_is_no_review_lets_nobody_in(body: bytes, status: int) -> None:
    api = reviewing()
    api.faults.add(answers(status, body), times=None, resource="")
    async with FakeApiServer(api) as server, port(server.url) as asked:
        assert (await asked.get("right"))[0] == 500


async def test_a_thousand_strangers_are_forgotten_and_ask_a_few_at_a_time() -> None:
    api = reviewing()
    running = most = 0

    async def counted(call: Call, serve: Handler) -> Answer:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        answer = await serve(call)
        running -= 1
        return answer

    api.faults.add(counted, times=None, resource="")
    async with FakeApiServer(api) as server, port(server.url) as asked:
        assert (await asked.get("right"))[0] == 200
        strangers = metrics_port.CACHED + 20
        for number in range(0, strangers, 2):
            asked.now[0] += 2
            got = await asyncio.gather(*(asked.get(f"stranger-{number + one}") for one in range(2)))
            assert {status for status, _ in got} == {401}
        asked.now[0] = 0
        assert len(asked.auth._refused) == metrics_port.CACHED
        assert most <= metrics_port.AT_ONCE
        calls = len(api.calls)
        assert (await asked.get("right"))[0] == 200
        assert len(api.calls) == calls, "no stranger displaced it"


async def test_an_address_whose_tokens_are_refused_costs_the_api_server_one_request_a_second() -> None:
    api = reviewing()
    async with FakeApiServer(api) as server, port(server.url) as asked:
        assert (await asked.get("right"))[0] == 200
        before = len(api.calls)
        statuses = [(await asked.get(f"stranger-{number}"))[0] for number in range(60)]
        assert statuses == [401] * metrics_port.STRANGE_TOKENS + [429] * (60 - metrics_port.STRANGE_TOKENS)
        assert len(api.calls) - before == metrics_port.STRANGE_TOKENS
        asked.now[0] = 3
        assert [(await asked.get(f"later-{number}"))[0] for number in range(5)] == [401] * 3 + [429] * 2
        asked.now[0] = 3 + metrics_port.ALLOWED_FOR
        await asyncio.gather(*(asked.get(f"last-{number}") for number in range(60)))
        assert (await asked.get("right"))[0] == 200, (
            "accepted before, so it is asked about whatever strangers do"
        )


async def test_reviews_that_hang_take_two_places_of_an_address_and_none_of_a_known_token() -> None:
    api = reviewing()
    hanging, release = 0, asyncio.Event()

    async def hang(call: Call, serve: Handler) -> Answer:
        nonlocal hanging
        hanging += 1
        await release.wait()
        return await serve(call)

    async with FakeApiServer(api) as server, port(server.url) as asked:
        assert (await asked.get("right"))[0] == 200
        asked.now[0] = metrics_port.ALLOWED_FOR
        api.faults.add(hang, times=metrics_port.AT_ONCE_OF_PEER, resource="")
        held = [asyncio.create_task(asked.get("stranger-0")) for _ in range(5)]
        held += [asyncio.create_task(asked.get("stranger-1"))]
        await eventually(lambda: hanging == metrics_port.AT_ONCE_OF_PEER)
        assert (await asked.get("stranger-2"))[0] == 429
        assert (await asked.get("right"))[0] == 200
        release.set()
        assert {status for status, _ in await asyncio.gather(*held)} == {401}
        assert hanging == metrics_port.AT_ONCE_OF_PEER, "one review for all that ask about one token"


async def test_a_picker_process_checks_tokens() -> None:
    async with FakeApiServer(reviewing()) as server:
        where = f"kubernetes://default?server={server.url}"
        async with (
            epp_program(*LOCAL, "--metrics-endpoint-auth", "--discovery", where) as running,
            asyncio.timeout(90),
        ):
            assert running.stdout is not None
            ready = (await running.stdout.readline()).decode()
            address = dict(pair.split("=") for pair in ready.split()[1:])["metrics"]
            async with aiohttp.ClientSession() as client:
                for token, status in (("right", 200), ("wrong", 401), ("poor", 403)):
                    headers = {"Authorization": f"Bearer {token}"}
                    async with client.get(f"http://{address}/metrics", headers=headers) as answer:
                        assert answer.status == status
                        assert ("llm_d_epp_ready_endpoints" in await answer.text()) is (status == 200)


def test_without_any_api_server_the_picker_does_not_start() -> None:
    arguments = ("--metrics-endpoint-auth", "--endpoint", "127.0.0.1:9")
    nowhere = {"KUBECONFIG": "/nonexistent", "KUBERNETES_SERVICE_HOST": ""}
    said = run_here(main, *LOCAL, *arguments, **nowhere)
    assert said.returncode == 1
    assert said.stderr.startswith("error: --metrics-endpoint-auth: ")
    assert "give --metrics-endpoint-auth=false" in said.stderr
