"""`adsum discovery serve` as a process: its pages while a worker comes and is killed."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import registry
from discovery.__main__ import main
from discovery.web.process import without_secrets
from tests.eventually import eventually
from tests.in_process import run_here
from tests.owner_process import owner
from tests.started import ready, started
from tests.warm_python import WARM_PYTHON


class Served:
    """One process and its pages."""

    def __init__(
        self, process: asyncio.subprocess.Process, ready: dict[str, str], session: aiohttp.ClientSession
    ) -> None:
        self.process = process
        self.ready = ready
        self.url = f"http://{ready['http']}"
        self._session = session

    async def text(self, path: str, status: int = 200, headers: dict[str, str] | None = None) -> str:
        async with self._session.get(self.url + path, headers=headers) as answer:
            assert answer.status == status, await answer.text()
            return await answer.text()

    async def states(self) -> dict[str, str]:
        return {row["id"]: row["state"] for row in (await self.document())["candidates"]}

    async def document(self) -> dict[str, Any]:
        async with self._session.get(f"{self.url}/debug/instances") as answer:
            assert answer.status == 200, await answer.text()
            found: dict[str, Any] = await answer.json()
            return found


@asynccontextmanager
async def serve(*arguments: str) -> AsyncIterator[Served]:
    command = (
        WARM_PYTHON,
        "-m",
        "discovery",
        "serve",
        "prod",
        "decode",
        "--listen",
        "127.0.0.1:0",
        *arguments,
    )
    async with started(*command, stderr=asyncio.subprocess.PIPE) as process:
        said = await ready(process)
        async with aiohttp.ClientSession() as session:
            yield Served(process, said, session)


async def test_who_is_there_from_before_it_is_ready_to_its_death(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir(mode=0o700)
    root = f"file://{tmp_path}/root"
    async with serve("--discovery", root) as served:
        assert await served.text("/healthz") == "ok\n"
        await eventually(lambda: _is_synced(served))
        document = await served.document()
        assert (document["namespace"], document["component"]) == ("prod", "decode")
        assert document["source"] == {**document["source"], "url": root, "state": "synced", "reason": None}
        assert await served.text("/readyz") == "ready\n"
        async with registry.open(root, address="127.0.0.1").register_instance("prod", "decode") as handle:
            await eventually(lambda: _is(served, {handle.instance.id: "not_ready"}))
            handle.set_metadata({"model": {"name": "llama-3"}})
            handle.set_ready("ready")
            await eventually(lambda: _is(served, {handle.instance.id: "ready"}))
            assert (await served.document())["candidates"][0]["model"] == "llama-3"
            metrics = await served.text("/metrics")
            place = 'component="prod/decode"'
            assert f'adsum_discovery_instances{{{place},state="ready"}} 1.0\n' in metrics
            assert f"adsum_discovery_synced{{{place}}} 1.0\n" in metrics
            assert f'adsum_discovery_events_total{{{place},event="added",reason=""}} 1.0\n' in metrics
        await eventually(lambda: _is(served, {}))
        with owner(tmp_path / "root", "w-0") as process:
            await eventually(lambda: _is(served, {"w-0": "pending"}))
            process.kill()
            await eventually(lambda: _is(served, {"w-0": "absent"}))

            async def is_told() -> bool:
                [died] = (await served.document())["candidates"]
                return "its process has ended" in (died["reason"] or "")

            await eventually(is_told)
        served.process.send_signal(signal.SIGTERM)
        assert await served.process.wait() == 0


async def _is_synced(served: Served) -> bool:
    return bool((await served.document())["source"]["state"] == "synced")


async def _is(served: Served, expected: dict[str, str]) -> bool:
    return await served.states() == expected


async def test_the_page_is_for_this_machine_and_for_who_has_the_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef0123")
    arguments = ("--debug-token-file", str(tmp_path / "token"), "--discovery", f"file://{tmp_path}")
    browser = {"Accept": "text/html"}
    foreign = browser | {"Host": "worker.example"}
    async with serve(*arguments) as served:
        assert "<title>adsum discovery</title>" in await served.text("/", headers=browser)
        assert (await served.text("/")).split() == ["/debug/instances", "/metrics", "/healthz", "/readyz"]
        for path in ("/", "/debug/instances", "/updates", "/web/discovery.js"):
            await served.text(path, 401, headers=foreign)
        await served.text("/metrics", headers=foreign)
        token = {"Authorization": "Bearer 0123456789abcdef0123"}
        await served.text("/debug/instances", headers=foreign | token)


async def test_a_port_of_its_own_is_for_all_who_reach_it(tmp_path: Path) -> None:
    more = ("--debug-address", "0.0.0.0:0", "--discovery", f"file://{tmp_path}")
    foreign = {"Accept": "text/html", "Host": "worker.example"}
    async with serve(*more) as served:
        await served.text("/", 403, headers=foreign)
        served.url = f"http://{served.ready['debug'].replace('0.0.0.0', '127.0.0.1')}"
        assert "<title>adsum discovery</title>" in await served.text("/", headers=foreign)


async def test_a_misspelt_name_is_told(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir(mode=0o700)
    root = f"file://{tmp_path}/root"
    async with (
        registry.open(root, address="127.0.0.1").register_instance("prod", "decoder"),
        serve("--discovery", root) as served,
    ):
        await eventually(lambda: _is_synced(served))
        document = await served.document()
        assert document["remarks"] == ["nothing is registered as prod/decode; there is prod/decoder"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("file:///run/adsum", "file:///run/adsum"),
        ("kubernetes://llm?pool=chat", "kubernetes://llm?pool=chat"),
        ("static://a:1,[::1]:2", "static://a:1,[::1]:2"),
        ("acme://user:secret@host:1/x?token=secret", "acme://host:1/x"),
        ("acme://u:sec@ret@host?a=b", "acme://host"),
        ("acme://host?token=a/secret", "acme://host"),
    ],
)
def test_the_page_names_no_secret_of_the_url(url: str, shown: str) -> None:
    assert without_secrets(url) == shown


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--listen", "8082"], 2, "argument --listen: '8082' is not ADDRESS:PORT"),
        (["--listen", "192.0.2.1:1"], 1, "cannot listen on 192.0.2.1:1"),
        (["--debug-token-file", "/nowhere"], 2, "/nowhere cannot be read"),
        (
            ["--listen", "127.0.0.1:0", "--debug-address", "nowhere"],
            2,
            "argument --debug-address: 'nowhere' is not",
        ),
    ],
)
def test_bad_flags_are_one_line(arguments: list[str], code: int, complaint: str, tmp_path: Path) -> None:
    said = run_here(main, "serve", "prod", "decode", *arguments, "--discovery", f"file://{tmp_path}")
    assert (said.returncode, said.stderr.count("\n")) == (code, 1)
    assert complaint in said.stderr
