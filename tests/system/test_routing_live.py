"""The comparison of pickers in real time still runs: short runs of ours, behind a real Envoy."""

import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.routing import live, live_results, live_stage
from benchmarks.routing.live_arms import arms
from benchmarks.routing.live_workers import InferenceSim, fork_server
from benchmarks.routing.workloads import WORKLOADS, Event

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


async def test_another_simulator_is_the_worker(tmp_path: Path) -> None:
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
    workload = WORKLOADS[_WORKLOAD].lasting(2.0)
    turns = workload.turns(0)
    outcome = await live_stage.run(InferenceSim(program), arms(None)["least cost"], workload, turns, 4.0)

    assert len(outcome.answers) == len(turns)
    assert not any(one.failed for one in outcome.answers)
    assert {one.worker for one in outcome.answers} <= {f"w{number}" for number in range(workload.workers)}
