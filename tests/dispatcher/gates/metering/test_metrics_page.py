"""The gate endpoint-scrape, which reads a metrics page."""

import time
from collections.abc import AsyncIterator
from contextlib import suppress
from fractions import Fraction
from typing import Any

import pytest

from dispatcher.gates.building import meter_states
from dispatcher.gates.gate import Outcome
from dispatcher.gates.metering.readers import samples
from dispatcher.gates.parameters import GateSourceError
from tests.dispatcher.gates.gate_tools import HeldSlots, candidate, open_gate
from tests.dispatcher.target_simulator import TargetSimulator
from tests.eventually import eventually


@pytest.fixture
async def target() -> AsyncIterator[TargetSimulator]:
    simulator = TargetSimulator()
    async with simulator.serving():
        yield simulator


def params(target: TargetSimulator, **more: Any) -> dict[str, Any]:
    return {
        "url": f"{target.url}/metrics",
        "metric": "load",
        "interval": "50ms",
        "lag": 0,
        "stale_after": 200,
        **more,
    }


@pytest.mark.parametrize(
    ("page", "more", "budget"),
    [
        ("load 3\n", {"max_count_per_pod": 5}, 0.4),
        ("load 0.75\n", {}, 0.25),
        ("load 7\n", {"max_count_per_pod": 5}, 0.0),
        ("load 3\npods 4\n", {"max_count_per_pod": 5, "pods_metric": "pods"}, 0.85),
        ("load 3\n", {"max_count_per_pod": 5, "pods": 4}, 0.85),
        ("load 3\n", {"max_count_per_pod": 10, "baseline": 0.2}, 0.5),
        ('load{a="1"} 2\nload{a="2"} 3\n', {"max_count_per_pod": 10}, 0.5),
        ('load{a="1"} 2\nload{a="2"} 3\n', {"max_count_per_pod": 10, "labels": {"a": "2"}}, 0.7),
        ('load{a="1"} 0.2\nload{a="2"} 0.3\n', {}, 0.7),
        ("load 2\nwaiting 1\n", {"metric": ["load", "waiting"], "max_count_per_pod": 10}, 0.7),
        ("other 1\n", {"max_count_per_pod": 10, "absent_value": 0}, 1.0),
        ('load 1\npods{r="1"} 2\npods{r="2"} 2\n', {"max_count_per_pod": 5, "pods_metric": "pods"}, 0.9),
    ],
)
async def test_the_budget_of_a_page(
    target: TargetSimulator, page: str, more: dict[str, Any], budget: float
) -> None:
    target.page = page
    async with open_gate("endpoint-scrape", params(target, **more)) as gate:
        await eventually(lambda: meter_states(gate)[0].available)
        assert gate.budget() == pytest.approx(budget)


@pytest.mark.parametrize(
    ("more", "load"),
    [
        ({"max_count_per_pod": 10, "pods": 5, "baseline": "0.1"}, 45.0),
        ({"max_count_per_pod": 10, "pods_metric": "pods", "baseline": "0.2"}, 32.0),
        ({"baseline": "0.2"}, 0.8),
    ],
)
async def test_the_load_at_which_a_gate_closes_is_told(
    target: TargetSimulator, more: dict[str, Any], load: float
) -> None:
    target.page = "load 0.5\npods 4\n"
    async with open_gate("endpoint-scrape", params(target, **more)) as gate:
        await eventually(lambda: meter_states(gate)[0].available)
        assert meter_states(gate)[0].threshold == load
        target.page = f"load {load}\npods 4\n"
        await eventually(lambda: gate.budget() == 0)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("", "the page has no load"),
        ("<html>load 1</html>", "the page has no load"),
        ("load_total 1\n", "the page has no load"),
        ('load{a="1"} 1\n', "the page has no load with the labels {'a': '2'}"),
        ("load NaN\n", "load is NaN, expected a finite number"),
        ("load +Inf\n", "load is +Inf, expected a finite number"),
        ("load -1\n", "load is -1, expected a finite number from 0 on"),
        ("load 5\nload -4.5\n", "load is -4.5, expected a finite number from 0 on"),
        ("load 1e308\n", "load is 1e308, expected a finite number"),
        ("load 1e99\n", "the number read is 1e+99, expected one from 0 to 1000000"),
        ("load 0.5\nload{\n", "a line of load is no sample"),
        ("load 0.5\nload \n", "a line of load is no sample"),
        ("load 0.5\nload 1 2 3\n", "a line of load is no sample"),
        ('load{x="' + "x" * 100_000 + '"} 1\n', "a line of load is no sample"),
        ("load 0\n" * 20_001, "more than 20000 lines begin with load"),
        ("load 1 IN_A_DAY\n", "expected Unix seconds that are not in the future"),
        ("load 1 -9999999999999999999\n", "too old"),
        ("load 1\nload nan\n", "expected a finite number"),
        ("load 1 AN_HOUR_AGO\n", "too old"),
        ("load 1\n" + "#" * 9_000_000, "more than 8388608 bytes"),
    ],
)
async def test_13_a_page_that_cannot_be_read_closes_the_gate(
    target: TargetSimulator, page: str, said: str
) -> None:
    labels = {"labels": {"a": "2"}} if "labels" in said else {}
    target.page = 'load{a="2"} 0.5\n'
    async with open_gate("endpoint-scrape", params(target, **labels)) as gate:
        await eventually(lambda: gate.budget() == 0.5)
        target.page = page.replace("AN_HOUR_AGO", f"{int(time.time() - 3600)}000").replace(
            "IN_A_DAY", f"{int(time.time() + 86400)}000"
        )
        await eventually(lambda: said in meter_states(gate)[0].reason, within=90)
        assert not meter_states(gate)[0].available
        assert gate.budget() == 0
        assert await HeldSlots(gate).admit_all() == 0


