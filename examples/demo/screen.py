"""The live table: what the picker knows of each worker, and what its users saw of it."""

import asyncio
import statistics
import time
from collections.abc import Iterable
from contextlib import suppress

import aiohttp
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from examples.demo.load import Exchange, Load
from examples.demo.stage import EndpointView, Stage
from examples.demo.story import Happening, Story
from examples.demo.summary import Summary

_REFRESH = 0.25
_WINDOW = 5.0
"""Seconds of the past that share and time to first token (TTFT) are taken from."""
_COLUMNS = (
    ("worker", 10),
    ("status", 9),
    ("in flight", 9),
    ("waiting", 7),
    ("KV", 5),
    ("share", 5),
    ("TTFT", 7),
)


async def show(console: Console, stage: Stage, story: Story) -> None:
    """Until cancelled: a live table on a terminal, a line per chapter elsewhere."""
    if not console.is_terminal:
        await _print_lines(console, story)
        return
    with Live(console=console, auto_refresh=False) as live:
        while True:
            with suppress(aiohttp.ClientError, TimeoutError):
                table = _table(await stage.views(), stage, story.load)
                past = [f"  {_moment(happening)}" for happening in story.happenings]
                live.update(Group(table, *past, f"▶ {story.line}"), refresh=True)
            await asyncio.sleep(_REFRESH)


async def show_kept(console: Console, stage: Stage, load: Load, ready: Iterable[str]) -> None:
    """Until cancelled: the live table on a terminal, a line for each change of a worker elsewhere.

    `ready`: the workers that were ready when their pids were printed; one may be killed before the first look.
    """
    if console.is_terminal:
        await show(console, stage, Story(stage, load, line="it goes on until Ctrl-C"))
        return
    told = dict.fromkeys(ready, "ready")
    while True:
        with suppress(aiohttp.ClientError, TimeoutError):
            known = {view.id: view for view in await stage.views()}
            for name, worker in stage.workers.items():
                status = _status(known.get(name), alive=worker.alive).partition("]")[2]
                if told.setdefault(name, status) != status:
                    told[name] = status
                    console.print(f"{name} {status}")
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
    table = Table(title=stage.url)
    for heading, width in _COLUMNS:
        table.add_column(heading, width=width, no_wrap=True)
    known = {view.id: view for view in views}
    for name in sorted(stage.workers):
        mine = [e for e in recent if e.worker == name]
        view = known.get(name)
        figures = _figures(view, mine, served) if view else ()
        table.add_row(name, _status(view, alive=stage.workers[name].alive), *figures)
    return table


def _status(view: EndpointView | None, *, alive: bool) -> str:
    if view is not None:
        return "[green]ready" if view.reachable else "[red]silent"
    return "[yellow]not ready" if alive else "[dim]gone"


def _figures(view: EndpointView, mine: list[Exchange], served: int) -> tuple[str, ...]:
    waiting = "?" if view.waiting is None else f"{view.waiting:.0f}"
    usage = "?" if view.kv_usage is None else f"{view.kv_usage:.0%}"
    share = f"{len(mine) / served:.0%}" if served else ""
    return f"{view.inflight:.0f}", waiting, usage, share, _first_token(mine)


def _first_token(exchanges: list[Exchange]) -> str:
    times = [e.first_token - e.started for e in exchanges if e.first_token is not None]
    return f"{statistics.median(times) * 1e3:.0f} ms" if times else ""


def _moment(happening: Happening) -> str:
    known = "never" if happening.known_after is None else f"{happening.known_after * 1e3:.0f} ms"
    return f"{happening.worker} {happening.what}: the picker knew after {known}"


def print_summary(console: Console, summary: Summary) -> bool:
    """Print it; whether every claim held."""
    answered = sum(not e.failure for e in summary.exchanges)
    console.print(f"\n{len(summary.exchanges)} requests, {answered} answered")
    where = "not explained" if summary.unexplained() else "all at the killed worker"
    for cause, count in summary.failures().items():
        console.print(f"  {count} not ({where}): {' '.join(cause.split())}", markup=False, soft_wrap=True)
    console.print(
        "shares: " + ", ".join(f"{worker} {share:.0%}" for worker, share in summary.shares().items())
    )
    claims = list(summary.claims())
    for claim in claims:
        sentence = f"[green]✓[/] {claim.sentence}" if claim.held else f"[red]✗ {claim.sentence}"
        console.print(sentence, highlight=False, soft_wrap=True)
    held = all(claim.held for claim in claims)
    console.print("[bold green]everything held" if held else "[bold red]not everything held")
    return held
