"""Flow control in a whole picker: requests wait, the file changes meanwhile, and the metrics and the log tell of it."""

import asyncio
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from epp.wire.messages.ext_proc_pb2 import ProcessingResponse
from tests.epp.test_reload import BAD, HEAD, PROMPT, Picker, begin, picker, workers, write
from tests.eventually import eventually

PLUGINS = HEAD + "- {type: queue-scorer}\n"


def flow_control(concurrency: int, section: str = "", gate: str = "flowControl") -> str:
    """One worker has room for so many requests."""
    return (
        f"{PLUGINS}- {{type: concurrency-detector, parameters: {{maxConcurrency: {concurrency}}}}}\n"
        f"featureGates: [{gate}]\n"
        f"flowControl: {{saturationDetector: {{pluginRef: concurrency-detector}}{section}}}\n"
        "schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}]}]\n"
    )


async def sample(running: Picker, name: str, labels: str = "") -> float:
    """The sum of the samples that have these labels; -1 without any."""
    page = await running.page("/metrics")
    found = re.findall(rf"^llm_d_epp_flow_control_{name}\{{(.*?)\}} (\S+)$", page, re.MULTILINE)
    values = [float(value) for given, value in found if labels in given]
    return sum(values) if values else -1


async def shows(running: Picker, value: float, name: str, labels: str = "") -> None:
    """Wait for a page that says so: one that was just rendered may serve for a moment more."""

    async def said() -> bool:
        return await sample(running, name, labels) == value

    await eventually(said)


async def wait_for(running: Picker, requests: int) -> None:
    await shows(running, requests, "queue_size")


async def status_of(running: Picker, messages: Any) -> tuple[int, dict[str, str]]:
    """The picker's own answer to a request, and its headers."""
    async with running.stream() as stream:
        await stream.write(messages.headers())
        await stream.write(messages.body(PROMPT, end_of_stream=True))
        answer: ProcessingResponse = await stream.read()
        await stream.done_writing()
        headers = answer.immediate_response.headers.set_headers
        named = {one.header.key.lower(): one.header.raw_value.decode() for one in headers}
        return answer.immediate_response.status.code, named


async def test_a_file_that_changes_while_requests_wait(
    messages: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "picker.yaml"
    path.write_text(flow_control(1))
    async with workers() as (worker, _), picker(path, worker) as running, running.stream() as held:
        await begin(held, messages)
        waiting = [asyncio.create_task(running.pick(messages)) for _ in range(3)]
        await wait_for(running, 3)
        assert await sample(running, "pool_saturation", 'stage="effective"') >= 1.0
        write(path, BAD)

        async def refused() -> bool:
            return "is not a plugin type" in ((await running.status())["problem"] or "")

        await eventually(refused)
        await shows(running, 3, "queue_size")
        write(path, flow_control(1, ", maxRequests: 3"))
        await eventually(running.successful)
        await shows(running, 3, "queue_size")
        await shows(running, 1.0, "global_capacity_utilization_requests")
        [band] = json.loads(await running.page("/status"))["flow_control"]["priorities"]
        assert (band["priority"], band["waiting"]) == (0, 3)
        assert band["bytes"] > 3 * len(PROMPT), "their headers count too"
        status, headers = await status_of(running, messages)
        assert (status, headers["x-llm-d-request-dropped-reason"]) == (429, "rejected-saturated")
        assert int(headers["retry-after"]) >= 1
        assert not any(task.done() for task in waiting)
        write(path, flow_control(1, gate="flowControl=false"))
        assert await asyncio.gather(*waiting) == [worker.destination] * 3
        assert (await running.status())["problem"] is None
        assert json.loads(await running.page("/status"))["flow_control"] is None
    assert [line for line in caplog.messages if line.startswith("requests of priority")] == [
        "requests of priority 0 wait: the saturation of the pool is 1.00"
    ]


async def test_who_waits_is_on_the_metrics_page(messages: Any, tmp_path: Path) -> None:
    path = tmp_path / "picker.yaml"
    path.write_text(flow_control(2))
    async with workers() as (worker, _), picker(path, worker) as running:
        await shows(running, -1, "requests_total")
        await shows(running, 0, "capacity_utilization_requests", 'priority="0"')
        async with running.stream() as first, running.stream() as second:
            await begin(first, messages)
            await begin(second, messages)
            waiting = asyncio.create_task(running.pick(messages))
            await wait_for(running, 1)
            await shows(running, len(PROMPT), "queue_bytes")
            await shows(running, 2, "requests_total", 'outcome="Dispatched"')
            await shows(running, 1 / 5000, "capacity_utilization_requests", 'priority="0"')
            await first.done_writing()
            assert await waiting == worker.destination
            await second.done_writing()
        await shows(running, 3, "requests_total", 'outcome="Dispatched",priority="0"')
        await shows(running, 0, "pool_saturation", 'stage="effective"')
        assert json.loads(await running.page("/status"))["flow_control"]["saturation"] == 0
        await shows(running, 3, "request_queue_duration_seconds_count", 'outcome="Dispatched"')
        await shows(running, 1, "request_enqueue_duration_seconds_count")
        picks = re.search(
            r"^llm_d_epp_scheduler_e2e_duration_seconds_count (\S+)$",
            await running.page("/metrics"),
            re.MULTILINE,
        )
        assert picks is not None
        assert float(picks[1]) == 3, "the pick of a request that waited takes time too"
        await shows(running, 0, "queue_size")
