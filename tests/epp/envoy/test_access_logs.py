"""Pickers that let go once they have picked: what became of requests comes by Envoy's access log, and fails nothing."""

import asyncio
import json
import re
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web

from epp.__main__ import main
from epp.config.settings import TransportKind
from epp.envoy import flags as envoy_flags
from epp.envoy.access_logs import outcome_logs
from epp.envoy.config import bootstrap, render
from epp.envoy.json_values import Address, static_hosts
from tests.epp.envoy.picker_stage import picker_behind_envoy, started_worker
from tests.epp.picker_programs import PickerProgram, picker_programs
from tests.eventually import eventually
from tests.in_process import run_here

BY_LOG = "--outcomes=access-log"


async def read_json(url: str) -> Any:
    async with aiohttp.ClientSession() as client, client.get(url) as answer:
        return json.loads(await answer.text())


async def page(addresses: Any) -> str:
    async with (
        aiohttp.ClientSession() as client,
        client.get(f"http://{addresses['metrics']}/metrics") as answer,
    ):
        return await answer.text()


async def in_flight(addresses: Any) -> float:
    """At all workers together."""
    found = re.findall(r"(?m)^llm_d_epp_per_endpoint_inflight_requests\{.*\} (\S+)$", await page(addresses))
    return sum(map(float, found))


async def status(addresses: Any) -> Any:
    return (await read_json(f"http://{addresses['metrics']}/status"))["outcomes"]


async def outcomes(addresses: Any) -> list[Any]:
    """Of each request."""
    found = await read_json(f"http://{addresses['metrics']}/debug/decisions")
    return [decision["outcome"] for decision in found["decisions"]]


class Worker:
    """Answers when it is told to, a streamed request with headers and a first chunk at once; `computes`: seconds between both."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.computes = 0.0
        self.status = 200
        self.asked = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.asked += 1
        if asked.get("stream"):
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            await asyncio.sleep(self.computes)
            await response.write(b"data: first\n\n")
            await self.go_on.wait()
            await response.write(b"data: [DONE]\n\n")
            return response
        await self.go_on.wait()
        return web.Response(status=self.status, text="{}")


def ask(client: aiohttp.ClientSession, envoy: Any, *, stream: bool = False) -> Any:
    body = {"model": "m", "prompt": "x", "stream": stream}
    return client.post(envoy.url("/v1/completions"), json=body)


class Stage:
    def __init__(self, worker: Worker, envoy: Any, addresses: Any, client: aiohttp.ClientSession) -> None:
        self.worker, self.envoy, self.addresses, self.client = worker, envoy, addresses, client


TRANSPORTS = pytest.mark.parametrize("stage", list(TransportKind), indirect=True)
"""For tests in which the transport takes part; the others run over our own."""


@pytest.fixture
async def stage(request: pytest.FixtureRequest, running_envoy: Any) -> AsyncIterator[Stage]:
    worker = Worker()
    async with AsyncExitStack() as stack:
        port = await started_worker(stack, "/v1/completions", worker.answer)
        running = picker_behind_envoy(
            running_envoy, [port], BY_LOG, transport=getattr(request, "param", TransportKind.HTTP2)
        )
        envoy, addresses = await stack.enter_async_context(running)
        client = await stack.enter_async_context(aiohttp.ClientSession())
        yield Stage(worker, envoy, addresses, client)


@pytest.mark.parametrize("outcomes_by", ["access-log", "ext-proc"])
async def test_a_prefill_worker_that_failed_is_ejected_by_what_the_decode_worker_answers(
    outcomes_by: str, running_envoy: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("x-prefiller-host-port", ""))
        return web.Response(headers={"x-adsum-prefill-fallback": "timeout"}, text="{}")

    async with AsyncExitStack() as stack:
        ports = [await started_worker(stack, "/v1/completions", answer) for _ in range(2)]
        listed = [
            {"name": role, "address": "127.0.0.1", "port": str(port), "labels": {"llm-d.ai/role": role}}
            for role, port in zip(("decode", "prefill"), ports, strict=True)
        ]
        file = tmp_path / "endpoints.yaml"
        file.write_text(yaml.safe_dump({"endpoints": listed}))
        text = CONFIG_WITH_STAGES.replace("ENDPOINTS", str(file))
        way = f"--outcomes={outcomes_by}"
        running = picker_behind_envoy(running_envoy, [], way, discovery=None, config_text=text)
        envoy, _ = await stack.enter_async_context(running)
        client = await stack.enter_async_context(aiohttp.ClientSession())

        async def gets_no_more() -> bool:
            async with ask(client, envoy) as answered:
                assert answered.status == 200
            return any(seen) and not seen[-1]

        await eventually(gets_no_more)
    assert set(seen) == {"", f"127.0.0.1:{ports[1]}"}
    assert f"prefill (127.0.0.1:{ports[1]}) is ejected" in caplog.text


CONFIG_WITH_STAGES = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: prefill-filter}
- {type: decode-filter}
- {type: always-disagg-pd-decider}
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
- {type: file-discovery, parameters: {path: ENDPOINTS}}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}]}
- {name: decode, plugins: [{pluginRef: decode-filter}]}
dataLayer: {discovery: {pluginRef: file-discovery}}
outlierDetection: {consecutiveLocalOriginFailure: 1, suspectTimeout: 0s}
"""