async def test_13_status_500_closes_the_gate_and_ready_0_does(target: TargetSimulator) -> None:
    more = {"max_count_per_pod": 10, "pods_metric": "ready"}
    async with open_gate("endpoint-scrape", params(target, **more)) as gate:
        await eventually(lambda: gate.budget() == 1)
        target.ready = 0
        await eventually(lambda: gate.budget() == 0)
        target.ready = 2
        await eventually(lambda: gate.budget() == 1)
        target.status = 500
        await eventually(lambda: gate.budget() == 0)


async def test_10_bytes(target: TargetSimulator) -> None:
    target.page = "saturation 0.3\n"
    more = {"metric": "saturation", "unit": "bytes", "max_concurrency": 1024 * 1024, "baseline": "0.1"}
    async with open_gate("endpoint-scrape", params(target, **more)) as gate:
        await eventually(lambda: meter_states(gate)[0].available)
        slots = HeldSlots(gate)
        assert await slots.ask(candidate(size=600 * 1024)) is None
        assert await slots.ask(candidate(size=100 * 1024)) is not None
        assert await slots.ask(candidate(size=14 * 1024)) is None


async def test_headroom_is_granted_once_a_reading(target: TargetSimulator) -> None:
    target.page, eight_by_eight = "load 60\npods 8\n", {"max_count_per_pod": 8, "pods_metric": "pods"}
    async with open_gate("endpoint-scrape", params(target, interval="30s", **eight_by_eight)) as gate:
        await eventually(lambda: meter_states(gate)[0].available)
        assert await HeldSlots(gate).admit_all(most=10) == 4
        assert gate.budget() == pytest.approx(4 / 64)


async def test_12_after_a_429_a_newer_reading_then_one_probe_then_a_ramp(target: TargetSimulator) -> None:
    async with open_gate(
        "endpoint-scrape", params(target, interval="200ms", timeout="60s", max_count_per_pod=50)
    ) as gate:
        await eventually(lambda: meter_states(gate)[0].available)
        slots = HeldSlots(gate)
        assert await slots.admit_all(most=3) == 3
        target.answering.clear()
        looks = target.looks
        await slots.release_oldest(Outcome.OVERLOADED)
        refusal = await slots.refused()
        assert "no reading is newer" in str(refusal)
        target.answering.set()
        while (refusal := await slots.ask()) is not None:
            await refusal.changed()
        assert target.looks > looks
        assert await slots.admit_all() == 0  # that was the probe
        await slots.release_oldest(Outcome.ACCEPTED)
        await slots.release_oldest(Outcome.ACCEPTED)  # two of those before: they say nothing
        assert await slots.admit_all() == 0
        await slots.release_oldest(Outcome.ACCEPTED)  # the probe
        assert await slots.admit_all() == 2
        await slots.release_oldest(Outcome.ACCEPTED)
        assert await slots.admit_all() == 3  # four at once


def test_samples_of_a_page() -> None:
    page = b'a 1\r\na{x="}\\"",y="2"} 2 1000 # {z="}"} 9\na  {y="2"}\t3\nab 4\n# a 5\n a 10\n'
    assert list(samples(page, "a", {})) == [(Fraction(1), None), (Fraction(2), 1000), (Fraction(3), None)]
    assert list(samples(page, "a", {"x": '}"'})) == [(Fraction(2), 1000)]
    with pytest.raises(GateSourceError, match="expected a finite number"):
        list(samples(b"a x", "a", {}))
    assert list(samples(b'a{x="1\\n\\\\"} 2', "a", {"x": "1\n\\"})) == [(Fraction(2), None)]


