"""A real picker tells of its decisions, over HTTP."""

import asyncio
import io
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from epp.decisions.query import MOST_ROWS, DecisionQuery
from epp.server import PickerServer
from epp.telemetry.decision_pages import MAX_BYTES, DecisionPages, parse_explained
from tests.epp.decisions.test_decisions import Picker, store_of
from tests.epp.local_picker import addresses
from tests.epp.test_server import Worker, local, pick
from tests.eventually import eventually

SECRET = "SECRET-OF-A-CLIENT"


async def get(address: str, query: str = "") -> tuple[int, Any]:
    url = f"http://{address}/debug/decisions{query}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, json.loads(await answer.text())


async def explain(address: str, document: Any, query: str = "") -> tuple[int, Any]:
    url = f"http://{address}/debug/explain{query}"
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    async with aiohttp.ClientSession() as session, session.post(url, data=io.BytesIO(body)) as answer:
        return answer.status, json.loads(await answer.text())


async def test_from_a_pick_to_its_decision(messages: Any) -> None:
    async with Worker(waiting=9).serving() as busy, Worker(waiting=0).serving() as idle:
        where = f"static://{busy.destination},{idle.destination}"
        async with PickerServer(local(discovery=where)) as server:
            address = addresses(server)["metrics"]
            await eventually(lambda: busy.scrapes > 1 and idle.scrapes > 1)
            status, explained = await explain(
                address, {"path": "/v1/completions", "body": {"model": "m", "prompt": "hello"}}
            )
            assert (status, explained["outcome"]["state"]) == (200, "would be sent")
            assert (await get(address))[1]["last"] == 0, "nothing is kept of it"
            choices = f"{idle.destination},{busy.destination}"
            assert await pick(addresses(server)["grpc"], messages) == choices
            status, page = await get(address)
            assert (status, page["capacity"], page["last"]) == (200, 1000, 1)
            [decision] = page["decisions"]
            assert decision["choice"] == explained["choice"]
            assert decision["choice"]["destination"] == idle.destination
            candidates = decision["profiles"][0]["candidates"]
            assert [(one["destination"], one["waiting"]) for one in candidates] == [
                (idle.destination, 0),
                (busy.destination, 9),
            ]

            async def is_over() -> bool:
                outcome = (await get(address))[1]["decisions"][0]["outcome"]
                return (outcome["state"], outcome["status"]) == ("cancelled", None)

            await eventually(is_over)
            _, page = await get(address, f"?request_id={decision['request']['id']}&candidates=1")
            assert len(page["decisions"][0]["profiles"][0]["candidates"]) == 2, (
                "both choices are always there"
            )
            assert (await get(address, "?request_id=unknown"))[1]["decisions"] == []
            assert (await get(address, "?after=1"))[1]["decisions"] == []
            assert (await get(address, "?slow=1h"))[1]["decisions"] == []
            assert len((await get(address, "?slow=0s&limit=1"))[1]["decisions"]) == 1


async def test_without_decisions_the_page_says_so_and_requests_are_still_explained(nobody: str) -> None:
    async with PickerServer(local(discovery=nobody, decisions=0)) as server:
        address = addresses(server)["metrics"]
        status, page = await get(address)
        assert (status, page) == (
            404,
            {"error": "decisions are not recorded; start the picker without --decisions 0"},
        )
        status, explained = await explain(
            address, {"body": {"model": "m", "messages": [{"role": "user", "content": "a"}]}}
        )
        assert (status, explained["refusal"]["status"]) == (200, 503)


@pytest.fixture
def nobody(tmp_path: Path) -> str:
    """A discovery that knows of no worker."""
    path = tmp_path / "nobody.yaml"
    path.write_text("endpoints: []\n")
    return f"static://{path}"


@pytest.fixture
async def address(nobody: str) -> Any:
    async with PickerServer(local(discovery=nobody)) as server:
        yield addresses(server)["metrics"]


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("?limit=0", "limit='0' is not a whole number from 1 to 1000"),
        ("?limit=1001", "limit='1001' is not a whole number from 1 to 1000"),
        ("?limit=%D9%A1", "limit='\u0661' is not a whole number from 1 to 1000"),
        ("?after=-1", "after='-1' is not a whole number from 0 to 1000000000000000"),
        (
            "?slow=500",
            "slow: '500' is not a duration; write a number with a unit, as 500ms, 15s, 1h30m or 7d",
        ),
        ("?slower=1s", "'slower' is no parameter; there are limit, after, request_id, slow, candidates"),
        (
            "?limit=1000&candidates=21",
            f"limit times candidates is more than {MOST_ROWS}; ask for fewer of one of them",
        ),
        (
            "?request_id=often&candidates=10000",
            f"limit times candidates is more than {MOST_ROWS}; ask for fewer of one of them",
        ),
    ],
)
async def test_a_wrong_query_is_answered_with_what_was_expected(
    address: str, query: str, problem: str
) -> None:
    assert await get(address, query) == (400, {"error": problem})


