"""What holds in an overload at any speed of the machine: short runs of the benchmark, behind a real Envoy."""

from benchmarks.overload.arms import WITHOUT, Arm, arms
from benchmarks.overload.load import SOURCES, arrivals, capacity
from benchmarks.overload.results import table, wrong
from benchmarks.overload.run import Plan, overloaded

PLAN = Plan(seconds=2.0, request_ttl=1.0)


async def test_without_flow_control_only_the_sheddable_are_refused() -> None:
    outcome = await overloaded(_arm(WITHOUT), PLAN)

    assert wrong(outcome) == []
    assert {one.source.objective for one in outcome.fates if one.status == 429} <= {"batch"}
    assert len(outcome.fates) == len(arrivals(SOURCES, capacity(SOURCES[-1]), PLAN.seconds, PLAN.seed))
    assert all(source.name in "\n".join(table(outcome)) for source in SOURCES)


def test_ten_times_what_the_pool_serves_comes_evenly() -> None:
    rate = capacity(SOURCES[-1])
    sent = arrivals(SOURCES, rate, 60.0, 0)

    assert abs(len(sent) / (10 * rate * 60.0) - 1.0) < 0.1
    assert sent == sorted(sent, key=lambda one: one.at)
    assert len({one.prompt for one in sent}) == len(sent)


def _arm(name: str) -> Arm:
    return next(arm for arm in arms(None, f"{PLAN.request_ttl:g}s") if arm.name == name)
