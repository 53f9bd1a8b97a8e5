"""`GET /v1/models` through a real Envoy: answered by the picker, or by a worker where the picker knows nothing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from epp.config.settings import TransportKind
from tests.epp.envoy.picker_stage import picker_behind_envoy
from tests.eventually import eventually
from tests.model_server_process import model_server


@asynccontextmanager
async def models_of(
    running_envoy: Any, *ports: int, **changes: Any
) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    """A client, and the URL of `/v1/models` at the Envoy before a picker of the workers at these ports."""
    stage = picker_behind_envoy(running_envoy, ports, "--access-log=", **changes)
    async with stage as (envoy, _), aiohttp.ClientSession() as client:
        yield client, envoy.url("/v1/models")


@pytest.mark.parametrize("transport", list(TransportKind))
async def test_the_picker_answers_with_the_models_of_all_workers(
    running_envoy: Any, transport: TransportKind, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with (
        model_server("m", "x") as (_, one),
        model_server("m", "y") as (_, other),
        models_of(running_envoy, one, other, transport=transport) as (client, url),
    ):
        await eventually(lambda: caplog.text.count("as its /v1/models says") == 2)
        async with client.get(url) as answer:
            assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
            assert "x-gateway-destination-endpoint-served" not in answer.headers
            page = await answer.json()
        assert page["object"] == "list"
        assert [model["id"] for model in page["data"]] == ["m", "x", "y"]


async def test_turned_off_a_worker_answers(running_envoy: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with (
        model_server("m") as (_, port),
        models_of(running_envoy, port, models_endpoint=False) as (client, url),
    ):
        await eventually(lambda: "as its /v1/models says" in caplog.text)
        async with client.get(url) as answer:
            assert answer.headers["x-gateway-destination-endpoint-served"] == f"127.0.0.1:{port}"
            assert [model["id"] for model in (await answer.json())["data"]] == ["m"]
