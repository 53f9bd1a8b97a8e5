"""The sidecar: what it says of a server that does not say it itself."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

import discovery
import registry
from discovery.memory import named_store
from registry.sidecar.model_server import MetadataFile, describe_transport, merge, read_models
from registry.sidecar.sidecar import FollowedServer, Sidecar
from tests.eventually import asked_until, eventually
from tests.registry.model_server import VLLM, ModelServer


@asynccontextmanager
async def following(
    server: ModelServer, file: Path | None = None, **options: Any
) -> AsyncIterator[tuple[Sidecar, discovery.Instance]]:
    address = URL(server.url).with_user("user").with_password("s3cret")  # which nobody is shown
    followed = FollowedServer(address, interval=0.05, **{"min_probe_timeout": 60.0, **options})
    async with (
        registry.open("memory://sidecar").register_instance("dynamo", "vllm") as handle,
        aiohttp.ClientSession() as session,
    ):
        sidecar = Sidecar(followed, handle, session, MetadataFile(file) if file else None)
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
        discovery.open("memory://sidecar", silent_after=60.0) as found,
        found.watch("dynamo", "vllm", metadata=True) as stream,
    ):
        yield stream


async def document(seen: discovery.InstanceEventStream) -> dict[str, Any]:
    (instance,) = seen.instances.values()
    return await instance.metadata()


async def test_explain_says_which_of_the_two_does_not_answer(server: ModelServer) -> None:
    async def why() -> str | None:
        async with discovery.open("memory://sidecar") as service:
            [candidate] = (await service.explain("dynamo", "vllm")).candidates
            return candidate.reason

    async def until(words: str) -> None:
        await asked_until(why, lambda found: words in (found or ""))

    where = f"{server.url}/health"
    server.health = 503
    async with following(server) as (_, instance):
        await until(f"its status is not_ready; the server behind it, {where}: HTTP 503")
        await server.stop()
        await until(f"the server behind it, {where}: cannot be reached: Connection refused")
    silent = replace(instance, port=1)  # a sidecar that hangs, or whose network is cut
    named_store("sidecar").put(silent)
    try:
        assert "s3cret" not in (await why() or "")
        await until("its status is not_ready, and nothing answers at 127.0.0.1:1: cannot be reached")
    finally:
        named_store("sidecar").remove(silent)


async def test_follows_the_servers_health(
    server: ModelServer, seen: discovery.InstanceEventStream, caplog: pytest.LogCaptureFixture
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
    server: ModelServer, seen: discovery.InstanceEventStream
) -> None:
    async with following(server, min_probe_timeout=1.0):
        await eventually(lambda: len(seen.instances) == 1)
        begun = time.monotonic()
        server.hangs = True
        await eventually(lambda: not seen.instances)
        assert time.monotonic() - begun > 1.5
        server.hangs = False
        await eventually(lambda: len(seen.instances) == 1)


async def test_a_server_that_drains_and_misses_one_probe_still_serves(server: ModelServer) -> None:
    followed = FollowedServer(URL(server.url), interval=0.05, drain_timeout=120.0, min_probe_timeout=2.0)
    async with (
        registry.open("memory://sidecar").register_instance("dynamo", "vllm") as handle,
        aiohttp.ClientSession() as session,
    ):
        server.misses = 1
        draining = asyncio.create_task(Sidecar(followed, handle, session).drain())
        await eventually(lambda: draining.done() or server.asked >= 4)
        assert not draining.done()
        await server.stop()
        await asyncio.wait_for(draining, 90)


async def test_publishes_models_and_port_before_it_is_ready_and_their_changes(
    server: ModelServer, seen: discovery.InstanceEventStream
) -> None:
    async with following(server, engine="vllm"):
        event = await asyncio.wait_for(anext(seen), 90)
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
        event = await asyncio.wait_for(anext(seen), 90)
        assert isinstance(event, discovery.InstanceUpdatedEvent)
        assert (await event.instance.metadata())["model"] == {"name": "Qwen3", "adapters": []}
        server.models = ["nonsense"]
        await asyncio.sleep(0.2)
        assert (await document(seen))["model"] == {"name": "Qwen3", "adapters": []}


async def test_a_list_of_models_that_comes_in_pieces_is_read_whole(
    server: ModelServer, seen: discovery.InstanceEventStream
) -> None:
    server.raw_models = json.dumps(VLLM | {"padding": "x" * 300_000}).encode()
    async with following(server):
        event = await asyncio.wait_for(anext(seen), 90)
        assert (await event.instance.metadata())["model"]["name"] == "Qwen3"


@pytest.mark.parametrize(
    ("models", "words"),
    [
        (b'{"data": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
        (b'{"data": [], "padding": "' + b"x" * 1_100_000 + b'"}', "more than 1048576 bytes"),
    ],
)
async def test_a_list_of_models_that_cannot_be_read_ends_nothing(
    server: ModelServer,
    seen: discovery.InstanceEventStream,
    caplog: pytest.LogCaptureFixture,
    models: bytes,
    words: str,
) -> None:
    caplog.set_level("INFO", "registry")
    server.raw_models = models
    async with following(server):
        event = await asyncio.wait_for(anext(seen), 90)
        assert "model" not in await event.instance.metadata()
        server.raw_models = None
        event = await asyncio.wait_for(anext(seen), 90)
        assert (await event.instance.metadata())["model"]["name"] == "Qwen3"
    assert words in caplog.text


def swap(file: Path, text: str) -> None:
    """Another content at once: no reader sees it half written."""
    aside = file.with_suffix(".new")
    aside.write_text(text)
    aside.replace(file)


async def test_the_file_counts_over_the_server_and_is_read_again(
    server: ModelServer, seen: discovery.InstanceEventStream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "metadata.json"
    file.write_text('{"model": {"type": "chat"}, "mdc": {"a": 1}, "labels": {"a": "b"}}')
    caplog.set_level("INFO", "registry")
    async with following(server, file):
        await asyncio.wait_for(anext(seen), 90)
        first = await document(seen)
        assert (first["mdc"], first["model"]["type"], first["model"]["name"]) == ({"a": 1}, "chat", "Qwen3")
        swap(file, "{broken")
        await eventually(lambda: "is not JSON" in caplog.text)
        await asyncio.sleep(0.3)
        assert caplog.text.count("is not JSON") == 1
        assert await document(seen) == first
        swap(file, '{"model": {"name": "renamed"}, "labels": {"a": "b"}}')
        event = await asyncio.wait_for(anext(seen), 90)
        second = await event.instance.metadata()
        assert second["model"]["name"] == "renamed"
        assert "mdc" not in second
    said = [record.getMessage() for record in caplog.records if "was read again" in record.getMessage()]
    assert said == [f"{file} was read again; changed fields: model, mdc"]


DEEP = b'{"data": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[1]", "holds a JSON list"),
        (b"\xff", "is not JSON"),
        (b"{", "is not JSON"),
        (DEEP, "is not JSON: it is nested too deeply"),
        (b'{"a": "' + b"x" * 1_048_576 + b'"}', "is larger than 1048576 bytes"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_broken_file_says_what_is_wrong_and_keeps_what_was_good(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "metadata.json"
    path.write_text('{"good": true}')
    file = MetadataFile(path)
    file.refresh()
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(ValueError, match=words):
            file.refresh()
    assert file.content == {"good": True}
    path.write_text('{"good": "again"}')
    file.refresh()
    assert file.content == {"good": "again"}


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"data": {}}', b'{"data": ["a"]}', b'{"data": [{"id": 1}]}', DEEP]
)
def test_a_list_of_models_that_is_none(body: bytes) -> None:
    with pytest.raises(ValueError, match="."):
        read_models(body)


def test_an_empty_list_of_models_says_nothing() -> None:
    assert read_models(b'{"data": []}') == {}


def test_the_port_is_the_schemes_where_the_url_names_none() -> None:
    assert describe_transport(URL("https://worker"), None) == {
        "transport": {"http": {"port": 443, "metrics_port": 443}}
    }


OBJECTS = st.recursive(
    st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8
).filter(lambda value: isinstance(value, dict))


@given(OBJECTS, OBJECTS)
def test_merging_loses_nothing_of_what_counts(under: dict[str, Any], over: dict[str, Any]) -> None:
    both = merge(under, over)
    assert merge(both, over) == both
    assert both.keys() == under.keys() | over.keys()
    assert merge({}, over) == over
