"""What users feel of where requests go: workloads in virtual time, by the picker's own scheduling (`python -m benchmarks routing`)."""

import functools

from benchmarks.routing.arms import ARMS
from benchmarks.routing.figures import Figures
from benchmarks.routing.virtual import Run
from benchmarks.routing.workloads import WORKLOADS, Workload, shared

GO, BEFORE = "the Go picker's weights", "the Go picker's weights, learning at the headers"
SHORT = functools.partial(shared, rate=10.0, seconds=20.0)


def figures(name: str, way: str = "default") -> Figures:
    return Figures.of(Run(ARMS[way], WORKLOADS[name], seed=0).run())


def test_answers_that_are_not_streamed_find_their_prefixes() -> None:
    """Learning at the response headers the prefixes were everywhere, and the median request took five times as long."""
    workload = Workload(SHORT, streamed=False)
    now, before, go = (Figures.of(Run(ARMS[way], workload, seed=0).run()) for way in ("default", BEFORE, GO))
    assert now.hits > before.hits + 0.15
    assert now.e2e_p50 < before.e2e_p50 / 3
    assert now.e2e_p50 <= go.e2e_p50 * 1.05


def test_the_demo_s_weights_do_not_replicate_prefixes() -> None:
    workload = Workload(SHORT, streamed=False)
    demo, go = (Figures.of(Run(ARMS[way], workload, seed=0).run()) for way in ("the demo's weights", GO))
    assert demo.hits >= go.hits - 0.02
    assert demo.e2e_p50 <= go.e2e_p50 * 1.05


def test_one_hot_prefix_herds_no_worse_than_with_the_go_picker() -> None:
    assert figures("60 at once, same").ttft <= figures("60 at once, same", GO).ttft + 0.005 < 3.25


def test_distinct_prompts_at_once_are_spread_as_before() -> None:
    now, before = figures("60 at once, distinct"), figures("60 at once, distinct", BEFORE)
    assert now.largest <= 0.25
    assert now.ttft <= before.ttft * 1.02


def test_none_of_300_at_once_gets_most_where_pages_differ_by_a_hair() -> None:
    now, go = figures("300 at once, near ties"), figures("300 at once, near ties", GO)
    assert go.largest == 1.0
    assert now.largest <= 0.6
    assert now.ttft < go.ttft / 2


def test_a_run_is_the_same_every_time() -> None:
    assert figures("60 at once, distinct") == figures("60 at once, distinct")
