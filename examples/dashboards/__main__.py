"""Runs a simulated pool for a minute under a real Prometheus, and draws each dashboard of `charts/` from its answers."""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from adsum.signals import STOP_SIGNALS, cancel_on
from examples.dashboards.dashboard import DASHBOARDS, Dashboard, read
from examples.dashboards.drawing import Answers, TimeRange, draw
from examples.dashboards.prometheus import SCRAPE_SECONDS, Prometheus, PrometheusError
from examples.dashboards.stage import Stage
from examples.demo.processes import DemoError

_RATE_INTERVAL = "5s"
"""Of rates: four scrapes and a bit, as Grafana chooses it."""
_UNDRAWN, _BEFORE, _AFTER = 6.0, 3.0, 3.0
"""Seconds until rates are known, and seconds that are drawn before the first event and after the last."""
_NOTE = "One minute of a simulated pool. Drawn by `python -m examples.dashboards`, not by Grafana."


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.dashboards", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the events take (60)")
    parser.add_argument(
        "--out", type=Path, default=Path(".build"), metavar="FOLDER", help="for the pictures (%(default)s)"
    )
    options = parser.parse_args()
    try:
        asyncio.run(_run(options.seconds, options.out))
    except (DemoError, PrometheusError) as error:
        print(error, file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    return 0


async def _run(seconds: float, out: Path) -> None:
    cancel_on(*STOP_SIGNALS)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="adsum-demo-") as root:
        async with Stage(Path(root)) as stage:
            await asyncio.sleep(_UNDRAWN)
            start = time.time()
            await asyncio.sleep(_BEFORE)
            await stage.run(seconds)
            await asyncio.sleep(_AFTER)
            span = TimeRange(start, time.time(), SCRAPE_SECONDS)
            for path in DASHBOARDS:
                dashboard = read(path)
                answers = await _answers(dashboard, stage.prometheus, span)
                picture = out / f"dashboard-{path.stem}.svg"
                picture.write_text(draw(dashboard, answers, span, _NOTE))
                print(picture)


async def _answers(dashboard: Dashboard, prometheus: Prometheus, span: TimeRange) -> Answers:
    return {
        target.query: await prometheus.query_range(
            target.asked(_RATE_INTERVAL), span.start, span.end, span.step
        )
        for panel in dashboard.panels
        for target in panel.targets
    }


if __name__ == "__main__":
    sys.exit(main())
