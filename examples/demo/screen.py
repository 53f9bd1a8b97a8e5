"""Shows a live table of the workers, as the picker and the users see them, and prints the summary."""

import asyncio
import statistics
import time
from collections.abc import Iterable
from contextlib import suppress

import aiohttp
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from examples.demo.cluster import DemoCluster, EndpointView
from examples.demo.load import Exchange, LoadGenerator
from examples.demo.scenario import Scenario, ScenarioEvent
from examples.demo.summary import Summary

_REFRESH = 0.25
_WINDOW = 5.0
"""Seconds that the columns share and time to first token (TTFT) look back."""
_COLUMNS = (
    ("worker", 10),
    ("status", 9),
    ("in flight", 9),
    ("waiting", 7),
    ("KV", 5),
    ("share", 5),
    ("TTFT", 7),
)


async def show_progress(console: Console, cluster: DemoCluster, scenario: Scenario) -> None:
    """Until cancelled: a live table on a terminal, elsewhere one line for each event."""
    if not console.is_terminal:
        await _print_lines(console, scenario)
        return
    with Live(console=console, auto_refresh=False) as live:
        while True:
            with suppress(aiohttp.ClientError, TimeoutError):
                table = _table(await cluster.views(), cluster, scenario.load)
                past = [f"  {_event_line(event)}" for event in scenario.events]
                live.update(Group(table, *past, f"▶ {scenario.line}"), refresh=True)
            await asyncio.sleep(_REFRESH)


async def show_until_stopped(
    console: Console, cluster: DemoCluster, load: LoadGenerator, ready: Iterable[str]
) -> None:
    """Until cancelled: a live table on a terminal, elsewhere one line for each change of a worker's status.

    `ready`: the workers whose pids were printed as ready; the user may kill one before the first poll.
    """
    if console.is_terminal:
        await show_progress(console, cluster, Scenario(cluster, load, line="it goes on until Ctrl-C"))
        return
    logged = dict.fromkeys(ready, "ready")
    while True:
        with suppress(aiohttp.ClientError, TimeoutError):
            known = {view.id: view for view in await cluster.views()}
            for name, worker in cluster.workers.items():
                status = _status(known.get(name), alive=worker.alive).partition("]")[2]
                if logged.setdefault(name, status) != status:
                    logged[name] = status
                    console.print(f"{name} {status}")
        await asyncio.sleep(_REFRESH)


async def _print_lines(console: Console, scenario: Scenario) -> None:
    printed = ""
    while True:
        if scenario.line != printed:
            printed = scenario.line
            console.print(f"{len(scenario.load.exchanges):5} requests  {printed}")
        await asyncio.sleep(0.05)


def _table(views: list[EndpointView], cluster: DemoCluster, load: LoadGenerator) -> Table:
    recent = [e for e in load.exchanges if (e.ended or time.monotonic()) > time.monotonic() - _WINDOW]
    served = sum(e.worker is not None for e in recent)
    table = Table(title=cluster.url)
    for heading, width in _COLUMNS:
        table.add_column(heading, width=width, no_wrap=True)
    known = {view.id: view for view in views}
    for name in sorted(cluster.workers):
        mine = [e for e in recent if e.worker == name]
        view = known.get(name)
        figures = _figures(view, mine, served) if view else ()
        table.add_row(name, _status(view, alive=cluster.workers[name].alive), *figures)
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


def _event_line(event: ScenarioEvent) -> str:
    known = "never" if event.seconds_to_notice is None else f"{event.seconds_to_notice * 1e3:.0f} ms"
    return f"{event.worker} {event.what}: the picker knew after {known}"


def print_summary(console: Console, summary: Summary) -> bool:
    """Returns whether every claim held."""
    answered = sum(not e.failure for e in summary.exchanges)
    console.print(f"\n{len(summary.exchanges)} requests, {answered} answered")
    where = "not explained" if summary.unexplained() else "all were streamed by the killed worker"
    for cause, count in summary.failures().items():
        console.print(f"  {count} not ({where}): {' '.join(cause.split())}", markup=False, soft_wrap=True)
    console.print(
        "shares: " + ", ".join(f"{worker} {share:.0%}" for worker, share in summary.shares().items())
    )
    claims = list(summary.claims())
    for claim in claims:
        sentence = f"[green]✓[/] {claim.sentence}" if claim.passed else f"[red]✗ {claim.sentence}"
        console.print(sentence, highlight=False, soft_wrap=True)
    passed = all(claim.passed for claim in claims)
    console.print("[bold green]everything held" if passed else "[bold red]not everything held")
    return passed
