"""The flags that name a worker's numbers have their effect."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from epp.config import flags
from epp.config.metric_flags import with_metrics
from epp.config.picker_config import load_config
from epp.scraping.engines import ENGINES, Engine, Series
from tests.epp.local_picker import get, picker
from tests.http_server import http_server

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


@asynccontextmanager
async def worker(page: str) -> AsyncIterator[str]:
    """`host:port` of one that has this metrics page."""

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(text=page)

    async with http_server({"/metrics": metrics}) as port:
        yield f"127.0.0.1:{port}"


async def known(page: str, *arguments: str) -> dict[str, Any]:
    """What the picker with these flags has read off such a page."""
    async with worker(page) as destination:
        plain = picker("--secure-serving=false", "--endpoint", destination, *arguments)
        async with plain as where, asyncio.timeout(90):
            while True:
                _, page = await get(f"http://{where['metrics']}/debug/endpoints")
                found: list[dict[str, Any]] = json.loads(page)["endpoints"]
                if found and found[0]["age"] is not None:
                    return found[0]
                await asyncio.sleep(0.05)


async def test_the_numbers_are_read_under_the_names_given() -> None:
    page = 'mine_queue{kind="a"} 7\nmine_queue{kind="b"} 70\nmine_running 3\nvllm:num_requests_waiting 99\n'
    named = (
        "--total-queued-requests-metric=mine_queue{kind=a}",
        "--total-running-requests-metric=mine_running",
    )
    found = await known(page, *named)
    assert (found["waiting"], found["running"]) == (7, 3)


async def test_what_is_not_named_keeps_the_name_that_vllm_has_for_it() -> None:
    page = "mine_queue 7\nvllm:num_requests_running 3\nvllm:kv_cache_usage_perc 0.5\n"
    found = await known(page, "--total-queued-requests-metric=mine_queue")
    assert (found["waiting"], found["running"], found["kv_usage"]) == (7, 3, 0.5)


async def test_a_page_of_another_model_server_is_still_found_out() -> None:
    found = await known("sglang:num_queue_reqs 4\n", "--total-queued-requests-metric=mine_queue")
    assert found["waiting"] == 4


def test_an_empty_name_is_no_number() -> None:
    settings, _, _ = flags.parse(["--lora-info-metric="])
    config = with_metrics(load_config(None, rng=random.Random(1)), settings.metric_names)
    assert (config.engines[0].name, config.engines[0].lora) == ("vllm", ())
    assert config.engines[0].waiting == ENGINES[0].waiting
    assert config.defaults.engine == "vllm"


@pytest.mark.parametrize(
    "parameters", ["{defaultEngine: sglang}", "{engineConfigs: [{name: x, loraSpec: y}]}"]
)
def test_a_configuration_that_names_them_too_is_refused(parameters: str) -> None:
    text = f"{HEAD}plugins: [{{type: core-metrics-extractor, parameters: {parameters}}}]"
    config = load_config(text, rng=random.Random(1))
    with pytest.raises(
        ValueError,
        match="--lora-info-metric and the configuration's .* move the flags' names to engineConfigs",
    ):
        with_metrics(config, {"lora-info-metric": (Series("x", {}),)})


def test_without_them_nothing_changes() -> None:
    config = load_config(None, rng=random.Random(1))
    assert with_metrics(config, {}) is config


@pytest.mark.parametrize(
    "text", ["a" + " " * 100_000 + "!", "a{" + "b=c," * 100_000, "a{" + '"' * 100_000 + "}"]
)
def test_a_name_is_read_in_linear_time(text: str) -> None:
    """A second for each of them would be what a quadratic pattern takes."""
    with pytest.raises(ValueError, match="is longer than"):
        Engine.of("x", waiting=text)
