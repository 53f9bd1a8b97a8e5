"""`python -m benchmarks routing`: runs each configuration on each workload; prints medians over a few seeds."""

from typing import Final

from benchmarks.routing.arms import ARMS, chooser
from benchmarks.routing.baselines import BASELINES
from benchmarks.routing.figures import HEADER, Figures, median
from benchmarks.routing.virtual import Run
from benchmarks.routing.workloads import WORKLOADS

SEEDS: Final = 3


async def main() -> None:
    """Prints the table; takes about an hour, most of it for the oracle."""
    print(f"| workload | picked by | {HEADER} |")
    print("|---" * (3 + HEADER.count("|")) + "|")
    for name, workload in WORKLOADS.items():
        for arm_name in (*ARMS, *BASELINES):
            runs = [Figures.of(Run(chooser(arm_name), workload, seed).run()) for seed in range(SEEDS)]
            print(f"| {name} | {arm_name} | {median(runs).row()} |", flush=True)
