"""Batch files: parsed, submitted once over several runs, answered line by line."""

import asyncio
import io
import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from dispatcher.broker.contract.message import ErrorCode, Result
from dispatcher.broker.contract.queue import QueueRules
from dispatcher.broker.memory.broker import MemoryBroker
from dispatcher.broker.redis.broker import RedisBroker
from dispatcher.cli import batch as batches
from dispatcher.cli.batch_file import BatchFileError, read_answered, read_lines, result_line
from dispatcher.cli.progress import PlainProgress
from tests.dispatcher.dispatching import configured, dispatching, document, producer
from tests.dispatcher.processes import ROOT, answered, command, dispatcher
from tests.dispatcher.target import Asked, Target, ok
from tests.eventually import eventually


def line(id: str, **fields: Any) -> str:
    return json.dumps(
        {"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": {"n": id}} | fields
    )


def lines_of(path: Path) -> dict[str, Any]:
    return {line["custom_id"]: line for line in map(json.loads, path.read_text().splitlines())}


@pytest.fixture
async def broker(redis_url: str) -> AsyncIterator[RedisBroker]:
    async with RedisBroker(redis_url) as broker:
        yield broker


def test_the_body_of_a_line_is_kept_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "batch.jsonl"
    path.write_text('\n{"custom_id": "a", "body": { "x" : 1.0e0 , "y":"\\u00e9"}, "extra": 1}\n\n')
    [one] = read_lines(path)
    assert (one.custom_id, one.url, one.body) == ("a", "", b'{ "x" : 1.0e0 , "y":"\\u00e9"}')


def test_all_faulty_lines_are_named_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "batch.jsonl"
    path.write_text("\n".join([line("a"), "nonsense", line("b", method="GET"), line("a")]))
    with pytest.raises(BatchFileError) as caught:
        read_lines(path)
    first, *others = str(caught.value).splitlines()
    assert first == "3 faulty lines:"
    assert [text.partition(": ")[0] for text in others] == [f"  {path}:{number}" for number in (2, 3, 4)]
    assert "first in line 1" in others[-1]
    path.write_text("nonsense\n" * 10_000)
    with pytest.raises(BatchFileError, match=r"^10000 faulty lines:\n(?:.*\n){20}  and 9980 more lines$"):
        read_lines(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense", "batch.jsonl:2: JSON is malformed"),
        ("[]", "batch.jsonl:2: Expected `object`"),
        ('{"custom_id": "b"}', "batch.jsonl:2: Object missing required field `body`"),
        ('{"custom_id": 1, "body": {}}', "batch.jsonl:2: Expected `str`"),
        ('{"custom_id": "b", "body": []}', "batch.jsonl:2: Expected `object`"),
        ('{"custom_id": "", "body": {}}', "batch.jsonl:2: the custom_id is empty"),
        ('{"custom_id": "a", "body": {}}', "batch.jsonl:2: the custom_id 'a' appears twice"),
        ('{"custom_id": "b", "body": {}, "method": "GET"}', "batch.jsonl:2: the method is 'GET'"),
        ('{"custom_id": "b", "body": {"a": ' + "[" * 100_000, "batch.jsonl:2: "),
    ],
)
def test_a_line_that_is_no_request(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "batch.jsonl"
    path.write_text(f"{line('a')}\n{text}\n")
    with pytest.raises(BatchFileError) as caught:
        list(read_lines(path))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("result", "response", "error"),
    [
        (Result("i", "t", 200, b'{"a":1}'), {"status_code": 200, "request_id": "t", "body": {"a": 1}}, None),
        (Result("i", "t", 200, b"data: x\n\n"), {"status_code": 200, "request_id": "t", "body": "data: x\n\n"}, None),
        (Result("i", "t", 200, b'{"a":\n1}'), {"status_code": 200, "request_id": "t", "body": {"a": 1}}, None),
        (Result("i", "t", 200, b"\xff"), {"status_code": 200, "request_id": "t", "body": "\ufffd"}, None),
        (
            Result("i", "t", 0, b"{}", ErrorCode.CANCELLED, "why"),
            None,
            {"code": "CANCELLED", "message": "why"},
        ),
    ],
)  # fmt: skip
def test_a_line_of_results(result: Result, response: Any, error: Any) -> None:
    written = result_line("c", result, "5a")
    assert written.count(b"\n") == 1
    assert json.loads(written) == {
        "id": "i",
        "custom_id": "c",
        "response": response,
        "error": error,
        "request_sha256": "5a",
    }


def test_a_results_file_that_a_crash_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert read_answered(path) == {}
    whole = result_line("a", Result("i", "t", 200, b"{}"), "1a") + result_line(
        "b", Result("j", "t", 200, b"{}"), "2b"
    )
    path.write_bytes(whole + whole[:40])
    assert read_answered(path) == {"a": "1a", "b": "2b"}
    assert path.read_bytes() == whole


