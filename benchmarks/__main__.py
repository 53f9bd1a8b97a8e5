"""`python -m benchmarks [NAME ...]`: all of them but the attacks, or those named."""

import argparse
import asyncio
import functools
import platform
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from benchmarks import discovery_scale, dispatching, kubernetes_events, scraping
from benchmarks.attacks.stage import run as attacks
from benchmarks.picking import run as picking
from benchmarks.routing import run as routing

_FIGURES = ("discovery", "kubernetes", "scraping", "picking", "routing", "dispatching")
_NAMES = (*_FIGURES, "attacks")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(_NAMES)}; all but attacks without one"
    )
    plan = picking.Plan()
    group = parser.add_argument_group("picking")
    group.add_argument("--go-picker", type=Path, metavar="FILE", help="measure this Go picker's binary also")
    group.add_argument("--compiled", action="store_true", help="measure the picker compiled by mypyc also")
    group.add_argument("--figures", type=Path, metavar="FILE", help="write what was measured, as JSON")
    group.add_argument("--rounds", type=int, default=plan.rounds, help=f"default: {plan.rounds}")
    group.add_argument(
        "--seconds", type=float, default=plan.seconds, help=f"a turn (default: {plan.seconds})"
    )
    group.add_argument("--picks", type=int, default=plan.picks, help=f"for memory (default: {plan.picks})")
    group = parser.add_argument_group("dispatching")
    group.add_argument(
        "--go-processor", type=Path, metavar="FILE", help="measure this Go processor's binary also"
    )
    group = parser.add_argument_group("attacks")
    group.add_argument(
        "--attack",
        choices=attacks.names(),
        metavar="NAME",
        help=f"one of {', '.join(attacks.names())}; default: all",
    )
    given = parser.parse_args()
    names = given.names or list(_FIGURES)
    if unknown := [name for name in names if name not in _NAMES]:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(_NAMES)}")
    plan = picking.Plan(
        given.go_picker, given.figures, given.rounds, given.seconds, given.picks, given.compiled
    )
    benchmarks: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
        "discovery": discovery_scale.main,
        "kubernetes": kubernetes_events.main,
        "scraping": scraping.main,
        "picking": functools.partial(picking.main, plan),
        "routing": routing.main,
        "dispatching": functools.partial(dispatching.main, binary=given.go_processor),
        "attacks": functools.partial(attacks.main, given.attack),
    }
    print(f"CPython {platform.python_version()}, {platform.machine()}, {platform.system()}")
    for name in names:
        print(f"\n## {name}")
        asyncio.run(benchmarks[name]())
    return 0


if __name__ == "__main__":
    sys.exit(main())