async def until_in_flight(stage: Stage, count: int) -> None:
    async def reached() -> bool:
        return await in_flight(stage.addresses) == count

    await eventually(reached)


@TRANSPORTS
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_request_counts_until_its_answer_has_ended(stage: Stage, *, streamed: bool) -> None:
    assert (await status(stage.addresses))["by"] is None
    asking = asyncio.create_task(started(ask(stage.client, stage.envoy, stream=streamed)))
    await until_in_flight(stage, 1)
    if streamed:
        await asking  # its headers are there
    since = time.monotonic()
    assert {await in_flight(stage.addresses) for _ in range(20)} == {1}
    held = time.monotonic() - since
    stage.worker.go_on.set()
    async with await asking as answer:
        await answer.read()
        assert answer.status == 200
    await until_in_flight(stage, 0)
    [outcome] = await outcomes(stage.addresses)
    assert (outcome["state"], outcome["status"], outcome["ended_by"]) == ("done", 200, "end of the answer")
    to_headers, after = outcome["time_to_headers"], outcome["seconds"] - outcome["time_to_headers"]
    assert (after if streamed else to_headers) > 0.8 * held, "it waited before its headers or behind them"
    found = await status(stage.addresses)
    assert (found["by"], found["logs"], found["awaited"], found["lost"]) == ("access_log", 1, 0, 0)
    assert found["in_flight_until"].startswith("the end of the answer")
    endpoints = await read_json(f"http://{stage.addresses['metrics']}/debug/endpoints")
    assert endpoints["in_flight_until"] == found["in_flight_until"]
    assert found["delay_seconds"] < 5
    metrics = await page(stage.addresses)
    assert 'llm_d_epp_outcome_entries_total{told="ended"} 1.0' in metrics


async def started(asking: Any) -> aiohttp.ClientResponse:
    """The answer, once its headers are there."""
    return await asking  # type: ignore[no-any-return]


async def read(asking: Any) -> int:
    async with asking as answer:
        await answer.read()
        return int(answer.status)


@TRANSPORTS
async def test_a_client_that_leaves_ends_its_request(stage: Stage) -> None:
    for streamed in (False, True):
        asking = asyncio.create_task(read(ask(stage.client, stage.envoy, stream=streamed)))
        await until_in_flight(stage, 1)
        await eventually(lambda wanted=1 + streamed: stage.worker.asked == wanted)
        asking.cancel()
        await until_in_flight(stage, 0)
    before, within = await outcomes(stage.addresses)
    assert (before["state"], before["ended_by"]) == ("cancelled", "the client left")
    assert (within["state"], within["status"], within["ended_by"]) == ("done", 200, "the client left")


async def test_the_first_byte_is_that_of_the_body(stage: Stage) -> None:
    """vLLM, among others, sends the headers of a streamed answer before it computes anything."""
    stage.worker.computes = 0.5
    stage.worker.go_on.set()
    assert await read(ask(stage.client, stage.envoy, stream=True)) == 200
    await until_in_flight(stage, 0)
    [outcome] = await outcomes(stage.addresses)
    assert outcome["time_to_first_byte"] - outcome["time_to_headers"] > 0.4


async def test_an_answer_that_is_long_under_way_is_heard_of_before_its_end(stage: Stage) -> None:
    asking = asyncio.create_task(read(ask(stage.client, stage.envoy, stream=True)))

    async def answering() -> bool:
        found = await outcomes(stage.addresses)
        return bool(found) and found[0]["state"] == "answering"

    await eventually(answering)
    assert await in_flight(stage.addresses) == 1
    stage.worker.go_on.set()
    assert await asking == 200
    await until_in_flight(stage, 0)


