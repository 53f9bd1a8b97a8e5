"""Prints the progress of a run, and its summary."""

import asyncio
import statistics

from rich.console import Console
from rich.table import Table

from examples.demo_batch.monitor import PoolMonitor
from examples.demo_batch.summary import BatchRun

_INTERVAL = 3.0


async def show_progress(console: Console, monitor: PoolMonitor) -> None:
    """Print a line every few seconds until cancelled."""
    while True:
        await asyncio.sleep(_INTERVAL)
        if monitor.samples:
            now = monitor.samples[-1]
            console.print(
                f"  {now.load:3} in the pool, {now.interactive:3} of them interactive   budget {now.budget:4.0%}   "
                f"batch: {now.sent} sent, {now.answered} answered",
                highlight=False,
                soft_wrap=True,
            )


def print_run(console: Console, run: BatchRun) -> bool:
    """Returns whether every claim held."""
    console.print()
    console.print(_first_tokens(run))
    for figure in run.figures():
        console.print(figure, highlight=False, soft_wrap=True)
    claims = list(run.claims())
    for claim in claims:
        sentence = f"[green]✓[/] {claim.sentence}" if claim.passed else f"[red]✗ {claim.sentence}"
        console.print(sentence, highlight=False, soft_wrap=True)
    passed = all(claim.passed for claim in claims)
    console.print("[bold green]everything held" if passed else "[bold red]not everything held")
    return passed


def _first_tokens(run: BatchRun) -> Table:
    table = Table(title="interactive time to first token")
    for heading in ("", "requests", "median", "95 %", "longest"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, batch in (("without batch", False), ("with batch", True)):
        times = sorted(run.first_tokens(batch=batch))
        if times:
            late = times[min(len(times) - 1, int(len(times) * 0.95))]
            figures = (statistics.median(times), late, times[-1])
            table.add_row(name, str(len(times)), *(f"{figure * 1e3:.0f} ms" for figure in figures))
    return table
