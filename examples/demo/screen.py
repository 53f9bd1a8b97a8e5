"""The live table: what the picker knows of each worker, and what its users saw of it."""

import asyncio
import statistics
import time
from contextlib import suppress

import aiohttp
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from examples.demo.load import Exchange, Load
from examples.demo.stage import EndpointView, Stage
from examples.demo.story import Story
from examples.demo.summary import Summary

_REFRESH = 0.25
_WINDOW = 5.0


async def show(console: Console, stage: Stage, story: Story) -> None:
    """Until cancelled: a live table on a terminal, a line per chapter elsewhere."""
    if not console.is_terminal:
        await _print_lines(console, story)
        return
    with Live(console=console, auto_refresh=False) as live:
        while True:
            with suppress(aiohttp.ClientError, TimeoutError):
                live.update(
                    Group(_table(await stage.views(), stage, story.load), f"▶ {story.line}"), refresh=True
                )
            await asyncio.sleep(_REFRESH)


async def _print_lines(console: Console, story: Story) -> None:
    said = ""
    while True:
        if story.line != said:
            said = story.line
            console.print(f"{len(story.load.exchanges):5} requests  {said}")
        await asyncio.sleep(0.05)


def _table(views: list[EndpointView], stage: Stage, load: Load) -> Table:
    recent = [e for e in load.exchanges if (e.ended or time.monotonic()) > time.monotonic() - _WINDOW]
    served = sum(e.worker is not None for e in recent)
    table = Table(
        "worker",
        "status",
        "in flight",
        "waiting",
        "KV cache",
        "share",
        "time to first token",
        title=stage.url,
    )
    known = {view.id: view for view in views}
    for name, process in stage.workers.items():
        mine = [e for e in recent if e.worker == name]
        view = known.get(name)
        status = _status(view, alive=process.alive)
        figures = _figures(view) if view else ("", "", "")
        share = f"{len(mine) / served:.0%}" if served else ""
        table.add_row(name, status, *figures, share, _first_token(mine))
    return table


def _status(view: EndpointView | None, *, alive: bool) -> str:
    if view is not None:
        return "[green]ready" if view.reachable else "[red]does not answer"
    return "[yellow]out of rotation" if alive else "[dim]gone"


def _figures(view: EndpointView) -> tuple[str, str, str]:
    waiting = "?" if view.waiting is None else f"{view.waiting:.0f}"
    usage = "?" if view.kv_usage is None else f"{view.kv_usage:.0%}"
    return f"{view.inflight:.0f}", waiting, usage


def _first_token(exchanges: list[Exchange]) -> str:
    times = [e.first_token - e.started for e in exchanges if e.first_token is not None]
    return f"{statistics.median(times) * 1e3:.0f} ms" if times else ""


def print_summary(console: Console, summary: Summary) -> bool:
    """Print it; whether every claim held."""
    answered = sum(not e.failure for e in summary.exchanges)
    console.print(f"\n{len(summary.exchanges)} requests, {answered} answered")
    for cause, count in summary.failures().items():
        console.print(f"  {count} not: {cause}", markup=False)
    console.print(
        "shares: " + ", ".join(f"{worker} {share:.0%}" for worker, share in summary.shares().items())
    )
    claims = list(summary.claims())
    for claim in claims:
        console.print(
            f"[green]✓[/] {claim.sentence}" if claim.held else f"[red]✗ {claim.sentence}", highlight=False
        )
    return all(claim.held for claim in claims)
