"""What the person in front of it sees: a line now and then, and the summary."""

import asyncio
import statistics

from rich.console import Console
from rich.table import Table

from examples.demo_batch.summary import Play
from examples.demo_batch.watching import Watching

_EVERY = 3.0


async def show(console: Console, watching: Watching) -> None:
    """A line every few seconds, until cancelled."""
    while True:
        await asyncio.sleep(_EVERY)
        if watching.samples:
            now = watching.samples[-1]
            console.print(
                f"  {now.load:3} in the pool, {now.interactive:3} of them interactive   budget {now.budget:4.0%}   "
                f"batch: {now.sent} sent, {now.answered} answered",
                highlight=False,
                soft_wrap=True,
            )


def print_play(console: Console, play: Play) -> bool:
    """Print it; whether every claim held."""
    console.print()
    console.print(_first_tokens(play))
    for figure in play.figures():
        console.print(figure, highlight=False, soft_wrap=True)
    claims = list(play.claims())
    for claim in claims:
        sentence = f"[green]✓[/] {claim.sentence}" if claim.held else f"[red]✗ {claim.sentence}"
        console.print(sentence, highlight=False, soft_wrap=True)
    held = all(claim.held for claim in claims)
    console.print("[bold green]everything held" if held else "[bold red]not everything held")
    return held


def _first_tokens(play: Play) -> Table:
    table = Table(title="interactive time to first token")
    for heading in ("", "requests", "median", "95 %", "longest"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, batch in (("without batch", False), ("with batch", True)):
        times = sorted(play.first_tokens(batch=batch))
        if times:
            late = times[min(len(times) - 1, int(len(times) * 0.95))]
            figures = (statistics.median(times), late, times[-1])
            table.add_row(name, str(len(times)), *(f"{figure * 1e3:.0f} ms" for figure in figures))
    return table
