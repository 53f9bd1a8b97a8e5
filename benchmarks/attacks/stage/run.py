"""Runs the named attack, or all, one after the other."""

import argparse
import asyncio
import importlib
import pkgutil

from benchmarks import attacks
from benchmarks.attacks.stage.figures import Figures

LIMIT = 60.0
"""Seconds that one attack may take, including the start of its victim."""


def names() -> list[str]:
    """Each file beside `stage` is an attack."""
    return sorted(found.name for found in pkgutil.iter_modules(attacks.__path__) if not found.ispkg)


def add_flags(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--attack", choices=names(), metavar="NAME", help=f"one of {', '.join(names())}; default: all"
    )


async def main(name: str | None = None) -> None:
    """Prints the figures of each attack; raises TimeoutError if one exceeds LIMIT."""
    for one in [name] if name is not None else names():
        module = importlib.import_module(f"{attacks.__name__}.{one}")
        figures = Figures()
        print(f"\n### {one}\n{(module.__doc__ or one).splitlines()[0]}")
        async with asyncio.timeout(LIMIT):
            await module.attack(figures)
        print(figures)
