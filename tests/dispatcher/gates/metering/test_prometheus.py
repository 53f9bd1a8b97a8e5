"""Gates that query Prometheus: valid, malformed and missing answers."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from dispatcher.broker.memory.broker import MemoryLedger, wall_clock_ms
from dispatcher.gates.building import meter_states
from dispatcher.gates.gate import DispatchGate
from dispatcher.gates.metering.meter import Meters
from tests.dispatcher.gates.gate_tools import HeldSlots, open_gate
from tests.eventually import eventually
from tests.http_server import http_server

READY = 'max(llm_d_epp_ready_endpoints{name="pool"}) or max(inference_pool_ready_pods{name="pool"})'


def vector(*values: str, at: float | None = None) -> dict[str, Any]:
    """An instant vector with those values, of the time when it is asked for or of the time `at`."""
    return {"resultType": "vector", "result": [{"metric": {}, "value": [at, value]} for value in values]}


class FakePrometheus:
    """Answers instant queries as Prometheus does. `data`: by query; one that is not there gives an empty vector. `answer` in place of all that, with `status`."""

    def __init__(self) -> None:
        self.data: dict[str, dict[str, Any]] = {}
        self.answer: str | None = None
        self.status = 200
        self.asked: list[str] = []
        self.authorization: list[str] = []

    async def _query(self, request: web.Request) -> web.Response:
        query = request.query["query"]
        self.asked.append(query)
        self.authorization.append(request.headers.get("Authorization", ""))
        body = {"status": "success", "data": _of_now(self.data.get(query, vector()))}
        return web.Response(
            text=self.answer if self.answer is not None else json.dumps(body),
            status=self.status,
            content_type="application/json",
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """The URL of the server, while inside."""
        async with http_server({"/api/v1/query": self._query}) as port:
            yield f"http://127.0.0.1:{port}"


def _of_now(data: dict[str, Any]) -> dict[str, Any]:
    now = time.time()
    if data["resultType"] == "scalar":
        return {**data, "result": [data["result"][0] or now, data["result"][1]]}
    if data["resultType"] != "vector":
        return data
    points = [(one["value"][0] or now, one["value"][1]) for one in data["result"]]
    return {**data, "result": [{"metric": {}, "value": list(point)} for point in points]}


SATURATION = (
    'max(llm_d_epp_flow_control_pool_saturation{inference_pool="pool"})'
    ' or max(inference_extension_flow_control_pool_saturation{inference_pool="pool"})'
)
LOAD = (
    'max(llm_d_epp_average_queue_size{name="pool"} + llm_d_epp_average_running_requests{name="pool"})'
    f' * ({READY}) + (sum(llm_d_epp_flow_control_queue_size{{inference_pool="pool"}}) or vector(0))'
)
QUICK = {"interval": "50ms", "lag": 0, "stale_after": 200}


Serving = tuple[FakePrometheus, dict[str, Any]]


@pytest.fixture
async def prometheus() -> AsyncIterator[Serving]:
    """The server, and the parameters that lead to it."""
    fake = FakePrometheus()
    fake.data[READY] = vector("5")
    async with fake.serving() as url:
        yield fake, {"url": url, "pool": "pool", "max_concurrency": 10, **QUICK}


async def look(gate: DispatchGate) -> bool:
    """Whether there is a reading, once the source was looked at."""
    await eventually(lambda: meter_states(gate)[0].reason != "not read yet")
    return meter_states(gate)[0].available


async def test_10_the_seed_through_prometheus(prometheus: Serving) -> None:
    fake, params = prometheus
    fake.data[LOAD] = vector("15")  # F = 15 / 50 = 0.3
    async with open_gate("prometheus-budget", {**params, "baseline": 0.1}) as gate:
        assert await look(gate)
        assert gate.budget() == pytest.approx(0.6)
        assert await HeldSlots(gate).admit_all() == 30


@pytest.mark.parametrize(
    ("saturation", "threshold", "budget", "slots"),
    [
        ("0.3", "0.8", 0.5, 25),
        ("0.8", "0.8", 0, 0),
        ("1.5", "0.8", 0, 0),
        ("0.05", "0.8", 0.75, 37),
        ("0.99", 1, 0.01, 1),
    ],
)
async def test_saturation(
    prometheus: Serving, saturation: str, threshold: Any, budget: float, slots: int
) -> None:
    fake, params = prometheus
    fake.data[SATURATION] = vector(saturation)
    async with open_gate("prometheus-saturation", {**params, "threshold": threshold}) as gate:
        assert await look(gate)
        assert gate.budget() == pytest.approx(budget)
        assert meter_states(gate)[0].threshold == float(threshold)
        assert await HeldSlots(gate).admit_all() == slots


async def test_a_query_gives_the_budget_itself(prometheus: Serving) -> None:
    fake, params = prometheus
    fake.data["free"] = {"resultType": "scalar", "result": [None, "0.1"]}
    fake.data["pods"] = vector("3")
    async with open_gate("prometheus-query", {**params, "query": "free", "pods_query": "pods"}) as gate:
        assert await look(gate)
        assert meter_states(gate)[0].threshold == 0
        assert await HeldSlots(gate).admit_all() == 3


async def test_the_first_source_with_a_sample_counts(prometheus: Serving) -> None:
    fake, params = prometheus
    fake.data['sum(vllm:num_requests_running{inference_pool="pool"})'] = vector("47")
    async with open_gate("prometheus-budget", {**params, "baseline": 0}) as gate:
        assert await look(gate)
        assert await HeldSlots(gate).admit_all() == 3


async def test_a_ratio_that_prometheus_rounded_is_the_ratio(prometheus: Serving) -> None:
    fake, params = prometheus
    fake.data["free"] = vector(repr(1 - 0.9))  # 0.09999999999999998
    async with open_gate("prometheus-query", {**params, "query": "free"}) as gate:
        assert await look(gate)
        assert await HeldSlots(gate).admit_all() == 5


GOOD = '{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[%f,"0.5"]}]}}'
MATRIX = '{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"1"]]}]}}'


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (500, "", "status 500"),
        (401, "", "status 401"),
        (302, "", "status 302"),
        (200, "", "not an answer of Prometheus"),
        (200, "<html>", "not an answer of Prometheus"),
        (200, "[]", "not an answer of Prometheus"),
        (200, "null", "not an answer of Prometheus"),
        (200, '{"status":"error","error":"too many samples"}', "too many samples"),
        (200, '{"status":"success","data":{"resultType":"vector","result":[]}}', "has no sample"),
        (
            200,
            '{"status":"success","data":{"resultType":"vector","result":[{}]}}',
            "not an answer of Prometheus",
        ),
        (200, MATRIX, "expected an instant vector"),
        (200, GOOD.replace("0.5", "NaN") % time.time(), "expected a finite number"),
        (200, GOOD.replace("0.5", "+Inf") % time.time(), "expected a finite number"),
        (200, GOOD.replace('"0.5"', "0.5") % time.time(), "expected a finite number"),
        (
            200,
            GOOD.replace("}]", '},{"metric":{},"value":[1,"0.5"]}]', 1) % time.time(),
            "2 samples, expected one",
        ),
        (200, GOOD % (time.time() - 3600), "too old"),
        (200, GOOD.replace("%f", "NaN"), "expected Unix seconds that are not in the future"),
        (200, GOOD.replace("%f", "Infinity"), "expected Unix seconds that are not in the future"),
        (200, GOOD.replace("%f", "-Infinity"), "expected Unix seconds that are not in the future"),
        (200, GOOD.replace("%f", "9" * 400), "not an answer of Prometheus"),
        (200, GOOD % (time.time() + 86400), "expected Unix seconds that are not in the future"),
        (200, "[" * 200_000, "not an answer of Prometheus"),
        (200, '{"status":"success","data":[]}', "not an answer of Prometheus"),
        (
            200,
            '{"status":"success","data":{"resultType":"vector","result":5}}',
            "not an answer of Prometheus",
        ),
    ],
)
async def test_13_what_cannot_be_read_closes_the_gate(
    prometheus: Serving, status: int, answer: str, said: str
) -> None:
    fake, params = prometheus
    fake.data["free"] = vector("0.5")
    async with open_gate("prometheus-query", {**params, "query": "free"}) as gate:
        slots = HeldSlots(gate)
        await eventually(lambda: gate.budget() == 0.5)
        fake.status, fake.answer = status, answer
        await eventually(lambda: said in meter_states(gate)[0].reason, within=90)
        assert not meter_states(gate)[0].available
        assert gate.budget() == 0
        refusal = await slots.refused()
        assert "free cannot be read" in str(refusal)
        fake.status, fake.answer, fake.data["free"] = 200, None, vector("0.4")
        await asyncio.wait_for(refusal.changed(), 90)
        await eventually(lambda: gate.budget() == 0.4, within=90)


@pytest.mark.parametrize("value", ["-0.1", "1.1"])
async def test_13_a_budget_out_of_range_closes_the_gate(prometheus: Serving, value: str) -> None:
    fake, params = prometheus
    fake.data["free"] = vector(value)
    async with open_gate("prometheus-query", {**params, "query": "free"}) as gate:
        assert await look(gate)
        assert gate.budget() == 0
        assert await HeldSlots(gate).admit_all() == 0


@pytest.mark.parametrize("value", ["-0.1", "-1e99", "1e99", "NaN", "1e308"])
async def test_a_saturation_or_a_load_that_makes_no_sense_is_not_known(
    prometheus: Serving, value: str
) -> None:
    fake, params = prometheus
    fake.data[SATURATION], fake.data[LOAD] = vector(value), vector(value)
    for kind in ("prometheus-saturation", "prometheus-budget"):
        async with open_gate(kind, params) as gate:
            assert not await look(gate)
            assert "expected" in meter_states(gate)[0].reason
            assert await HeldSlots(gate).admit_all() == 0


@pytest.mark.parametrize("ready", [(), ("0",), ("-1",), ("NaN",), ("1e7",), ("1e99",)])
async def test_13_no_ready_servers_close_the_gate(prometheus: Serving, ready: tuple[str, ...]) -> None:
    fake, params = prometheus
    fake.data["free"], fake.data[READY] = vector("1"), vector(*ready)
    async with open_gate("prometheus-query", {**params, "query": "free"}) as gate:
        await look(gate)
        assert gate.budget() == 0
        assert await HeldSlots(gate).admit_all() == 0


async def test_13_nobody_listens_and_nobody_answers() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        params = {"url": url, "query": "free", "pods": 1, "timeout": "100ms", **QUICK}
        async with open_gate("prometheus-query", params) as gate:
            assert not await look(gate)
            await eventually(lambda: "onnect" in meter_states(gate)[0].reason)
            silent.listen()
            await eventually(lambda: meter_states(gate)[0].reason == "no answer within 0.1 s")
            assert gate.budget() == 0


async def test_13_tls_that_does_not_hold_closes_the_gate(prometheus: Serving) -> None:
    _, params = prometheus
    params = {**params, "url": params["url"].replace("http://", "https://"), "query": "free"}
    async with open_gate("prometheus-query", params) as gate:
        assert not await look(gate)
        assert gate.budget() == 0


async def test_13_only_an_explicit_fallback_opens_and_then_all_that_runs_counts(prometheus: Serving) -> None:
    fake, params = prometheus
    fake.status = 500
    async with open_gate("prometheus-query", {**params, "query": "free", "fallback": "0.5"}) as gate:
        assert not await look(gate)
        assert gate.budget() == 0.5
        slots = HeldSlots(gate)
        assert await slots.admit_all() == 5  # one server's worth: how many there are is not known
        asked = len(fake.asked)
        await eventually(lambda: len(fake.asked) > asked + 2)
        assert await slots.admit_all() == 0  # no new headroom by time alone


async def test_a_token_is_read_anew_and_never_shown(prometheus: Serving, tmp_path: Path) -> None:
    fake, params = prometheus
    fake.data["free"] = vector("0.5")
    token = tmp_path / "token"
    token.write_text("secret-1\n")
    params = {**params, "query": "free", "bearer_token_file": str(token)}
    async with open_gate("prometheus-query", params) as gate:
        await eventually(lambda: "Bearer secret-1" in fake.authorization)
        token.write_text("secret-2\n")
        await eventually(lambda: "Bearer secret-2" in fake.authorization)
        token.unlink()
        await eventually(lambda: gate.budget() == 0)
        assert "secret-" not in meter_states(gate)[0].reason


async def test_gates_with_the_same_source_share_one_meter(prometheus: Serving) -> None:
    fake, params = prometheus
    fake.data["free"] = vector("0.5")
    params = {**params, "query": "free", "interval": "1h"}
    ledger = MemoryLedger(wall_clock_ms)
    async with Meters() as meters:
        async with open_gate("prometheus-query", params, ledger=ledger, meters=meters) as one:
            async with open_gate("prometheus-query", params, ledger=ledger, meters=meters) as other:
                assert await look(one)
                assert await look(other)
                assert fake.asked == ["free", READY]
                assert await HeldSlots(one).admit_all(most=15) == 15
                assert await HeldSlots(other).admit_all() == 10
            assert one.budget() == 0.5  # still read for the one that is left
            fake.asked.clear()
        async with open_gate("prometheus-query", params, meters=meters) as again:
            assert await look(again)
            assert fake.asked == ["free", READY]
