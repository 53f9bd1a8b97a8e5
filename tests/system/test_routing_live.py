"""The comparison of pickers in real time still runs: short runs of ours, behind a real Envoy."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import zmq.asyncio

from benchmarks.routing import live, live_results, live_stage
from benchmarks.routing.live_arms import PRECISE, arms
from benchmarks.routing.live_workers import InferenceSim, fork_server
from benchmarks.routing.workloads import WORKLOADS, Event
from tests.free_port import free_port

_WORKLOAD = "shared, streamed"


async def test_a_run_is_measured_kept_and_not_repeated(tmp_path: Path) -> None:
    plan = live.Plan(
        workloads=[_WORKLOAD],
        arms=[arms(None)["least cost"]],
        seeds=1,
        speed=4.0,
        seconds=2.0,
        out=tmp_path / "results.jsonl",
        attempts=1,
    )
    (result,) = await live.main(plan)

    assert result.key == (_WORKLOAD, "least cost", 0)
    assert result.figures["failed"] == 0
    assert 0 < result.figures["ttft"] < result.figures["e2e_p50"]
    assert 0 < result.figures["hits"] < 1
    assert sum(result.shares.values()) > 0.99
    assert all(used > 0 for used in result.cores.values())

    assert await live.main(plan) == [result], "it was run again"
    assert "\n".join(live_results.tables([result]))


async def test_workers_come_stand_still_and_go_while_users_ask() -> None:
    events = (
        Event(0.5, 4, "join"),
        Event(0.5, 1, "stop"),
        Event(1.0, 1, "continue"),
        Event(1.0, 0, "kill"),
        Event(1.5, 2, "drain"),
    )
    workload = replace(WORKLOADS[_WORKLOAD].lasting(2.0), events=events)
    turns = workload.turns(0)
    async with fork_server() as server:
        outcome = await live_stage.run(server, arms(None)["least cost"], workload, turns, 4.0)

    whole = [one for one in outcome.answers if not one.failed]
    assert len(outcome.answers) == len(turns)
    assert whole
    assert {one.worker for one in outcome.answers if one.failed} <= {""}
    assert [one.output for one in whole if one.output not in range(50, 101)] == []


async def test_the_turns_of_a_session_follow_each_other_over_two_pickers() -> None:
    workload = WORKLOADS["growing sessions, two pickers"].lasting(0.7)
    turns = workload.turns(2)  # one session of four turns
    async with fork_server() as server:
        outcome = await live_stage.run(server, arms(None)["least cost"], workload, turns, 8.0)

    assert turns
    assert sum(turn.count for turn in turns) == len(outcome.answers)
    assert not any(one.failed for one in outcome.answers)


async def test_what_workers_publish_reaches_every_picker() -> None:
    published = f"tcp://127.0.0.1:{free_port()}"
    async with live_stage.published_events(published, 2) as addresses:
        with (
            zmq.asyncio.Context() as context,
            context.socket(zmq.PUB) as worker,
            context.socket(zmq.SUB) as one,
            context.socket(zmq.SUB) as other,
        ):
            worker.linger = 0
            for address, picker in zip(addresses, (one, other), strict=True):
                picker.bind(address)
                picker.subscribe("kv@")
            worker.connect(published)

            async def publish() -> None:
                while True:
                    await worker.send_multipart([b"kv@w0@m", b"1", b"batch"])
                    await asyncio.sleep(0.05)

            publishing = asyncio.create_task(publish())
            async with asyncio.timeout(20):
                for picker in (one, other):
                    assert await picker.recv_multipart() == [b"kv@w0@m", b"1", b"batch"]
            publishing.cancel()
            await asyncio.wait([publishing])


def simulator_with_its_options(tmp_path: Path) -> Path:
    """A program with the options of llm-d-inference-sim, which no file of this project can install; ours answers in it."""
    program = tmp_path / "llm-d-inference-sim"
    program.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "from examples.simulator.__main__ import main\n"
        "given = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        "assert given['--prefill-time-per-token'] == '50us', given\n"
        "options = ['--port', given['--port'], '--model', given['--model']]\n"
        "sys.exit(main(['--no-register', '--instance-id', os.environ['POD_NAME'], *options]))\n"
    )
    program.chmod(0o755)
    return program


async def test_another_simulator_is_the_worker_and_starts_again(tmp_path: Path) -> None:
    workload = replace(WORKLOADS[_WORKLOAD].lasting(2.0), events=(Event(0.2, 1, "restart"),))
    turns = workload.turns(0)
    server = InferenceSim(simulator_with_its_options(tmp_path))
    outcome = await live_stage.run(server, arms(None)[PRECISE], workload, turns, 4.0)

    assert len(outcome.answers) == len(turns)
    whole = [one for one in outcome.answers if not one.failed]
    assert {one.worker for one in whole} <= {f"w{number}" for number in range(workload.workers)}
    assert len(whole) >= len(turns) - 3, "more than the killed worker can have had"
