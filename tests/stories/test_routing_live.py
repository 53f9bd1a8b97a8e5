"""The comparison of pickers in real time still runs: one short run of ours, behind a real Envoy."""

from pathlib import Path

from benchmarks.routing import live, live_results
from benchmarks.routing.live_arms import arms

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
