"""The sidecar: what it says of a server, and the program beside a real one."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

import discovery
import registry
from registry.__main__ import main
from registry.described import DocumentFile
from registry.sidecar import Followed, Sidecar

Eventually = Callable[..., Awaitable[float]]

VLLM = {
    "object": "list",
    "data": [
        {"id": "Qwen3", "object": "model", "owned_by": "vllm", "parent": None, "max_model_len": 4096},
        {"id": "qwen-alias", "object": "model", "parent": None, "max_model_len": 4096},
        {"id": "sql-lora", "object": "model", "parent": "Qwen3"},
    ],
}


class ModelServer:
    """A server that is not ours: `/health` and `/v1/models` as told."""

    def __init__(self) -> None:
        self.health = 200
        self.hangs = False
        self.models: Any = VLLM
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        if self.hangs:
            await asyncio.sleep(30)
        return web.Response(status=self.health)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response(self.models)


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    server = ModelServer()
    await server.start()
    yield server
    await server.stop()


@asynccontextmanager
async def following(
    server: ModelServer, file: Path | None = None, **options: Any
) -> AsyncIterator[tuple[Sidecar, discovery.Instance]]:
    followed = Followed(URL(server.url), interval=0.05, **options)
    async with (
        registry.open("memory://sidecar").register_instance("dynamo", "vllm") as handle,
        aiohttp.ClientSession() as session,
    ):
        sidecar = Sidecar(followed, handle, session, DocumentFile(file) if file else None)
        task = asyncio.create_task(sidecar.follow())
        try:
            yield sidecar, handle.instance
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def seen() -> AsyncIterator[discovery.InstanceEventStream]:
    """A watch with metadata; its `instances` are what discovery knows of the sidecar's instance."""
    async with (
        discovery.open("memory://sidecar") as found,
        found.watch("dynamo", "vllm", metadata=True) as stream,
    ):
        yield stream


async def document(seen: discovery.InstanceEventStream) -> dict[str, Any]:
    (instance,) = seen.instances.values()
    return await instance.metadata()


async def test_follows_the_servers_health(
    server: ModelServer,
    seen: discovery.InstanceEventStream,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "registry")
    async with following(server):
        await eventually(lambda: len(seen.instances) == 1)
        for health in (503, 302):
            server.health = health
            await eventually(lambda: not seen.instances)
            server.health = 204
            await eventually(lambda: len(seen.instances) == 1)
        port = URL(server.url).port
        await server.stop()
        await eventually(lambda: not seen.instances)
        assert port
        await server.start(port)
        await eventually(lambda: len(seen.instances) == 1)
    states = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert states == ["ready", "not_ready", "ready", "not_ready", "ready", "not_ready", "ready"]
    assert "HTTP 503" in caplog.text


async def test_a_server_that_hangs_is_down_after_two_silences(
    server: ModelServer, seen: discovery.InstanceEventStream, eventually: Eventually
) -> None:
    async with following(server):
        await eventually(lambda: len(seen.instances) == 1)
        server.hangs = True
        assert 1.5 < await eventually(lambda: not seen.instances) < 4
        server.hangs = False
        await eventually(lambda: len(seen.instances) == 1)


async def test_publishes_models_and_port_before_it_is_ready_and_their_changes(
    server: ModelServer, seen: discovery.InstanceEventStream, eventually: Eventually
) -> None:
    async with following(server, engine="vllm"):
        event = await asyncio.wait_for(anext(seen), 5)
        port = URL(server.url).port
        assert await event.instance.metadata() == {
            "transport": {"http": {"port": port, "metrics_port": port, "engine": "vllm"}},
            "model": {
                "name": "Qwen3",
                "aliases": ["qwen-alias"],
                "adapters": ["sql-lora"],
                "runtime_config": {"max_model_len": 4096},
            },
        }
        server.models = {"data": [{"id": "Qwen3"}]}
        event = await asyncio.wait_for(anext(seen), 5)
        assert isinstance(event, discovery.InstanceUpdatedEvent)
        assert (await event.instance.metadata())["model"] == {"name": "Qwen3", "adapters": []}
        server.models = ["nonsense"]
        await asyncio.sleep(0.2)
        assert (await document(seen))["model"] == {"name": "Qwen3", "adapters": []}


