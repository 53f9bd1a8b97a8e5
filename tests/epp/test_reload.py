"""The configuration file is read again while requests are under way: all of it comes into force, or nothing."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from grpc import aio

from adsum.config.problems import ConfigError
from adsum.tasks import background
from epp.config.live_config import LiveConfig
from epp.config.picker_config import parse_config
from epp.server import PickerServer
from epp.wire.messages.ext_proc_pb2 import ProcessingResponse
from tests.epp.epp_program import LOCAL, epp_program
from tests.epp.local_picker import addresses, addresses_in, get, local, stream_over
from tests.eventually import eventually
from tests.http_server import http_server
from tests.in_time import TooLateError, with_more_time

HEAD = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins:\n"
BY_QUEUE = HEAD + "- {type: queue-scorer}\n"
BY_CACHE = HEAD + "- {type: kv-cache-utilization-scorer}\n"
BAD = HEAD + "- {type: queue-scorre}\n"
PROMPT = json.dumps({"model": "m", "prompt": "hello"}).encode()


@dataclass
class Worker:
    """A model server with a metrics page."""

    waiting: int
    kv_usage: float
    port: int = 0
    pages: int = 0
    listed: list[str] = field(default_factory=list)
    """The paths at which it was asked for its models."""

    @property
    def destination(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def page(self, _: web.Request) -> web.Response:
        self.pages += 1
        return web.Response(
            text=f"vllm:num_requests_waiting {self.waiting}\nvllm:num_requests_running 1\n"
            f"vllm:kv_cache_usage_perc {self.kv_usage}\n"
        )

    async def models(self, request: web.Request) -> web.Response:
        self.listed.append(request.path)
        return web.json_response({"object": "list", "data": [{"id": "m"}]})


@asynccontextmanager
async def workers() -> AsyncIterator[tuple[Worker, Worker]]:
    """One with a long queue and a free cache, one without a queue whose cache is full."""
    made = Worker(waiting=100, kv_usage=0.0), Worker(waiting=0, kv_usage=0.99)
    async with AsyncExitStack() as stack:
        for worker in made:
            pages = {"/metrics": worker.page, "/{path:models|others}": worker.models}
            worker.port = await stack.enter_async_context(http_server(pages))
        yield made


@dataclass
class Picker:
    """A picker over these workers, with the addresses of its ports."""

    server: PickerServer
    grpc: str
    metrics: str

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[Any]:
        async with aio.insecure_channel(self.grpc) as channel:
            yield stream_over(channel)

    async def pick(self, messages: Any) -> str:
        async with self.stream() as stream:
            answer = await begin(stream, messages)
            await stream.done_writing()
            return answer

    async def goes_to(self, worker: Worker, messages: Any) -> None:
        """Until the next request does."""

        async def is_chosen() -> bool:
            return await self.pick(messages) == worker.destination

        await eventually(is_chosen)

    async def page(self, path: str) -> str:
        return (await get(f"http://{self.metrics}{path}"))[1]

    async def status(self) -> Any:
        return json.loads(await self.page("/status"))["config"]

    async def successful(self) -> bool:
        return "llm_d_epp_config_last_reload_successful 1.0\n" in await self.page("/metrics")

    async def says(self, problem: str) -> None:
        """Until /status has these words for what is wrong with the file; "": until nothing is."""

        async def is_said() -> bool:
            said = (await self.status())["problem"] or ""
            return problem in said and bool(problem) == bool(said)

        await eventually(is_said)

    async def inflight(self) -> int:
        described = json.loads(await self.page("/debug/endpoints"))["endpoints"]
        return int(sum(each["inflight"] for each in described))


async def begin(stream: Any, messages: Any) -> str:
    """Where a request goes whose headers and body are sent."""
    await stream.write(messages.headers())
    await stream.write(messages.body(PROMPT, end_of_stream=True))
    answer: ProcessingResponse = await stream.read()
    assert not answer.HasField("immediate_response"), answer
    (option,) = answer.request_headers.response.header_mutation.set_headers
    return option.header.raw_value.decode()


@asynccontextmanager
async def picker(path: Path, *listed: Worker, endpoints: Path | None = None) -> AsyncIterator[Picker]:
    """Over these workers, or over those of a file."""
    where = f"static://{endpoints or ','.join(worker.destination for worker in listed)}"
    patient = 3600.0  # a machine that stands still makes no page old
    settings = local(config_file=path, discovery=where, metrics_staleness_threshold=patient)
    async with PickerServer(settings) as server:
        where_it_is = addresses(server)
        await eventually(lambda: all(worker.pages > 1 for worker in listed))
        yield Picker(server, where_it_is["grpc"], where_it_is["metrics"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a file that sends requests to the shortest queue."""
    made = tmp_path / "picker.yaml"
    made.write_text(BY_QUEUE)
    return made