@pytest.mark.parametrize("ready", ["-1", "1e7", "1e99"])
async def test_a_number_of_servers_that_cannot_be_so_closes_the_gate(
    target: TargetSimulator, ready: str
) -> None:
    target.page = "load 0\npods 4\n"
    more = {"max_count_per_pod": 5, "pods_metric": "pods"}
    async with open_gate("endpoint-scrape", params(target, **more)) as gate:
        await eventually(lambda: gate.budget() == 1)
        target.page = f"load 0\npods {ready}\n"
        await eventually(lambda: not meter_states(gate)[0].available)
        assert gate.budget() == 0
        assert await HeldSlots(gate).admit_all() == 0


@pytest.mark.parametrize("date", ["Thu, 01 Jan 99999999999999999999 00:00:00 GMT", "0", "Thu, 1", "x" * 4000])
async def test_a_date_that_is_none_is_not_believed(
    target: TargetSimulator, caplog: pytest.LogCaptureFixture, date: str
) -> None:
    target.page, target.date = "load 0.5\n", date
    async with open_gate("endpoint-scrape", params(target)) as gate:
        await eventually(lambda: gate.budget() == 0.5)
        assert "unexpected error" not in caplog.text


@pytest.mark.parametrize("break_", ["\x0b", "\x0c", "\r", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_a_line_ends_at_a_newline_and_nowhere_else(break_: str) -> None:
    """What a client says of itself is in labels of such a page: no character of it begins another line."""
    page = f'requests{{model="x{break_}load 0{break_}y"}} 3\nload 50\n'
    assert list(samples(page.encode(), "load", {})) == [(Fraction(50), None)]


HOSTILE = {
    "labels": "load{%s} 1\n",
    "a label": 'load{x="%s} 1\n',
    "blanks": "load%.0s" + " " * 20_000 + "\n",
    "blanks behind": "load 1%.0s" + " " * 20_000 + "x\n",
    "escaped": "load{%.0s" + 'a="\\"' * 4000 + '"} 1\n',
    "pairs": "load{%.0s" + "a=" * 10_000 + "} 1\n",
    "short lines": "%.0s" + "load\n" * 4000,
}


@pytest.mark.usefixtures("frozen_heap")
@pytest.mark.parametrize("page", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_page_takes_time_in_proportion_to_its_size(page: str) -> None:
    """20 KB are read in less than a millisecond; where each character is looked at again from each other one, in seconds."""
    started = time.thread_time()
    with suppress(GateSourceError):
        list(samples((page % ("a" * 20_000)).encode(), "load", {"x": "1"}))
    assert time.thread_time() - started < 0.25


async def test_a_page_that_nobody_serves_is_told_with_the_systems_reason(target: TargetSimulator) -> None:
    gone = params(target, url="http://127.0.0.1:9/metrics")
    async with open_gate("endpoint-scrape", gone) as gate:
        told = "127.0.0.1:9: cannot be reached: Connection refused"
        await eventually(lambda: [state.reason for state in meter_states(gate)] == [told])


async def test_09_gates_together_count_what_is_sent_once(target: TargetSimulator) -> None:
    target.page = "load 4\nother 0.5\n"
    by_count = {
        "type": "endpoint-scrape",
        "params": params(target, max_count_per_pod=10, allow_unreachable=True),
    }
    by_share = {"type": "endpoint-scrape", "params": params(target, metric="other", max_concurrency=8)}
    async with open_gate("all-of", {"gates": [by_count, by_share]}) as gate:
        await eventually(lambda: all(state.available for state in meter_states(gate)))
        assert len(meter_states(gate)) == 2
        assert gate.budget() == 0.5
        slots = HeldSlots(gate)
        assert await slots.admit_all() == 4  # min(10 x 0.6, 8 x 0.5), not half of it


async def test_gates_together_let_one_large_request_go_alone(target: TargetSimulator) -> None:
    target.page = "load 0.5\n"
    one = {"type": "endpoint-scrape", "params": params(target, max_concurrency=100, unit="bytes")}
    async with open_gate("all-of", {"gates": [one, {"type": "constant"}]}) as gate:
        await eventually(lambda: meter_states(gate)[0].available)
        assert await HeldSlots(gate).admit_all(candidate(size=700)) == 1