async def test_a_batch_file_in_and_a_results_file_out(
    broker: RedisBroker, redis_url: str, target: Target, tmp_path: Path
) -> None:
    async def answer(asked: Asked) -> web.StreamResponse:
        return web.Response(status=400, text="bad") if b'"r7"' in asked.body else await ok(asked)

    target.answer = answer
    batch, results, file = tmp_path / "nightly.jsonl", tmp_path / "out.jsonl", tmp_path / "config.yaml"
    batch.write_text("\n".join(line(f"r{number}") for number in range(50)))
    file.write_text(document(target.url, broker=redis_url))
    config = configured(target.url)
    submit = ("submit", str(batch), "--config", str(file), "--results", str(results))
    async with dispatching(broker, config), producer(broker, config) as queue:
        code, out, said = await command(*submit)
        assert (code, out) == (3, ""), said
        assert "50 of 50 submitted" in said
        assert "50 of 50 answered" in said
        assert f"50 answers in {results}: 1 error: 1 x HTTP 400 Bad Request, as custom_id 'r7'\n" in said
        found = lines_of(results)
        assert len(found) == 50
        assert found["r7"]["response"]["status_code"] == 400
        assert found["r8"]["response"]["body"] == {"served": "nightly:r8"}
        code, _, said = await answered(*submit)
        assert (code, len(target.asked)) == (0, 50), said
        assert "50 of them from before" in said
        assert (await queue.queue.totals()).submitted == 50


async def test_a_batch_goes_on_where_it_stopped(
    broker: RedisBroker, redis_url: str, target: Target, tmp_path: Path
) -> None:
    batch, results = tmp_path / "nightly.jsonl", tmp_path / "out.jsonl"
    batch.write_text("\n".join(line(f"r{number}") for number in range(30)))
    config = configured(target.url)
    place = ("--broker", redis_url, "--queue", "batch")
    async with producer(broker, config) as queue:
        code, _, said = await answered("submit", str(batch), *place)
        assert code == 0
        assert "batch 'nightly', queue 'batch': 30 requests submitted, 0 had been submitted before" in said
        code, out, _ = await answered("status", *place, "--json")
        assert (code, json.loads(out)["pending"]) == (0, 30)
        async with dispatching(broker, config):
            code, _, said = await answered("submit", str(batch), *place, "--results", str(results))
        assert code == 0, said
        assert (await queue.queue.totals()).submitted == 30, "the second try submitted nothing anew"
        _, _, said = await answered("submit", str(batch), *place, "--results", str(results))
        assert f"0 requests submitted, 0 had been submitted before, 30 are answered in {results}" in said
    assert len(lines_of(results)) == 30
    assert sorted(target.ids()) == sorted(f"nightly:r{number}" for number in range(30))


async def test_the_same_batch_with_another_body(redis_url: str, tmp_path: Path) -> None:
    place = ("--broker", redis_url, "--queue", "batch")
    batch = tmp_path / "nightly.jsonl"
    batch.write_text(line("a"))
    assert (await answered("submit", str(batch), *place))[0] == 0
    batch.write_text(line("a", body={"n": "other"}))
    code, _, said = await answered("submit", str(batch), *place)
    assert code == 2
    assert "nightly.jsonl:1: custom_id 'a': the idempotency key was used for another request" in said
    assert re.search(r"--batch nightly-\d{4}-\d\d-\d\d, and a results file of its own", said)
    assert (await answered("submit", str(batch), *place, "--batch", "second"))[0] == 0


async def test_old_answers_do_not_stand_for_changed_requests(
    broker: RedisBroker, redis_url: str, target: Target, tmp_path: Path
) -> None:
    batch, results = tmp_path / "nightly.jsonl", tmp_path / "out.jsonl"
    batch.write_text("\n".join(line(id) for id in "abc"))
    config = configured(target.url)
    submit = ("submit", str(batch), "--broker", redis_url, "--queue", "batch", "--results")
    async with dispatching(broker, config):
        assert (await answered(*submit, str(results)))[0] == 0
        before = results.read_bytes()
        for changed in ({"body": {"n": "other"}}, {"url": "/v1/completions"}):
            batch.write_text("\n".join([line("a"), line("b", **changed), line("c"), line("d")]))
            code, _, said = await answered(*submit, str(results))
            assert code == 2, said
            assert "nightly.jsonl:2: " in said
            assert "out.jsonl has an answer to custom_id 'b', but to another path or body" in said
            assert re.search(r"--batch nightly-\d{4}-\d\d-\d\d, and a results file of its own", said)
            assert results.read_bytes() == before
        assert len(target.asked) == 3, "nothing was submitted, line d neither"
        code, _, said = await answered(*submit, str(tmp_path / "new.jsonl"), "--batch", "second")
        assert code == 0, said
    assert lines_of(tmp_path / "new.jsonl")["b"]["response"]["body"] == {"served": "second:b"}