def write(path: Path, text: str) -> None:
    """Whole, as most editors do."""
    fresh = path.with_name(f"{path.name}.fresh")
    fresh.write_text(text)
    fresh.replace(path)


def swap(folder: Path, name: str, text: str) -> None:
    """As the kubelet does for a ConfigMap: ..data is replaced, the file is a link through it."""
    (folder / name).mkdir()
    (folder / name / "picker.yaml").write_text(text)
    fresh = folder / "..data_tmp"
    fresh.symlink_to(name)
    fresh.replace(folder / "..data")


async def test_a_changed_file_decides_the_next_picks(messages: Any, path: Path) -> None:
    async with workers() as (queueing, full), picker(path, queueing, full) as running:
        assert await running.pick(messages) == full.destination
        before = (await running.status())["in_force_since"]
        for text, chosen in ((BY_CACHE, queueing), (BY_QUEUE, full)):
            write(path, text)
            await running.goes_to(chosen, messages)
        status = await running.status()
        assert (status["file"], status["problem"]) == (str(path), None)
        assert status["in_force_since"] > before
        assert await running.successful()
        (line,) = [
            line
            for line in (await running.page("/metrics")).splitlines()
            if line.startswith("llm_d_epp_config_last_reload_success_timestamp_seconds ")
        ]
        assert float(line.split()[1]) == status["in_force_since"]


