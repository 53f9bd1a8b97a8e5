"""Attacks on a picker or a dispatcher that each starts for itself: `python -m benchmarks attacks`.

One file an attack, found by its name: it has a docstring, whose first line says what is attacked how, and
`async def attack(figures: Figures) -> None`. What several need is in `stage/`. Each starts its own victim, on
127.0.0.1 only, and is bounded in count and time. `benchmarks/README.md` has the figures.
"""
