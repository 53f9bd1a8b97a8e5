"""Places the prompts of one window: those that are equal, or begin alike, at one endpoint, and the load evenly. Pure.

Rules: llm-d-router, plugins/requestcontrol/dataproducer/burstprefix.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

UNLIMITED = -1

Prompt: TypeAlias = Sequence[int]
"""The hashes of its blocks, each of which covers the prompt up to the end of its block."""


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """`most_each`: requests of one prompt at one endpoint, UNLIMITED: all. `common_blocks`: prompts that differ go together if
    so many of their first blocks are the same, 0: only equal prompts do. `by_blocks`: the load is blocks to compute, not requests.
    """

    most_each: int = UNLIMITED
    common_blocks: int = 0
    by_blocks: bool = False


@dataclass(slots=True)
class _Unit:
    """Requests with one prompt, by their place in the window."""

    prompt: Prompt
    members: list[int] = field(default_factory=list)


def place(prompts: Sequence[Prompt], running: Sequence[float], rules: PlacementRules) -> list[int | None]:
    """For each prompt the row of an endpoint; None: it has nothing in common with others.

    `running`: the running requests of each endpoint, in the order of preference between equal ones.
    """
    units: dict[tuple[int, int], _Unit] = {}
    for at, prompt in enumerate(prompts):
        if prompt:
            units.setdefault((len(prompt), prompt[-1]), _Unit(prompt)).members.append(at)
    groups = [unit for unit in units.values() if len(unit.members) > 1]
    singles = [unit for unit in _alike(units.values(), rules.common_blocks) if len(unit.members) == 1]
    singles.sort(key=lambda unit: unit.members)  # by arrival, as far as they are equally long
    ordered = [*sorted(groups, key=_length, reverse=True), *sorted(singles, key=_length, reverse=True)]
    placed: list[int | None] = [None] * len(prompts)
    if ordered and running:
        total = sum(len(unit.prompt if rules.by_blocks else unit.members) for unit in ordered)
        window = _Window(running, rules, fair_share=-(-total // len(running)))
        for unit in ordered:
            for at, row in zip(unit.members, window.place(unit), strict=True):
                placed[at] = row
    return placed


def _length(unit: _Unit) -> int:
    return len(unit.prompt)


def _alike(units: Iterable[_Unit], common: int) -> list[_Unit]:
    """The units whose first `common` blocks another request has too."""
    families: dict[tuple[int, ...], list[_Unit]] = {}
    for unit in units:
        if common and len(unit.prompt) >= common:
            families.setdefault(tuple(unit.prompt[:common]), []).append(unit)
    return [
        unit for family in families.values() for unit in family if sum(len(one.members) for one in family) > 1
    ]


class _Window:
    """Endpoints as they fill with the requests of the window."""

    def __init__(self, running: Sequence[float], rules: PlacementRules, fair_share: int) -> None:
        self._running = running
        self._rules = rules
        self._fair_share = fair_share
        self._load = [0] * len(running)
        self._holders: dict[int, set[int]] = {}
        """By hash of a block: the rows of the endpoints that will hold it."""

    def place(self, unit: _Unit) -> list[int]:
        """The row of each member; the blocks of the unit are held there from now on."""
        rules, held = self._rules, self._held(unit.prompt)
        here = [0] * len(self._load)
        rows: list[int] = []
        while len(rows) < len(unit.members):
            row = self._most_alike(held, here) if rules.common_blocks and not rows else None
            if row is None:
                row = self._least_loaded(here)
            left = len(unit.members) - len(rows)
            # more members than all endpoints may have: one by one
            count = left if rules.most_each == UNLIMITED else min(left, max(1, rules.most_each - here[row]))
            if not rules.by_blocks:
                self._load[row] += count
            elif not here[row]:
                self._load[row] += len(unit.prompt) - held[row]
            here[row] += count
            rows += [row] * count
        for block in unit.prompt:
            self._holders.setdefault(block, set()).update(rows)
        return rows

    def _held(self, prompt: Prompt) -> list[int]:
        """How many blocks of the prompt each endpoint will hold: it gets whole prompts, so there is no gap."""
        held = [0] * len(self._load)
        for block in prompt:
            holders = self._holders.get(block)
            if not holders:
                break
            for row in holders:
                held[row] += 1
        return held

    def _most_alike(self, held: Sequence[int], here: Sequence[int]) -> int | None:
        """The endpoint that will hold most of the prompt, unless it has its fair share of the window."""
        rows = [
            row
            for row in self._with_room(here)
            if self._load[row] < self._fair_share and held[row] >= self._rules.common_blocks
        ]
        return min(rows, key=lambda row: (-held[row], *self._order(row)), default=None)

    def _least_loaded(self, here: Sequence[int]) -> int:
        return min(self._with_room(here) or range(len(here)), key=self._order)

    def _with_room(self, here: Sequence[int]) -> list[int]:
        most = self._rules.most_each
        return [row for row, count in enumerate(here) if most == UNLIMITED or count < most]

    def _order(self, row: int) -> tuple[int, float, int]:
        return self._load[row], self._running[row], row