async def test_a_config_map_that_the_kubelet_swaps(messages: Any, tmp_path: Path) -> None:
    swap(tmp_path, "..2026_01", BY_QUEUE)
    path = tmp_path / "picker.yaml"
    path.symlink_to("..data/picker.yaml")
    async with workers() as (queueing, full), picker(path, queueing, full) as running:
        swap(tmp_path, "..2026_02", BY_CACHE)
        await running.goes_to(queueing, messages)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BAD, "line 4: plugins[0].type: 'queue-scorre' is not a plugin type; did you mean 'queue-scorer'?"),
        (HEAD + "- {type: queue-sc", "the configuration is not YAML"),
        ("", "is empty"),
        (BY_CACHE + "- {type: file-discovery, parameters: {path: /x}}\ndataLayer: {discovery: {pluginRef: file-discovery}}",
         "dataLayer.discovery: the source of workers cannot change while the picker runs; restart it"),
        (BY_CACHE + "- type: core-metrics-extractor\n  parameters: {engineConfigs: [{name: e, customMetrics: [{attributeKey: a, "
         "metricSpec: a}]}]}", "core-metrics-extractor: the attributeKeys of customMetrics cannot change while"),
        (BY_CACHE + "- {type: metrics-data-source, parameters: {scheme: https, caCertPath: /none, insecureSkipVerify: false}}",
         "metrics-data-source: parameters: /none cannot be used: No such file or directory; expected PEM files"),
        (BY_CACHE + "- {type: models-data-source, parameters: {scheme: https, clientCertPath: /none}}",
         "models-data-source: parameters: /none cannot be used: No such file or directory; expected PEM files"),
    ],
)  # fmt: skip
async def test_a_file_that_cannot_be_used_leaves_the_old_one_in_force(
    messages: Any, path: Path, text: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with workers() as (queueing, full), picker(path, queueing, full) as running:
        write(path, text)
        await running.says(said)
        assert not await running.successful()
        for _ in range(3):  # it is read again, and is no better
            write(path, text)
            await asyncio.sleep(0.3)
        assert [await running.pick(messages) for _ in range(3)] == [full.destination] * 3
        [line] = [one for one in caplog.messages if "is not in force, the old configuration stays" in one]
        assert said in line
        write(path, BY_CACHE)
        await running.goes_to(queueing, messages)
        assert (await running.status())["problem"] is None


async def test_a_file_that_is_gone_and_comes_back(messages: Any, path: Path) -> None:
    async with workers() as (queueing, full), picker(path, queueing, full) as running:
        path.unlink()
        await running.says("cannot be read: No such file")
        assert await running.pick(messages) == full.destination
        path.write_text(BY_QUEUE)
        await running.says("")


async def test_a_stream_in_flight_ends_under_the_configuration_that_it_began_with(
    messages: Any, path: Path
) -> None:
    async with (
        workers() as (queueing, full),
        picker(path, queueing, full) as running,
        running.stream() as stream,
    ):
        assert await begin(stream, messages) == full.destination
        write(path, BY_CACHE)
        await running.goes_to(queueing, messages)
        assert await running.inflight() == 1
        await stream.read()  # the answer to the body
        await stream.write(messages.response_headers())
        answer: ProcessingResponse = await stream.read()
        assert answer.HasField("response_headers")
        await stream.done_writing()
        assert await stream.read() is aio.EOF

        async def released() -> bool:
            return await running.inflight() == 0

        await eventually(released)


async def test_requests_meet_one_configuration_or_the_other_and_never_none(messages: Any, path: Path) -> None:
    async with workers() as (queueing, full), picker(path, queueing, full) as running:
        seen: list[str] = []

        async def ask() -> None:
            while True:
                seen.append(await running.pick(messages))

        asking = [asyncio.create_task(ask()) for _ in range(4)]
        for turn in range(6):
            text, chosen = ((BY_CACHE, queueing), (BY_QUEUE, full))[turn % 2]
            write(path, text)
            at = len(seen)
            await eventually(lambda at=at, chosen=chosen: chosen.destination in seen[at:])  # type: ignore[misc]
        assert not any(task.done() for task in asking)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        assert set(seen) == {queueing.destination, full.destination}


async def test_a_plugin_that_sets_headers_of_answers_does_so_for_streams_that_begin_later(
    messages: Any, path: Path
) -> None:
    sessions = (
        BY_QUEUE + "- {type: session-affinity-scorer, parameters: {strategy: encoded_endpoint_header}}\n"
    )

    async def set_headers(running: Picker, stream: Any) -> list[str]:
        await stream.read()  # the answer to the body
        await stream.write(messages.response_headers())
        answer: ProcessingResponse = await stream.read()
        await stream.done_writing()
        return [one.header.key for one in answer.response_headers.response.header_mutation.set_headers]

    async with (
        workers() as (queueing, full),
        picker(path, queueing, full) as running,
        running.stream() as old,
    ):
        await begin(old, messages)
        write(path, sessions)

        async def has_token() -> bool:
            async with running.stream() as stream:
                await begin(stream, messages)
                return await set_headers(running, stream) == ["x-session-token"]

        await eventually(has_token)
        assert await set_headers(running, old) == []


async def test_pages_are_read_elsewhere_when_the_file_says_so(path: Path) -> None:
    async with workers() as (first, second), picker(path, first) as running:

        async def waiting(count: int) -> bool:
            described = json.loads(await running.page("/debug/endpoints"))["endpoints"]
            return bool(described[0]["waiting"] == count and described[0]["age"] < 60)

        await eventually(lambda: waiting(first.waiting))
        write(path, BY_QUEUE + f"- {{type: metrics-data-source, parameters: {{port: {second.port}}}}}\n")
        await eventually(lambda: waiting(second.waiting))
        write(path, BY_QUEUE + "dataLayer: {injectDefaults: false}\n")

        async def in_force() -> bool:
            pages = second.pages
            await asyncio.sleep(0.2)
            return second.pages == pages

        await eventually(in_force)
        write(path, BY_QUEUE)
        pages = first.pages
        await eventually(lambda: first.pages > pages + 2)


async def test_models_are_asked_for_as_the_file_says(path: Path) -> None:
    path.write_text(BY_QUEUE + "- {type: models-data-source, parameters: {path: /models, interval: 1s}}\n")
    async with workers() as (worker, _), picker(path, worker):
        await eventually(lambda: "/models" in worker.listed)
        write(path, BY_QUEUE + "- {type: models-data-source, parameters: {path: /others, interval: 1s}}\n")
        await eventually(lambda: "/others" in worker.listed)


@with_more_time(500)
async def test_a_file_is_read_only_when_it_stays_the_same(path: Path, ms: int) -> None:
    prepared: list[str] = []

    async def prepare(text: str) -> Callable[[], None]:
        prepared.append(text)
        return lambda: None

    config = LiveConfig(path, BY_QUEUE, settle=ms / 1000)
    longest, written_at = 0.0, time.monotonic()
    async with background(config.run(prepare), "live config"):
        for end in range(1, len(BY_CACHE) + 1):
            path.write_text(BY_CACHE[:end])
            longest, written_at = max(longest, time.monotonic() - written_at), time.monotonic()
            await asyncio.sleep(0.01)
        await eventually(lambda: prepared)
    if longest >= ms / 1000:
        raise TooLateError
    assert prepared == [BY_CACHE]


@pytest.mark.parametrize(
    ("text", "said"),
    [(BY_QUEUE, "is unchanged, and in force"), (BAD, "the old configuration stays: line 4")],
    ids=["unchanged", "as bad as before"],
)
async def test_a_file_that_is_read_on_request_says_its_outcome_each_time(
    path: Path, caplog: pytest.LogCaptureFixture, text: str, said: str
) -> None:
    def outcomes() -> int:
        return sum(said in message for message in caplog.messages)

    async def prepare(text: str) -> Callable[[], None]:
        raise ConfigError("", "line 4")

    caplog.set_level("INFO")
    path.write_text(text)
    live = LiveConfig(path, BY_QUEUE)
    running = asyncio.ensure_future(live.run(prepare))
    for times in (1, 2):
        live.trigger()
        await eventually(lambda times=times: outcomes() >= times)
    running.cancel()


@pytest.mark.parametrize(
    ("error", "times"),
    [
        (ConfigError("", "line 4"), 1),
        (RuntimeError("of a plugin"), 1),
        (FileNotFoundError(2, "No such file", "ca.pem"), 3),
    ],
    ids=["of the text", "of a plugin", "of another file"],
)
async def test_a_refused_text_is_prepared_again_only_if_another_file_may_be_at_fault(
    path: Path, error: Exception, times: int
) -> None:
    path.write_text(BAD)
    live = LiveConfig(path, BY_QUEUE, settle=0.01)
    prepared: list[str] = []

    async def prepare(text: str) -> Callable[[], None]:
        prepared.append(text)
        raise error

    for _ in range(3):
        await live._read(prepare)
        assert live.problem
    assert len(prepared) == times
    path.write_text(BY_QUEUE)
    await live._read(prepare)
    assert not live.problem
    path.write_text(BAD)
    await live._read(prepare)
    assert live.problem
    assert len(prepared) == times + (times > 1)


async def test_a_large_file_is_parsed_beside_the_event_loop(path: Path) -> None:
    large = "a: [" + "1," * 60_000 + "]"
    began = time.perf_counter()
    with pytest.raises(ConfigError, match="more than 50,000 keys and values"):
        parse_config(large)
    parsing = time.perf_counter() - began
    longest = 0.0

    async def time_turns() -> None:
        nonlocal longest
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - began)

    async with (
        workers() as (queueing, full),
        picker(path, queueing, full) as running,
        background(time_turns(), "time turns"),
    ):
        write(path, large)
        await running.says("more than 50,000 keys and values")
    assert longest < parsing / 2