async def test_what_a_worker_answers_and_what_envoy_answers_for_it_are_told_apart(
    running_envoy: Any,
) -> None:
    async with AsyncExitStack() as stack:
        worker = Worker()
        worker.status = 500
        worker.go_on.set()
        port = await started_worker(stack, "/v1/completions", worker.answer)
        running = picker_behind_envoy(running_envoy, [port, 1], BY_LOG)
        envoy, addresses = await stack.enter_async_context(running)
        client = await stack.enter_async_context(aiohttp.ClientSession())
        answered = [await read(ask(client, envoy)) for _ in range(6)]
        assert set(answered) <= {500, 503}
        assert 500 in answered

        async def told() -> bool:
            return all(one["state"] == "done" for one in await outcomes(addresses))

        await eventually(told)
        assert sorted(one["status"] for one in await outcomes(addresses)) == sorted(answered)


async def test_a_log_that_does_not_come_loses_no_request(running_envoy: Any) -> None:
    """The service of the log is away, and answers and picks go on."""
    worker = Worker()
    worker.go_on.set()
    async with AsyncExitStack() as stack:
        port = await started_worker(stack, "/v1/completions", worker.answer)

        @asynccontextmanager
        async def deaf(config: str, **named: Any) -> AsyncIterator[Any]:
            found = yaml.safe_load(config)
            [cluster] = [one for one in found["static_resources"]["clusters"] if one["name"] == "outcomes-1"]
            cluster |= static_hosts("outcomes-1", [Address("127.0.0.1", 1)])
            async with running_envoy(yaml.safe_dump(found), **named) as envoy:
                yield envoy

        envoy, addresses = await stack.enter_async_context(picker_behind_envoy(deaf, [port], BY_LOG))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        assert {await read(ask(client, envoy)) for _ in range(20)} == {200}
        found = await status(addresses)
        assert (found["awaited"], found["logs"], found["delay_seconds"]) == (20, 0, None)


async def noticed(
    client: aiohttp.ClientSession, envoy: Any, picker: PickerProgram, how: signal.Signals
) -> None:
    """Waits until Envoy asks other pickers, and has no connection to this one, unless it may end its streams."""

    async def is_left() -> bool:
        async with client.get(f"{envoy.admin}/clusters?format=json") as answer:
            clusters = json.loads(await answer.text())["cluster_statuses"]
        [hosts] = [cluster["host_statuses"] for cluster in clusters if cluster["name"] == "picker"]
        for host in hosts:
            address = host["address"]["socket_address"]
            if f"{address['address']}:{address['port_value']}" == picker.address:
                open_now = {one["name"]: int(one.get("value", 0)) for one in host["stats"]}["cx_active"]
                failed = bool(host["health_status"].get("failed_active_health_check"))
                return failed and (how is signal.SIGTERM or open_now == 0)
        raise AssertionError(f"{picker.address} is none of {hosts}")

    await eventually(is_left)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
@pytest.mark.parametrize("way", [BY_LOG, "--outcomes=ext-proc"])
async def test_a_picker_that_dies_fails_nothing_that_it_picked(
    running_envoy: Any, how: signal.Signals, way: str
) -> None:
    worker = Worker()
    async with AsyncExitStack() as stack:
        port = await started_worker(stack, "/v1/completions", worker.answer)
        pickers = await stack.enter_async_context(picker_programs(2, [port]))
        flags = ["--listen-port=0", "--admin-port=0", "--secure=false", way]
        flags += [f"--epp={one.address}" for one in pickers]
        envoy = await stack.enter_async_context(running_envoy(render(envoy_flags.parse(flags)), waits=False))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        asking = [asyncio.create_task(read(ask(client, envoy))) for _ in range(20)]
        await eventually(lambda: worker.asked == 20)
        counts = [await one.in_flight() for one in pickers]
        assert sum(counts) == 20
        first, second = pickers
        first.send(how)
        await noticed(client, envoy, first, how)
        worker.go_on.set()
        answered = await asyncio.gather(*asking)
        if way == BY_LOG:
            assert set(answered) == {200}

            async def idle() -> bool:
                return await second.in_flight() == 0

            await eventually(idle)
        elif how is signal.SIGKILL and counts[0]:
            assert 503 in answered, "what the other way costs"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_behind_one_name_pickers_that_know_each_other_hear_what_became_of_their_picks(
    running_envoy: Any, tmp_path: Path, how: signal.Signals
) -> None:
    """As charts/epp and charts/gateway have it: Envoy's log reaches one of them, which tells the others. `behind` is what the
    DNS says of the name."""
    root = tmp_path / "root"
    root.mkdir(mode=0o700)
    worker = Worker()
    async with AsyncExitStack() as stack:
        port = await started_worker(stack, "/v1/completions", worker.answer)
        peers = [f"--peers=file://{root}", "--peer-port=0"]
        pickers = await stack.enter_async_context(picker_programs(3, [port], peers))
        flags = ["--listen-port=0", "--admin-port=0", "--secure=false", "--peers", "--epp=pickers.llm:9002"]
        config = bootstrap(envoy_flags.parse(flags))
        behind = [Address.parse(one.address) for one in pickers]
        for cluster in config["static_resources"]["clusters"]:
            if cluster["name"] in ("picker", "outcomes-1"):
                cluster |= static_hosts(cluster["name"], behind)
        envoy = await stack.enter_async_context(running_envoy(yaml.safe_dump(config), waits=False))
        client = await stack.enter_async_context(aiohttp.ClientSession())

        async def asked(*left: PickerProgram, ends: bool = False) -> None:
            """`ends`: the first picker does meanwhile. No request fails, and each of those left hears of its own."""
            before = worker.asked
            asking = [asyncio.create_task(read(ask(client, envoy))) for _ in range(30)]
            await eventually(lambda: worker.asked - before == 30)
            if ends:
                pickers[0].send(how)
                await noticed(client, envoy, pickers[0], how)
            worker.go_on.set()
            assert set(await asyncio.gather(*asking)) == {200}
            worker.go_on.clear()

            async def told() -> bool:
                found = [(await one.page("status"))["outcomes"] for one in left]
                return all(one["by"] == "access_log" and one["awaited"] == one["lost"] == 0 for one in found)

            await eventually(told)

        await asked(*pickers)
        await asked(*pickers[1:], ends=True)
        await asked(*pickers[1:])