async def test_a_results_file_without_digests_is_believed(redis_url: str, tmp_path: Path) -> None:
    batch, results = tmp_path / "nightly.jsonl", tmp_path / "out.jsonl"
    batch.write_text(line("a"))
    results.write_text('{"id":"nightly:a","custom_id":"a","response":null,"error":null}\n')
    code, _, said = await answered(
        "submit", str(batch), "--broker", redis_url, "--queue", "batch", "--results", str(results)
    )
    assert code == 0
    assert "1 answers in" in said
    assert "1 of them from before" in said


async def test_how_many_had_been_submitted_before(redis_url: str, tmp_path: Path) -> None:
    submit = ("submit", str(tmp_path / "nightly.jsonl"), "--broker", redis_url, "--queue", "batch")
    for ids, said in (("abc", "3 requests submitted, 0 had"), ("abcde", "2 requests submitted, 3 had")):
        (tmp_path / "nightly.jsonl").write_text("\n".join(line(id) for id in ids))
        assert said + " been submitted before" in (await answered(*submit))[2]


@pytest.mark.parametrize("text", ["", "\n \n"])
async def test_a_batch_file_with_nothing_in_it(redis_url: str, tmp_path: Path, text: str) -> None:
    (tmp_path / "empty.jsonl").write_text(text)
    code, _, said = await answered(
        "submit", str(tmp_path / "empty.jsonl"), "--broker", redis_url, "--queue", "batch"
    )
    assert code == 2
    assert "empty.jsonl: there is no request in it" in said


async def test_who_waits_for_answers_is_told_how_many_there_are_and_where_to_look(tmp_path: Path) -> None:
    (tmp_path / "nightly.jsonl").write_text("\n".join(line(id) for id in "abc"))
    said, out = Recorded(), io.BytesIO()
    async with MemoryBroker() as broker, broker.queue("batch", QueueRules()) as queue:
        now = await broker.now_ms()
        order = batches.BatchSettings("nightly", "t", now + 60_000, now)
        lines = list(read_lines(tmp_path / "nightly.jsonl"))
        submitted = await batches.submit_all(queue, lines, order, said)
        collect = batches.collect(queue, submitted, out, said, interval=0.02, hint_after=0.2)
        collecting = asyncio.create_task(collect)
        await eventually(lambda: said.hints)
        assert said.seen[-1] == ("answered", 0, 3)
        looks = len(said.seen)
        await eventually(lambda: len(said.seen) > looks + 20)
        assert said.hints == [batches.NO_ANSWER_HINT], "said once"
        for claim in await queue.claim(3, owner="o"):
            await queue.finish(claim, Result(claim.request.id, claim.request.token, 200, b"{}"))
        assert (await collecting).total == 0
    assert said.seen[-1] == ("answered", 3, 3)


