"""The page of a picker that runs: who may see it, on which port, and that it tells of workers that come and go."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import registry
from adsum.serving.sockets import ListenError
from adsum.tasks import background
from epp.server import PickerServer
from epp.web.picker_page import PickerPage, PickerParts, queues_of_all
from tests.epp.local_picker import addresses, get, local
from tests.eventually import eventually
from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.api_server import FakeApiServer

TOKEN = "0123456789abcdef-secret"
BROWSER = {"Accept": "text/html"}
FOREIGN = {"Host": "picker.example"}


def url_of(server: PickerServer, name: str = "metrics") -> str:
    return f"http://{addresses(server)[name]}"


@asynccontextmanager
async def events(url: str) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
    async def each(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
        while True:
            block = (await answer.content.readuntil(b"\n\n")).decode()
            if block.startswith("event"):
                fields = dict(line.split(": ", 1) for line in block.strip().splitlines())
                yield fields["event"], json.loads(fields["data"])

    async with aiohttp.ClientSession(read_bufsize=2**22) as session, session.get(f"{url}/updates") as answer:
        yield each(answer)


@pytest.fixture
def endpoints_file(tmp_path: Path) -> Path:
    path = tmp_path / "workers.yaml"
    path.write_text("endpoints: []\n")
    return path


async def test_a_browser_gets_the_page_and_curl_the_paths(endpoints_file: Path) -> None:
    async with PickerServer(local(discovery=f"static://{endpoints_file}")) as server:
        url = url_of(server)
        assert "adsum" in (await get(f"{url}/", **BROWSER))[1]
        paths = (await get(f"{url}/"))[1].split()
        assert {"/metrics", "/healthz", "/status", "/debug/endpoints"} <= set(paths)
        assert not {"/", "/updates", "/web/{name}"} & set(paths)
        for path in ("/", "/updates", "/web/style.css"):
            assert (await get(url + path, **BROWSER, **FOREIGN))[0] == 403, path
        for path in ("/metrics", "/healthz", "/status", "/debug/endpoints"):
            assert (await get(url + path, **FOREIGN))[0] == 200, path


async def test_the_token_opens_the_page_to_others(endpoints_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    settings = local(discovery=f"static://{endpoints_file}", debug_token_file=path)
    async with PickerServer(settings) as server:
        url = url_of(server)
        assert (await get(f"{url}/", **BROWSER, **FOREIGN))[0] == 401
        assert (await get(f"{url}/", **BROWSER, **FOREIGN, Authorization=f"Bearer {TOKEN}"))[0] == 200


async def test_a_port_of_its_own_for_what_tells_of_requests(
    endpoints_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warning = "pages that tell of requests are served to every client that reaches"
    settings = local(discovery=f"static://{endpoints_file}", debug_address="127.0.0.1:0")
    async with PickerServer(settings) as server:
        url = url_of(server, "debug")
        assert (await get(f"{url}/", **BROWSER))[0] == 200
        assert (await get(f"{url}/", **BROWSER, **FOREIGN))[0] == 403, "it is on loopback"
        assert (await get(f"{url}/metrics"))[0] == 404
        assert warning not in caplog.text
    settings = local(discovery=f"static://{endpoints_file}", debug_address="0.0.0.0:0")
    async with PickerServer(settings) as server:
        port = addresses(server)["debug"].rpartition(":")[2]
        assert (await get(f"http://127.0.0.1:{port}/", **BROWSER, **FOREIGN))[0] == 200
        assert f"{warning} 0.0.0.0:{port}; restrict them with --debug-token-file" in caplog.text


async def test_a_port_that_is_taken_is_an_error(endpoints_file: Path) -> None:
    taken = await asyncio.start_server(lambda _, __: None, "127.0.0.1", 0)
    async with taken:
        port = taken.sockets[0].getsockname()[1]
        settings = local(discovery=f"static://{endpoints_file}", debug_address=f"127.0.0.1:{port}")
        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{port}.*--debug-address"):
            await PickerServer(settings).__aenter__()


async def test_a_metrics_address_that_is_no_name_of_a_host_is_an_error(endpoints_file: Path) -> None:
    settings = local(discovery=f"static://{endpoints_file}", metrics_address="a..b")
    with pytest.raises(ListenError, match="cannot listen on a..b:0: no name of a host.*--metrics-port"):
        await PickerServer(settings).__aenter__()


async def test_where_the_api_server_reviews_tokens_this_machine_still_sees_the_page() -> None:
    api = FakeApi()
    api.reviews.accounts = {"right": "prometheus"}
    api.reviews.grants = {("prometheus", "get", "/updates"), ("prometheus", "get", "/metrics")}
    async with FakeApiServer(api) as cluster:
        where = f"kubernetes://default?server={cluster.url}"
        async with PickerServer(local(discovery=where, metrics_endpoint_auth=True)) as server:
            url = url_of(server)
            assert (await get(f"{url}/", **BROWSER))[0] == 200
            assert (await get(f"{url}/"))[0] == 401
            assert (await get(f"{url}/metrics"))[0] == 401
            assert (await get(f"{url}/metrics", Authorization="Bearer right"))[0] == 200
            assert (await get(f"{url}/", **BROWSER, **FOREIGN))[0] == 403
            bearer = {"Authorization": "Bearer right", **FOREIGN}
            assert (await get(f"{url}/web/style.css", **bearer))[0] == 403, "it may not get this path"
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{url}/updates", headers=bearer) as answer,
            ):
                assert answer.status == 200


async def test_the_page_tells_of_workers_that_come_and_go(tmp_path: Path) -> None:
    where = f"file://{tmp_path}"
    tmp_path.chmod(0o700)

    def worker(name: str) -> registry.Registration:
        opened = registry.open(where, instance_id=name)
        return opened.register_instance("default", "default")

    shown: dict[str, Any] = {}
    async with (
        PickerServer(local(discovery=where)) as server,
        events(url_of(server)) as stream,
        asyncio.timeout(90),
    ):

        async def until(*ids: str) -> None:
            async for topic, document in stream:
                shown[topic] = document
                members = shown.get("members", {"version": 0, "endpoints": []})
                told = {one["id"] for one in members["endpoints"]}
                if told == set(ids) and shown.get("load", {}).get("version") == members["version"]:
                    return

        await until()
        async with worker("worker-1") as handle:
            handle.set_ready("ready")
            await until("worker-1")
            async with worker("worker-2") as handle:
                handle.set_ready("ready")
                await until("worker-1", "worker-2")
                assert len(shown["load"]["status"]) == len(shown["load"]["age"]) == 2
                await handle.drain(1.0)
                await until("worker-1")
        await until()
        told = [(one["what"], one["id"]) for one in reversed(shown["events"])]
        assert told[:3] == [("came", "worker-1"), ("came", "worker-2"), ("went", "worker-2")]
        assert shown["events"][-1]["why"] == ""


async def test_a_fault_of_the_page_does_not_end_the_picker(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Any:
        raise LookupError("a fault of ours")

    page = PickerPage(
        PickerParts(
            name="p", pool=broken, saturation=broken, status=broken, absent=broken, outliers=list,
            flow_control=broken, decisions=None, picks={}, credits=broken, stale_after=2.0, clock=broken,
        )
    )  # fmt: skip
    async with background(page.run()):
        await eventually(lambda: "the page cannot follow the pool: LookupError" in caplog.text)


def test_what_waits_at_several_processes_is_shown_as_by_one() -> None:
    def queue(priority: int, oldest: float | None, **flows: int) -> dict[str, Any]:
        waiting = sum(flows.values())
        longest = [{"flow": name, "waiting": count} for name, count in flows.items()]
        sizes = {"waiting": waiting, "bytes": 10 * waiting, "max_requests": 5, "ceiling": 1.0}
        return {"priority": priority, "oldest": oldest, "longest": longest, **sizes}

    one, other = (
        {"priorities": [queue(0, 2.0, a=1, b=2)]},
        {"priorities": [queue(0, 3.0, a=4), queue(-1, None)]},
    )
    first, second = queues_of_all([one, other])["priorities"]
    assert (first["waiting"], first["bytes"], first["max_requests"], first["oldest"]) == (7, 70, 10, 3.0)
    assert first["longest"] == [{"flow": "a", "waiting": 5}, {"flow": "b", "waiting": 2}]
    assert second == queue(-1, None)