async def test_the_file_counts_over_the_server_and_is_read_again(
    server: ModelServer,
    seen: discovery.InstanceEventStream,
    eventually: Eventually,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = tmp_path / "metadata.json"
    file.write_text('{"model": {"type": "chat"}, "mdc": {"a": 1}}')
    caplog.set_level("INFO", "registry")
    async with following(server, file):
        await asyncio.wait_for(anext(seen), 5)
        first = await document(seen)
        assert (first["mdc"], first["model"]["type"], first["model"]["name"]) == ({"a": 1}, "chat", "Qwen3")
        file.write_text("{broken")
        await eventually(lambda: "is not JSON" in caplog.text)
        await asyncio.sleep(0.3)
        assert caplog.text.count("is not JSON") == 1
        assert await document(seen) == first
        file.write_text('{"model": {"name": "renamed"}}')
        event = await asyncio.wait_for(anext(seen), 5)
        second = await event.instance.metadata()
        assert second["model"]["name"] == "renamed"
        assert "mdc" not in second


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "registry", "--namespace", "dynamo", "--component", "vllm", *arguments]


async def test_the_program_registers_drains_and_leaves(
    server: ModelServer, tmp_path: Path, eventually: Eventually
) -> None:
    (tmp_path / "metadata.json").write_text('{"mdc": {}}')
    (tmp_path / "root").mkdir(mode=0o700)
    url = f"file://{tmp_path / 'root'}"
    process = await asyncio.create_subprocess_exec(
        *command("--server", server.url, "--discovery", url, "--interval", "50ms", "--label", "zone=a"),
        *(
            "--metadata-file",
            str(tmp_path / "metadata.json"),
            "--instance-id",
            "vllm-0",
            "--drain-timeout",
            "20s",
        ),
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"ADSUM_TOKEN": "t0ken"},
    )
    try:
        async with (
            discovery.open(url, token="t0ken") as found,
            found.watch("dynamo", "vllm", metadata=True) as stream,
        ):
            added = await asyncio.wait_for(anext(stream), 20)
            assert (added.instance_id, added.instance.labels) == ("vllm-0", {"zone": "a"})
            assert (await added.instance.metadata())["model"]["name"] == "Qwen3"
            process.send_signal(signal.SIGTERM)
            removed = await asyncio.wait_for(_removal(stream), 5)
            assert removed.reason == "terminating"
            await asyncio.sleep(0.5)
            assert process.returncode is None  # the server still answers
            await server.stop()
            _, log = await asyncio.wait_for(process.communicate(), 5)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    lines = [line.partition(" registry: ")[2].partition(":")[0] for line in log.decode().splitlines()]
    assert [line.split()[0] for line in lines] == ["dynamo/vllm", "ready", "draining", "left"]
    assert b"t0ken" not in log
    assert not list(tmp_path.glob("root/dynamo/vllm/vllm-0*"))


async def _removal(stream: discovery.InstanceEventStream) -> discovery.InstanceRemovedEvent:
    async for event in stream:
        if isinstance(event, discovery.InstanceRemovedEvent):
            return event
    raise AssertionError("the stream ended")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--server", "nonsense"], 2, "'nonsense' is not a server's URL; expected http://host:port"),
        (["--server", "http://x:1", "--interval", "soon"], 2, "'soon' is not a time"),
        (["--server", "http://x:1", "--label", "zone"], 2, "'zone' is not a label"),
        (["--server", "http://x:1", "--port", "99999"], 2, "port 99999 is not one"),
        (["--server", "http://x:1", "--discovery", "etcd://x"], 2, "'etcd://x' is not a registry URL"),
        (["--server", "http://x:1", "--component", "a/b"], 2, "component 'a/b' is not a DNS-1123 label"),
        (
            ["--server", "http://x:1", "--metadata-file", "/nowhere/m.json"],
            2,
            "/nowhere/m.json cannot be read",
        ),
        (["--server", "http://x:1", "--discovery", "file:///proc/adsum"], 1, "/proc/adsum"),
    ],
)
def test_bad_arguments_are_one_line(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--namespace", "dynamo", "--component", "vllm", "--discovery", "memory://x", *arguments]
    try:
        exited = main(given)
    except SystemExit as error:
        exited = int(str(error.code))
    said = capsys.readouterr().err
    assert (exited, words in said, "Traceback" in said) == (code, True, False), said
    assert said.count("\n") == 1 or said.startswith("usage:"), said