class Recorded:
    """A progress that writes down what it is told."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int]] = []
        self.hints: list[str] = []

    def update(self, what: str, done: int, total: int) -> None:
        self.seen.append((what, done, total))

    def hint(self, text: str) -> None:
        self.hints.append(text)


def test_plain_progress_repeats_itself_seldom() -> None:
    stream, times = io.StringIO(), iter(map(float, [0, *range(1, 64), 65, 66, 67, 70]))
    plain = PlainProgress(stream, lambda: next(times))
    for _ in range(1, 64):
        plain.update("answered", 0, 3)
    assert stream.getvalue() == "0 of 3 answered\n"
    for done in (0, 1, 1, 1):
        plain.update("answered", done, 3)
    assert stream.getvalue() == "0 of 3 answered\n" * 2 + "1 of 3 answered\n"


async def test_status_cancel_and_dead_letters(broker: RedisBroker, redis_url: str) -> None:
    place = ("--broker", redis_url, "--queue", "batch")
    async with producer(broker, configured("http://127.0.0.1:9")) as queue:
        await queue.submit("r1")
        await queue.queue.reject(b"\xffnonsense", "no JSON", code=ErrorCode.INVALID_REQUEST)
    code, out, _ = await answered("status", *place, "r1")
    assert code == 0
    assert "pending" in out
    code, out, error = await answered("cancel", *place, "r1", "r2", "--json")
    assert code == 1
    assert error.startswith("error: the queue 'batch' does not know 'r2'; expected")
    code, _, error = await answered("status", *place, "nope")
    assert code == 1
    assert error.startswith("error: the queue 'batch' does not know 'nope'; expected")
    first, second = map(json.loads, out.splitlines())
    assert first == {"id": "r1", "was": "pending", "cancelled": True}
    assert second == {"id": "r2", "was": "unknown", "cancelled": False}
    code, out, _ = await answered("status", *place, "r1", "--json")
    assert json.loads(out)["error"]["code"] == "CANCELLED"
    code, out, _ = await answered("dead-letters", *place)
    assert code == 0
    assert "no JSON" in out


@pytest.mark.parametrize(
    "text", [b"not ours\n", b"one line, no end", b"{", b'{"custom_id": "a", "body": {}}', b'{"id": 7}']
)
def test_a_file_that_is_no_results_file_is_left_alone(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(text)
    with pytest.raises(BatchFileError, match="no line of a results file"):
        read_answered(path)
    assert path.read_bytes() == text


async def test_the_batch_file_itself_is_no_results_file(redis_url: str, tmp_path: Path) -> None:
    batch, other = tmp_path / "nightly.jsonl", tmp_path / "other.jsonl"
    batch.write_text(line("a"))
    other.symlink_to(batch)
    place = ("--broker", redis_url, "--queue", "batch")
    code, _, said = await answered("submit", str(batch), *place, "--results", str(other))
    assert (code, batch.read_text()) == (2, line("a"))
    assert "--results is the batch file itself" in said


async def test_results_that_cannot_be_written_are_known_before_anything_is_submitted(
    broker: RedisBroker, redis_url: str, tmp_path: Path
) -> None:
    batch = tmp_path / "nightly.jsonl"
    batch.write_text(line("a"))
    place = ("--broker", redis_url, "--queue", "batch")
    code, _, said = await answered("submit", str(batch), *place, "--results", str(tmp_path / "no" / "out"))
    assert code == 2
    assert "out cannot be written: No such file or directory; expected" in said
    assert said.startswith("error: ")
    async with producer(broker, configured("http://127.0.0.1:9")) as queue:
        assert (await queue.queue.totals()).submitted == 0


@pytest.mark.parametrize("gone", ["taken", "go-list"])
async def test_results_that_nobody_will_ever_see_are_not_waited_for(
    broker: RedisBroker, redis_url: str, target: Target, tmp_path: Path, gone: str
) -> None:
    batch, results, file = tmp_path / "nightly.jsonl", tmp_path / "out.jsonl", tmp_path / "config.yaml"
    batch.write_text(line("a"))
    queue_ = {"name": "batch"} | ({"results": "go-list"} if gone == "go-list" else {})
    file.write_text(document(target.url, queue_, broker=redis_url))
    async with producer(broker, configured(target.url)) as queue:
        if gone == "taken":
            await answered("submit", str(batch), "--config", str(file))
            [claim] = await queue.queue.claim(1, owner="o")
            await queue.queue.finish(claim, Result(claim.request.id, claim.request.token, 200, b"{}"))
            await queue.queue.ack_results(await queue.queue.lease_results(1))
    code, _, said = await answered("submit", str(batch), "--config", str(file), "--results", str(results))
    assert code == (2 if gone == "go-list" else 1), said
    assert ("result-list" if gone == "go-list" else "taken by another consumer") in said


async def test_a_disk_that_is_full_is_one_line(redis_url: str, target: Target, tmp_path: Path) -> None:
    batch, results, file = tmp_path / "nightly.jsonl", tmp_path / "out.jsonl", tmp_path / "config.yaml"
    batch.write_text(line("a"))
    file.write_text(document(target.url, broker=redis_url))
    submit = f"-m dispatcher submit {batch} --config {file} --results {results}"
    async with dispatcher(file):
        shell = await asyncio.create_subprocess_exec(
            "bash", "-c", f"ulimit -f 0; exec {sys.executable} {submit}",
            stderr=asyncio.subprocess.PIPE, cwd=ROOT,
        )  # fmt: skip
        _, said = await shell.communicate()
    complaint = said.decode().splitlines()[-1]
    assert shell.returncode == 1
    assert complaint.startswith(f"error: {results} cannot be written any more: File too large; the answers")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"custom_id": "a", "body": {}, "method": "GEHEIM"}', "expected POST"),
        (b'{"custom_id": "a", "body": ["geheim"]}', "Expected `object`, got `array`"),
        (b'{"custom_id": "a", geheim}', "JSON is malformed"),
        (b'\xff{"geheim": 1}', "expected {"),
    ],
)
async def test_a_batch_file_that_is_none_is_one_line(tmp_path: Path, text: bytes, said: str) -> None:
    batch = tmp_path / "nightly.jsonl"
    batch.write_bytes(text)
    code, out, complaint = await answered(
        "submit", str(batch), "--broker", "redis://127.0.0.1:1", "--queue", "q"
    )
    assert (code, out) == (2, "")
    assert complaint.startswith(f"error: {batch}:1: ")
    assert said in complaint
    assert complaint.count("\n") == 1
    assert "geheim" not in complaint
