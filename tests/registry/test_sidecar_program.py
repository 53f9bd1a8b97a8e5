"""`python -m registry`: the sidecar as a program beside a real server."""

import asyncio
import json
import os
import signal
from functools import partial
from pathlib import Path

import aiohttp
import pytest

import discovery
from registry.__main__ import main
from tests.few_descriptors import LOG, few_descriptors, idle_connections, soft_limit
from tests.registry.model_server import ModelServer, model_server
from tests.started import started
from tests.warm_python import WARM_PYTHON

program = (WARM_PYTHON, "-m", "registry", "--namespace", "dynamo", "--component", "vllm")
sidecar = partial(started, *program, stderr=asyncio.subprocess.PIPE)


async def test_the_program_registers_drains_and_leaves(server: ModelServer, tmp_path: Path) -> None:
    (tmp_path / "metadata.json").write_text('{"mdc": {}}')
    (tmp_path / "root").mkdir(mode=0o700)
    url = f"file://{tmp_path / 'root'}"
    where = ("--server", server.url, "--discovery", url, "--interval", "3s", "--label", "zone=a")
    more = ("--metadata-file", str(tmp_path / "metadata.json"), "--drain-timeout", "120s")
    environment = os.environ | {"ADSUM_TOKEN": "t0ken"}
    async with (
        sidecar("--instance-id", "vllm-0", *where, *more, env=environment) as process,
        discovery.open(url, token="t0ken") as found,
        found.watch("dynamo", "vllm", metadata=True) as stream,
    ):
        added = await asyncio.wait_for(anext(stream), 90)
        assert (added.instance_id, added.instance.labels) == ("vllm-0", {"zone": "a"})
        assert (await added.instance.metadata())["model"]["name"] == "Qwen3"
        process.send_signal(signal.SIGTERM)
        removed = await asyncio.wait_for(_removal(stream), 90)
        assert removed.reason == "terminating"
        await asyncio.sleep(0.5)
        assert process.returncode is None  # the server still answers
        await server.stop()
        _, log = await asyncio.wait_for(process.communicate(), 90)
    assert process.returncode == 0
    lines = [line.partition(" registry: ")[2].partition(":")[0] for line in log.decode().splitlines()]
    assert [line.split()[0] for line in lines] == ["dynamo/vllm", "ready", "draining", "left"]
    assert b"t0ken" not in log
    assert not list(tmp_path.glob("root/dynamo/vllm/vllm-0*"))


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_cuts_the_drain_short_and_the_registration_is_removed(
    server: ModelServer, tmp_path: Path, second: signal.Signals
) -> None:
    (tmp_path / "root").mkdir(mode=0o700)
    where = ("--discovery", f"file://{tmp_path / 'root'}", "--instance-id", "vllm-0")
    async with (
        sidecar("--server", server.url, "--drain-timeout", "60m", *where) as process,
        asyncio.timeout(90),
    ):
        assert process.stderr is not None
        while b"ready" not in await process.stderr.readline():
            pass
        process.send_signal(signal.SIGTERM)
        while b"draining" not in await process.stderr.readline():
            pass
        process.send_signal(second)
        await process.communicate()
    assert process.returncode == 0
    assert not list(tmp_path.glob("root/dynamo/vllm/vllm-0*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_told_to_stop_while_its_id_is_not_free_yet_it_stops_at_once(
    tmp_path: Path, number: signal.Signals
) -> None:
    directory = tmp_path / "dynamo" / "vllm"
    directory.mkdir(parents=True)
    elsewhere = {"version": 1, "instance_id": "w-0", "namespace": "dynamo", "component": "vllm"}
    elsewhere |= {"incarnation": "x", "host": "another", "address": "10.0.0.1", "status": "ready"}
    (directory / "w-0.json").write_text(json.dumps(elsewhere | {"port": 1}))
    asked = ["--server", "http://127.0.0.1:1", "--discovery", f"file://{tmp_path}", "--instance-id", "w-0"]
    async with sidecar(*asked) as process:
        assert process.stderr is not None
        waiting = await asyncio.wait_for(process.stderr.readline(), 90)
        assert b"waiting up to 6 s: another host's record holds the id 'w-0'" in waiting
        process.send_signal(number)
        _, log = await asyncio.wait_for(process.communicate(), 90)
    assert process.returncode == 0
    assert b"stopped by a signal before it was registered" in log


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
        (
            ["--server", "http://x:1", "--engine", "vlm"],
            2,
            "'vlm' is no engine that the picker knows; expected one of vllm,",
        ),
        (["--server", "http://x:1", "--label", "zone"], 2, "'zone' is not a label"),
        (["--server", "http://x:1", "--port", "99999"], 2, "99999 is not a port"),
        (["--server", "http://x:1", "--discovery", "consul://x"], 2, "'consul://x' is not a registry URL"),
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
    assert (exited, words in said) == (code, True), said
    assert said.startswith("error: ")
    assert said.count("\n") == 1, said


async def test_with_more_idle_connections_than_descriptors_metadata_are_answered_and_the_log_is_short(
    tmp_path: Path,
) -> None:
    (tmp_path / "root").mkdir(mode=0o700)
    url, log = f"file://{tmp_path / 'root'}", tmp_path / "log"
    who = ("--namespace", "n", "--component", "c", "--address", "127.0.0.1", "--discovery", url)
    async with model_server() as server:
        command = ("-m", "registry", *who, "--server", server.url)
        async with few_descriptors(log, *command, soft=128) as running, discovery.open(url) as found:
            [instance] = await discovery.wait_for_instances(found, "n", "c", count=1, timeout=90)
            assert soft_limit(running.pid) == 256
            timeout = aiohttp.ClientTimeout(total=90)
            with idle_connections(instance.authority):
                for _ in range(3):
                    async with (
                        aiohttp.ClientSession(timeout=timeout) as client,
                        client.get(f"http://{instance.authority}/metadata") as answer,
                    ):
                        assert answer.status == 200
                    await asyncio.sleep(0.1)
    assert log.stat().st_size < LOG, log.read_text()[:2000]