async def test_a_named_pipe_in_place_of_the_file_holds_nothing_up(tmp_path: Path) -> None:
    path = tmp_path / "picker.yaml"
    os.mkfifo(path)
    config = LiveConfig(path, BY_QUEUE, settle=0.01)
    prepared: list[str] = []

    async def prepare(text: str) -> Callable[[], None]:
        prepared.append(text)
        return lambda: None

    async with background(config.run(prepare), "live config"):
        config.trigger()
        await eventually(lambda: "is a named pipe; expected a regular file" in config.problem)
        path.unlink()
        path.write_text(BY_CACHE)
        config.trigger()
        await eventually(lambda: prepared == [BY_CACHE] and not config.problem)


@pytest.mark.parametrize("has_file", [True, False])
async def test_sighup_reads_the_file_and_ends_no_picker(path: Path, has_file: bool) -> None:
    given = [f"--config-file={path}"] if has_file else []
    async with epp_program(*LOCAL, "--endpoint=127.0.0.1:9", *given) as running, asyncio.timeout(90):
        assert running.stdout is not None
        assert running.stderr is not None
        ready = (await running.stdout.readline()).decode()
        path.write_text(BAD)
        said = b""
        wanted = (
            b"'queue-scorre' is not a plugin type" if has_file else b"no configuration file is read again"
        )
        while wanted not in said:
            running.send_signal(signal.SIGHUP)
            said += await running.stderr.readline()
        assert (await get(f"http://{addresses_in(ready)['metrics']}/healthz"))[0] == 200
        running.send_signal(signal.SIGTERM)
        await running.communicate()
        assert running.returncode == 0


async def test_outlier_detection_is_switched_on_and_off_while_requests_go(messages: Any, path: Path) -> None:
    async with workers() as (queueing, full), picker(path, queueing, full) as running:
        for section, there in (("outlierDetection: {}\nslowStart: {}\n", True), ("", False)):
            write(path, BY_QUEUE + section)

            async def is_there(there: bool = there) -> bool:
                on_page = "llm_d_epp_outlier_detection_ejections_total" in await running.page("/metrics")
                on_status = "outliers" in json.loads(await running.page("/status"))
                assert await running.pick(messages) == full.destination
                return (on_page, on_status) == (there, there)

            await eventually(is_there)
