"""`python -m benchmarks [NAME ...]`: runs the named benchmarks; without a name, all but the attacks."""

import argparse
import asyncio
import functools
import platform
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from adsum.signals import cancel_on
from benchmarks import (
    decisions,
    disaggregated,
    discovery_scale,
    dispatching,
    event_storm,
    flow_control,
    kubernetes_events,
    kv_events,
    pod_pool,
    pool_states,
    prefill_faults,
    prefill_live,
    prefix_index,
    scraping,
    stopped_worker,
)
from benchmarks.attacks.stage import run as attacks
from benchmarks.failing import run as failing
from benchmarks.overload import run as overload
from benchmarks.picking import run as picking
from benchmarks.routing import run as routing

_DEFAULT = (
    "discovery",
    "kubernetes",
    "pods",
    "events",
    "scraping",
    "stopped",
    "picking",
    "routing",
    "disaggregated",
    "prefill-faults",
    "prefill-live",
    "overload",
    "failing",
    "dispatching",
    "flow-control",
    "decisions",
    "prefixes",
    "kv-events",
    "pool-states",
)
_NAMES = (*_DEFAULT, "attacks")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(_NAMES)}; all but attacks without one"
    )
    picking.add_flags(parser.add_argument_group("picking"))
    routing.add_flags(parser.add_argument_group("routing"))
    disaggregated.add_flags(parser.add_argument_group("disaggregated"))
    overload.add_flags(parser.add_argument_group("overload"))
    failing.add_flags(parser.add_argument_group("failing"))
    dispatching.add_flags(parser.add_argument_group("dispatching"))
    attacks.add_flags(parser.add_argument_group("attacks"))
    flags = parser.parse_args(arguments)
    names = flags.names or list(_DEFAULT)
    if unknown := [name for name in names if name not in _NAMES]:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(_NAMES)}")
    benchmarks = _benchmarks(flags)
    print(f"CPython {platform.python_version()}, {platform.machine()}, {platform.system()}")
    for name in names:
        print(f"\n## {name}")
        try:
            asyncio.run(_cancelled_by_sigterm(benchmarks[name]))
        except asyncio.CancelledError:
            return 128 + signal.SIGTERM
    return 0


async def _cancelled_by_sigterm(benchmark: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """SIGTERM leaves `async with` blocks, which end the programs that a benchmark started."""
    cancel_on(signal.SIGTERM)
    await benchmark()


def _benchmarks(flags: argparse.Namespace) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
    return {
        "discovery": discovery_scale.main,
        "kubernetes": kubernetes_events.main,
        "pods": pod_pool.main,
        "events": event_storm.main,
        "scraping": scraping.main,
        "stopped": stopped_worker.main,
        "picking": functools.partial(picking.main, picking.Plan.from_flags(flags)),
        "routing": functools.partial(routing.main, routing.Plan.from_flags(flags)),
        "disaggregated": functools.partial(disaggregated.main, disaggregated.Plan.from_flags(flags)),
        "prefill-faults": prefill_faults.main,
        "prefill-live": prefill_live.main,
        "overload": functools.partial(overload.main, overload.Plan.from_flags(flags)),
        "failing": functools.partial(failing.main, failing.FailingPlan.from_flags(flags)),
        "dispatching": functools.partial(dispatching.main, binary=flags.go_processor),
        "flow-control": flow_control.main,
        "decisions": decisions.main,
        "prefixes": prefix_index.main,
        "kv-events": kv_events.main,
        "pool-states": pool_states.main,
        "attacks": functools.partial(attacks.main, flags.attack),
    }


if __name__ == "__main__":
    sys.exit(main())