def test_every_picker_gets_the_log() -> None:
    settings = envoy_flags.parse(["--epp", "10.0.0.7:9002", "--epp", "picker.example:9002", BY_LOG])
    clusters = [
        one["typed_config"]["common_config"]["grpc_service"]["envoy_grpc"]["cluster_name"]
        for one in outcome_logs(settings)
    ]
    assert clusters == ["outcomes-1", "outcomes-2"]


@pytest.mark.parametrize(
    ("flags", "by_log"),
    [
        ([], True),
        (["--epp=10.0.0.7:9002", "--epp=[fd00::1]:9002"], True),
        (["--epp=localhost:9002"], True),
        (["--epp=10.0.0.7:9002", "--epp=pickers.llm:9002"], False),
        (["--epp=pickers.llm:9002", BY_LOG], True),
        (["--epp=pickers.llm:9002", "--peers"], True),
        (["--epp=pickers.llm:9002", "--peers", "--usage-metrics"], False),
        (["--response-trailer=SEND"], False),
        (["--usage-metrics"], False),
        (["--endpoint=10.0.0.1:8000"], False),
        (["--eds-file=workers.yaml"], False),
        (["--mode=original-dst"], False),
        (["--outcomes=ext-proc"], False),
    ],
)
def test_the_way_follows_from_what_is_known_of_the_pickers(flags: list[str], by_log: bool) -> None:
    settings = envoy_flags.parse(flags)
    assert settings.by_access_log is by_log
    assert bool(settings.why_ext_proc) is not (by_log or "--outcomes=ext-proc" in flags)


@pytest.mark.parametrize(
    ("plugin", "needed"),
    [("queue-scorer", ""), ("session-affinity-scorer", "session tokens")],
)
def test_the_configuration_of_the_pickers_decides_too(tmp_path: Path, plugin: str, needed: str) -> None:
    file = tmp_path / "picker.yaml"
    file.write_text(
        f"apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins: [{{type: {plugin}}}, {{type: max-score-picker}}]\n"
    )
    done = run_here(main, "envoy-config", f"--picker-config={file}")
    assert done.returncode == 0
    assert ("x-adsum-outcomes" in done.stdout) is (not needed)
    assert needed in done.stderr
    assert bool(done.stderr) is bool(needed)


def test_a_configuration_that_cannot_be_read_is_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "picker.yaml").write_text("kind: EndpointPickerConfig\nplugins: [{type: nothing}]\n")
    for name, said in (("picker.yaml", "nothing"), ("absent.yaml", "cannot be read")):
        with pytest.raises(SystemExit):
            envoy_flags.parse([f"--picker-config={tmp_path / name}"])
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--usage-metrics", "--response-body=STREAMED", "--response-trailer=SEND"])
def test_answers_cannot_be_sent_where_the_stream_ends_with_the_request(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        envoy_flags.parse([BY_LOG, flag])
    assert "--outcomes access-log sends no answers to the picker" in capsys.readouterr().err