@pytest.mark.parametrize(
    ("document", "status", "problem"),
    [
        (b"", 400, "the request is not one to explain: Input data was truncated"),
        ({"model": "m"}, 400, "the request is not one to explain: Object contains unknown field `model`"),
        ({"headers": {"a": 1}}, 400, "Expected `str`, got `int` - at `$.headers[...]`"),
        ({"headers": {str(at): "" for at in range(201)}}, 400, "the request has more than 200 headers"),
        (b"[" * 100_000, 400, "the request is not one to explain"),
        (b'{"body": ' + b"[" * 100_000, 400, "the request is not one to explain"),
        ({"subset": ["1.1.1.1," * 20_000]}, 400, "subset: a list of more than 16384 destinations"),
        (b" " * (MAX_BYTES + 1), 413, f"the request is longer than {MAX_BYTES} bytes"),
    ],
    ids=("empty", "unknown", "number", "many", "deep", "deep body", "subset", "long"),
)
async def test_a_request_that_cannot_be_explained_is_answered_with_why(
    address: str, document: Any, status: int, problem: str
) -> None:
    answered, body = await explain(address, document)
    assert answered == status
    assert problem in body["error"]


async def test_a_body_is_explained_byte_for_byte(address: str) -> None:
    """Prefixes are hashed as they are written: other spaces are another prompt."""
    spaced = b'{"path": "/v1/completions", "body":   { "model" :"m",  "prompt": "a"}}'
    _, explained = await explain(address, spaced)
    assert explained["request"]["body_bytes"] == len(b'{ "model" :"m",  "prompt": "a"}')
    _, text = await explain(address, {"path": "/v1/completions", "body": '{ "model" :"m",  "prompt": "a"}'})
    assert text["request"] | {"id": ""} == explained["request"] | {"id": ""}


async def test_no_answer_quotes_a_prompt_or_a_header(address: str) -> None:
    for body in (
        {"model": "m", "prompt": SECRET},
        {"model": "m", "prompt": {SECRET: 1}},
        f'{{"prompt": "{SECRET}',
    ):
        document = {
            "path": f"/v1/completions?key={SECRET}",
            "headers": {"authorization": SECRET},
            "body": body,
        }
        _, explained = await explain(address, document)
        assert SECRET not in json.dumps(explained)
    assert SECRET not in json.dumps(await get(address))


async def test_who_sends_what_cannot_be_explained_waits_as_long_as_others(address: str) -> None:
    """Reading it holds up picks, too: 200,000 destinations take a fifth of a second."""
    document = json.dumps({"subset": ["10.0.0.1:8000"] * 200_000}).encode()

    def parsing() -> float:
        began = time.process_time()
        with pytest.raises(ValueError, match="more than 16384"):
            parse_explained(document)
        return time.process_time() - began

    took = min(parsing() for _ in range(3))
    began = time.perf_counter()
    for _ in range(3):
        assert (await explain(address, document))[0] == 400
    assert time.perf_counter() - began > 10 * took


LONG = "limit=100&candidates=200"


def busy_picker() -> Picker:
    """Its answer to LONG has some MB."""
    picker = Picker(store_of(200))
    for number in range(100):
        picker.ask(x_request_id=str(number))
    return picker


def decision_pages(send_timeout: float) -> TestServer:
    app = web.Application()
    DecisionPages(busy_picker().reader, send_timeout).add_to(app)
    return TestServer(app)


@asynccontextmanager
async def asking_without_reading(server: TestServer) -> AsyncIterator[socket.socket]:
    """A connection whose answer has begun, if it is not over by now."""
    loop = asyncio.get_running_loop()
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.setblocking(False)
        await loop.sock_connect(reader, ("127.0.0.1", server.port))
        await loop.sock_sendall(reader, f"GET /debug/decisions?{LONG} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        await loop.sock_recv(reader, 1)
        yield reader


async def test_who_does_not_read_an_answer_is_cut_off() -> None:
    loop = asyncio.get_running_loop()
    async with decision_pages(send_timeout=0.5) as server, asking_without_reading(server) as reader:
        assert server.handler is not None
        await eventually(lambda: not server.handler.connections)
        received = b""
        with suppress(ConnectionError):
            while part := await loop.sock_recv(reader, 1024 * 1024):
                received += part
    assert not received.endswith(b"]}\n"), "the rest of the answer was given up"


async def test_who_does_not_read_an_answer_holds_up_no_other_reader() -> None:
    async with decision_pages(send_timeout=3600) as server, asking_without_reading(server):
        _, page = await get(f"127.0.0.1:{server.port}", "?limit=3")
        assert len(page["decisions"]) == 3


async def test_a_long_answer_leaves_the_loop_to_picks_half_of_the_time() -> None:
    picker = busy_picker()
    app = web.Application()
    DecisionPages(picker.reader).add_to(app)
    query = DecisionQuery(limit=100, candidates=200)

    def reading() -> float:
        began = time.process_time()
        for document in picker.reader.read(query):
            msgspec.json.encode(document)
        return time.process_time() - began

    takes = min(reading() for _ in range(3))
    async with TestClient(TestServer(app)) as client:
        began, worked = time.perf_counter(), time.process_time()
        body = await (await client.get(f"/debug/decisions?{LONG}")).read()
        took, worked = time.perf_counter() - began, time.process_time() - worked
    assert len(json.loads(body)["decisions"]) == 100
    assert took > 1.8 * takes
    assert took - worked > 0.7 * takes, "others had the loop"
