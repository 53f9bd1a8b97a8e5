"""The process itself: `python -m dispatcher`."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from redis.asyncio import Redis

from dispatcher.broker.redis.broker import RedisBroker
from tests.dispatcher.dispatching import configured, document, producer
from tests.dispatcher.processes import ROOT, answered, command, dispatcher, page, sample
from tests.dispatcher.target import Asked, Target, never, ok, once
from tests.eventually import asked_until, eventually
from tests.redis_server import RedisServer


@pytest.fixture
async def broker(redis_url: str) -> AsyncIterator[RedisBroker]:
    async with RedisBroker(redis_url) as broker:
        yield broker


async def test_an_intake_that_cannot_be_read_is_not_ready(
    redis_url: str, target: Target, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    intakes = [{"name": name, "intake": {"key": f"{name}-requests"}} for name in ("first", "second")]
    config.write_text(document(target.url, *intakes, broker=redis_url))
    async with Redis.from_url(redis_url) as client, dispatcher(config) as running:
        for key in ("first-requests", "second-requests"):
            assert await page(f"{running.http}/readyz") == (200, "ready\n")
            await client.rpush(key, "a result")
            said = await _not_ready(running.http, f"'{key}'")
            assert "is no sorted set" in said
            await client.delete(key)
            await _ready(running.http)


async def test_04_sigterm_lets_what_is_on_its_way_end(
    redis_url: str, broker: RedisBroker, target: Target, tmp_path: Path
) -> None:
    answer_now = asyncio.Event()
    target.answer = once(answer_now)
    path = tmp_path / "config.yaml"
    path.write_text(document(target.url, broker=redis_url, concurrency=2))
    async with producer(broker, configured(target.url)) as queue, dispatcher(path) as running:
        first, second, third = await queue.submit_all(["r1", "r2", "r3"], seconds=600)
        await eventually(lambda: len(target.asked) == 2, within=90)
        running.send(signal.SIGTERM)
        await _not_ready(running.http, "draining")
        answer_now.set()
        assert {result.status_code for result in await queue.results([first, second])} == {200}
        assert await running.ended() == 0
        assert (await queue.queue.totals()).pending == 1
        assert target.ids() == ["r1", "r2"], "nothing new is claimed once it drains"
        assert await queue.queue.claim(1, owner="x")
        assert third.id == "r3"


async def _not_ready(http: str, said: str) -> str:
    """What the page says, once it says that."""
    text = ""

    async def is_said() -> bool:
        nonlocal text
        status, text = await page(f"{http}/readyz")
        return status == 503 and said in text

    await eventually(is_said)
    return text


async def _ready(http: str) -> None:
    await asked_until(lambda: page(f"{http}/readyz"), lambda found: found[0] == 200)


async def test_04_after_the_drain_timeout_claims_are_handed_back_at_once(
    redis_url: str, broker: RedisBroker, target: Target, tmp_path: Path
) -> None:
    target.answer = never
    path = tmp_path / "config.yaml"
    path.write_text(document(target.url, broker=redis_url) + "drain_timeout: 200ms\n")
    async with producer(broker, configured(target.url)) as queue, dispatcher(path) as running:
        await queue.submit_all([f"r{number}" for number in range(20)], seconds=600)
        await eventually(lambda: len(target.asked) == 20, within=90)
        running.send(signal.SIGTERM)
        await asked_until(queue.queue.totals, lambda found: not found.claimed)
        assert await running.ended() == 0
        claims = await queue.queue.claim(20, owner="x")
        assert [claim.request.id for claim in claims] == [f"r{number}" for number in range(20)]


async def test_05_an_outage_of_the_broker(tmp_path: Path, target: Target) -> None:
    answer_now = asyncio.Event()
    target.answer = once(answer_now)
    folder = tmp_path / "redis"
    folder.mkdir()
    with RedisServer(folder, durable=True) as server:
        path = tmp_path / "config.yaml"
        path.write_text(document(target.url, broker=server.url, concurrency=5))
        async with dispatcher(path) as running:
            async with RedisBroker(server.url) as broker, producer(broker, configured(target.url)) as queue:
                requests = await queue.submit_all([f"r{number}" for number in range(10)], seconds=600)
                await eventually(lambda: len(target.asked) == 5, within=90)
            server.kill()
            answer_now.set()
            await _not_ready(running.http, "broker")
            assert (await page(f"{running.http}/healthz"))[0] == 200
            status, metrics = await page(f"{running.http}/metrics")
            assert status == 200
            assert sample(metrics, "llm_d_async_async_inflight_requests", queue_id="batch") == 5
            assert sample(metrics, "llm_d_async_async_broker_backlog_source_available", queue_id="batch") == 0
            server.start()
            async with RedisBroker(server.url) as broker, producer(broker, configured(target.url)) as queue:
                results = await queue.results(requests)
                totals = await queue.queue.totals()
                leased = await queue.queue.lease_results(100)
            assert {result.status_code for result in results} == {200}
            assert (totals.succeeded, totals.submitted, totals.pending) == (10, 10, 0)
            assert sorted(one.result.id for one in leased) == sorted(request.id for request in requests)
            assert len(target.asked) == 10, (
                "what was answered during the outage was held, not asked for again"
            )

            await _ready(running.http)


async def test_27_queues_come_and_go_without_a_restart(
    redis_url: str, broker: RedisBroker, target: Target, tmp_path: Path
) -> None:
    answer_now = asyncio.Event()

    async def slow(asked: Asked) -> web.StreamResponse:
        if asked.headers["x-request-id"] == "held":
            await answer_now.wait()
        return await ok(asked)

    target.answer = slow
    path = tmp_path / "config.yaml"
    old, new = {"name": "old"}, {"name": "new", "objective": "fresh"}
    both = configured(target.url, old, new)
    path.write_text(document(target.url, old, broker=redis_url))
    async with (
        producer(broker, both, "old") as old_queue,
        producer(broker, both, "new") as new_queue,
        dispatcher(path) as running,
    ):
        assert sample((await page(f"{running.http}/metrics"))[1], "llm_d_async_async_config_in_force") == 1
        held = await old_queue.submit("held")
        await eventually(lambda: target.ids() == ["held"], within=90)
        path.write_text("queues: nonsense")
        waiting = await new_queue.submit("n1")
        await asked_until(
            lambda: page(f"{running.http}/metrics"),
            lambda found: sample(found[1], "llm_d_async_async_config_in_force") == 0,
        )
        assert (await page(f"{running.http}/readyz"))[0] == 200
        path.write_text(document(target.url, new, broker=redis_url))
        assert (await new_queue.result(waiting)).status_code == 200
        assert target.asked[-1].headers["x-llm-d-inference-objective"] == "fresh"
        left = await old_queue.submit("left")
        answer_now.set()
        assert (await old_queue.result(held)).status_code == 200, (
            "the reload did not touch what was on its way"
        )
        assert (await old_queue.queue.totals()).pending == 1
        assert "left" not in target.ids(), "a removed queue is not pumped"
        path.write_text(document(target.url, old, new, broker=redis_url))
        assert (await old_queue.result(left)).status_code == 200, "and it kept its backlog"


async def test_27_sighup_reads_the_file_again(
    redis_url: str, broker: RedisBroker, target: Target, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(document(target.url, {"name": "old"}, broker=redis_url))
    both = configured(target.url, {"name": "old"}, {"name": "batch"})
    async with producer(broker, both) as queue, dispatcher(path) as running:
        path.write_text(document(target.url, {"name": "batch"}, broker=redis_url))
        running.send(signal.SIGHUP)
        assert (await queue.result(await queue.submit("r1"))).status_code == 200


async def test_28_every_series_is_there_at_zero_and_the_sums_hold(
    redis_url: str, broker: RedisBroker, target: Target, tmp_path: Path
) -> None:
    async def some_fail(asked: Asked) -> web.StreamResponse:
        return web.Response(status=400) if asked.headers["x-request-id"].endswith("3") else await ok(asked)

    target.answer = some_fail
    path = tmp_path / "config.yaml"
    nothing = {"type": "endpoint-scrape", "params": {"url": "http://127.0.0.1:9/metrics", "metric": "x"}}
    blind = {"name": "blind", "gate": nothing}
    path.write_text(document(target.url, {"name": "batch"}, blind, broker=redis_url))
    labels = {"queue_id": "batch", "queue_name": "batch", "pool_name": "pool"}
    names = "request request_retries successful_requests failed_requests shedded_requests exceeded_deadline_requests"
    parts = ("succeeded", "failed", "expired", "cancelled", "dropped")
    async with producer(broker, configured(target.url)) as queue, dispatcher(path) as running:
        _, metrics = await page(f"{running.http}/metrics")
        for name in names.split():
            assert sample(metrics, f"llm_d_async_async_{name}_total", **labels) == 0
        for reason in ("gate_closed", "quota_exhausted", "dropped", "error"):
            assert sample(metrics, "llm_d_async_async_gate_decisions_total", reason=reason, **labels) == 0
        for name in ("submitted", *parts, "retries", "redelivered", "dead_letters"):
            assert sample(metrics, f"llm_d_async_async_broker_{name}_total", **labels) == 0
        assert sample(metrics, "llm_d_async_async_dispatch_budget", **labels) == 1
        assert sample(metrics, "llm_d_async_async_pool_worker_limit", pool_name="pool") == 64
        assert sample(metrics, "llm_d_async_async_gate_metric_source_available", queue_id="blind") == 0
        assert sample(metrics, "llm_d_async_async_dispatch_budget", queue_id="blind") == 0
        assert "# TYPE llm_d_async_async_gate_metric_threshold gauge" in metrics
        requests = await queue.submit_all([f"r{number}" for number in range(40)], seconds=600)
        for done in (False, True):
            if done:
                await queue.results(requests)
            _, metrics = await page(f"{running.http}/metrics")
            ends = [sample(metrics, f"llm_d_async_async_broker_{part}_total", **labels) for part in parts]
            pending = sample(metrics, "llm_d_async_async_broker_backlog", **labels)
            assert (
                sample(metrics, "llm_d_async_async_broker_submitted_total", **labels)
                == sum(ends) + pending
                == 40
            )

        async def all_are_counted() -> bool:
            """A result is there before its dispatcher knows that the broker took it."""
            _, metrics = await page(f"{running.http}/metrics")
            names = (
                "failed_requests_total",
                "successful_requests_total",
                "inference_latency_time_millis_count",
            )
            return [sample(metrics, f"llm_d_async_async_{name}", **labels) for name in names] == [4, 36, 40]

        await eventually(all_are_counted)


async def test_what_a_dry_run_says(
    redis_url: str, broker: RedisBroker, target: Target, tmp_path: Path
) -> None:
    one = {"type": "redis-quota", "params": {"mode": "concurrency", "limit": 2}}
    path = tmp_path / "config.yaml"
    path.write_text(document(target.url, {"name": "batch", "gate": one}, {"name": "idle"}, broker=redis_url))
    async with producer(broker, configured(target.url)) as queue:
        await queue.submit_all(["r1", "r2", "r3"], seconds=600)
        for _ in range(2):  # the first run must not leave anything taken
            code, said, complaint = await answered("--config", str(path), "--dry-run")
            assert (code, complaint) == (0, "")
            assert "queue batch → pool" in said
            assert "budget 1, 3 requests pending" in said
            assert said.count("would send") == 2
            assert "would not send 'r3' of tenant 'default', 30 bytes:" in said
            assert "nothing waits" in said
        assert (await queue.queue.totals()).claimed == 0
    assert target.asked == []


async def test_a_dry_run_fails_where_a_gate_cannot_be_read(
    redis_url: str, target: Target, tmp_path: Path
) -> None:
    read = {"url": "http://127.0.0.1:9/metrics", "metric": "x", "max_count_per_pod": 1}
    path = tmp_path / "config.yaml"
    gate = {"type": "endpoint-scrape", "params": read}
    path.write_text(document(target.url, {"name": "batch", "gate": gate}, {"name": "idle"}, broker=redis_url))
    code, said, complaint = await answered("--config", str(path), "--dry-run")
    assert code == 1
    assert "metric x of http://127.0.0.1:9/metrics: cannot be read: " in said
    assert "queue idle" in said, "the others are looked at all the same"
    assert complaint.startswith("error: a metric cannot be read")
    assert "queue batch: x of http://127.0.0.1:9/metrics: " in complaint
    assert complaint.count("\n") == 1
    assert "Errno" not in complaint


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required: --config; see python -m dispatcher --help"),
        (["--config", "/nowhere.yaml"], "error: /nowhere.yaml: cannot be read: No such file or directory; expected a YAML file"),
        (["status", "--config", "/"], "error: /: cannot be read: Is a directory; expected a YAML file"),
        (["submit", "/nowhere.jsonl", "--broker", "redis://x", "--queue", "q"], "error: /nowhere.jsonl cannot be read: No such file or directory; expected a file"),
        (["status", "--broker", "rediss://127.0.0.1:1?ssl_ca_certs=/nowhere", "--queue", "q"], "error: /nowhere cannot be read: No such file"),
        (["status", "--broker", "redis://127.0.0.1:1?db=geheim", "--queue", "q"], "--broker: db in the URL is no number"),
        (["status", "--broker", "rediss://127.0.0.1:1?ssl_cert_reqs=geheim", "--queue", "q"], "expected none, optional, required"),
        (["status", "--broker", "redis://:pw@[geheim]/0", "--queue", "q"], "--broker: expected redis://"),
        (["dead-letters", "--brokr", "redis://:geheim@x", "--queue", "q", "--config", "f"], "unrecognized arguments: --brokr redis://...@x"),
        (["dead-letters", "--broker", "redis://x", "--queue", "q", "--limit", "-1"], "expected 1 or more"),
        (["serve"], "there is no command 'serve'; there are submit, status, cancel, dead-letters"),
        (["status"], "say where the queue is"),
        (["status", "--broker", "redis://x"], "--broker needs --queue NAME"),
        (["submit", "a.jsonl", "--broker", "redis://x", "--queue", "q", "--deadline", "soon"], "is not a duration"),
        (["status", "--broker", "memory://", "--queue", "q"], "lives in the dispatcher itself"),
        (["status", "--broker", "ftp://x", "--queue", "q"], "expected redis://[USER:PASSWORD@]HOST:PORT/DB"),
        (["status", "--broker", "redis://127.0.0.1:6379/0", "--queue", "a queue"], "cannot name a queue"),
        (["status", "--broker", "redis://127.0.0.1:99999/0", "--queue", "q"], "expected redis://"),
        (["status", "--broker", "redis://:pa/geheim@127.0.0.1/0", "--queue", "q"], "expected redis://"),
    ],
)  # fmt: skip
async def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], said: str) -> None:
    code, out, complaint = await answered(*arguments)
    assert (code, out) == (2, "")
    assert said in complaint
    assert complaint.startswith("error: ")
    assert complaint.count("\n") == 1
    assert "Errno" not in complaint
    assert "geheim" not in complaint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "broker: *geheim",
            "not YAML: found undefined alias ... in line 1, column 9; put a value in quotes if",
        ),
        ("broker: !geheim x", "not YAML: could not determine a constructor for the tag ... in line 1"),
        ("broker: redis://:geheim@r:6379/0\nqueues: a: b", "not YAML: mapping values are not allowed"),
        ('broker: "redis://:geheim@r/0\nx', "not YAML: "),
        ("broker: geheim: b", "not YAML: mapping values are not allowed"),
        (
            "broker: redis://:geheim@[geheim]\ntargets: [{name: a, url: http://a}]",
            "broker: expected redis://",
        ),
        ("broker: \udcff", "it is not UTF-8 text; expected a YAML file"),
        ("since: 2026-02-31", "it has an invalid character, date or number"),
    ],
)
async def test_a_file_that_cannot_be_read_is_not_quoted(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    code, out, complaint = await answered("--config", str(path), "--dry-run")
    assert (code, out) == (2, "")
    assert complaint.startswith(f"error: {path}")
    assert said in complaint
    assert complaint.count("\n") == 1
    assert "geheim" not in complaint


async def test_all_that_is_wrong_with_a_file_is_told_a_line_each(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("broker: redis://:geheim@[geheim]")
    code, out, complaint = await answered("--config", str(path), "--dry-run")
    assert (code, out) == (2, "")
    first, targets, broker = complaint.splitlines()  # what is missing has no line
    assert first == f"error: {path}: 2 problems:"
    assert broker.startswith("  line 1: broker: expected redis://")
    assert targets == "  targets: it is missing; this field has no default"
    assert "geheim" not in complaint


@pytest.mark.parametrize("place", ["target", "gate"])
@pytest.mark.parametrize("arguments", [(), ("--dry-run",)])
async def test_certificates_that_are_not_there(
    redis_url: str, tmp_path: Path, place: str, arguments: tuple[str, ...]
) -> None:
    path = tmp_path / "config.yaml"
    read = {"url": "http://127.0.0.1:9/metrics", "metric": "x", "ca_file": "/nowhere.pem"}
    gate = {"type": "endpoint-scrape", "params": read} if place == "gate" else {"type": "constant"}
    file = yaml.safe_load(document("https://127.0.0.1:9", {"name": "batch", "gate": gate}, broker=redis_url))
    if place == "target":
        file["targets"][0]["ca_file"] = "/nowhere.pem"
    path.write_text(json.dumps(file))
    code, out, complaint = await answered("--config", str(path), *arguments)
    assert (code, out) == (2, "")
    assert complaint.startswith(f"error: {path}: ")
    assert "ca_file: no certificates" in complaint
    assert "No such file or directory; expected a PEM file" in complaint
    assert complaint.count("\n") == 1
    assert "Errno" not in complaint


async def test_a_broker_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(document("http://127.0.0.1:9", broker="redis://:geheim@127.0.0.1:1/0"))
    code, out, complaint = await answered("--config", str(path))
    assert (code, out) == (1, "")
    assert complaint.startswith("error: ")
    assert "does not answer (Connection refused)" in complaint
    assert "geheim" not in complaint
    assert complaint.count("\n") == 1


async def test_a_port_that_is_taken(redis_url: str, target: Target, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    taken = yaml.safe_load(document(target.url, broker=redis_url)) | {"http": {"port": target.port}}
    path.write_text(json.dumps(taken))
    code, _, complaint = await command("--config", str(path))
    assert code == 1
    assert f"error: cannot listen on 127.0.0.1:{target.port}: Address already in use; expected" in complaint
    assert complaint.count("\n") == 1


async def test_a_reader_that_has_seen_enough(redis_url: str) -> None:
    script = f"{sys.executable} -m dispatcher status --broker {redis_url} --queue q --json | true; echo ${{PIPESTATUS[0]}}"
    shell = await asyncio.create_subprocess_exec(
        "bash", "-c", script, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert await shell.communicate() == (b"0\n", b"")


async def test_a_question_does_not_wait_for_the_imports_of_a_dispatcher() -> None:
    script = "import sys, dispatcher.cli.commands, dispatcher.broker.redis.broker, dispatcher.__main__; print(*sys.modules)"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    out, _ = await process.communicate()
    imported = set(out.decode().split())
    assert "dispatcher.broker.redis.queue" in imported
    assert not imported & {"aiohttp", "discovery", "pydantic", "prometheus_client", "watchfiles", "yaml"}
