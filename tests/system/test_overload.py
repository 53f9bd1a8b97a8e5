"""What holds in an overload at any speed of the machine: short runs of the benchmark, behind a real Envoy."""

from benchmarks.overload.arms import OURS, WITHOUT, Arm, arms
from benchmarks.overload.from_zero import from_zero
from benchmarks.overload.load import SOURCES, arrivals, capacity
from benchmarks.overload.results import table, wrong
from benchmarks.overload.run import Plan, overloaded

PLAN = Plan(seconds=2.5, request_ttl=5.0)
SHORT = Plan(seconds=1.0)
"""Without flow control the workers serve all that is not refused."""


async def test_without_flow_control_only_the_sheddable_are_refused() -> None:
    outcome = await overloaded(_arm(WITHOUT), SHORT)

    assert wrong(outcome) == []
    assert {one.source.objective for one in outcome.fates if one.status == 429} <= {"batch"}
    assert len(outcome.fates) == len(arrivals(SOURCES, capacity(SOURCES[-1]), SHORT.seconds, SHORT.seed))
    assert all(source.name in "\n".join(table(outcome)) for source in SOURCES)


async def test_with_flow_control_the_highest_priority_goes_first_and_nothing_hangs() -> None:
    outcome = await overloaded(_arm(OURS), PLAN)

    assert wrong(outcome) == []
    causes = {(one.source.objective, one.cause) for one in outcome.fates if one.status == 429}
    assert ("batch", "rejected-ttl-expired") in causes
    assert causes <= {
        ("standard", "rejected-ttl-expired"),
        ("batch", "rejected-ttl-expired"),
        ("batch", "rejected-saturated"),
    }
    standard = [one for one in outcome.fates if one.status == 200 and one.source.objective == "standard"]
    assert {one.source.tenant for one in standard} == {"red", "blue"}


async def test_requests_wait_for_the_first_worker_or_until_their_time_is_over() -> None:
    found = await from_zero(_arm(OURS), 40)

    assert found.queued == 40
    assert {one.status for one in found.fates} == {200}
    expired = {(one.status, one.cause, bool(one.retry_after)) for one in found.expired}
    assert expired == {(503, "rejected-no-endpoints", True)}


def test_ten_times_what_the_pool_serves_comes_evenly() -> None:
    rate = capacity(SOURCES[-1])
    sent = arrivals(SOURCES, rate, 60.0, 0)

    assert abs(len(sent) / (10 * rate * 60.0) - 1.0) < 0.1
    assert sent == sorted(sent, key=lambda one: one.at)
    assert len({one.prompt for one in sent}) == len(sent)


def _arm(name: str) -> Arm:
    return next(arm for arm in arms(None, f"{PLAN.request_ttl:g}s") if arm.name == name)
