"""Places the prompts of one window: those that are equal, or begin alike, at one endpoint, and the load evenly. Pure.

Rules: llm-d-router, plugins/requestcontrol/dataproducer/burstprefix.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from epp.endpoints.endpoint import Floats, Mask

UNLIMITED = -1

Prompt: TypeAlias = Sequence[int]
"""The hashes of its blocks, each of which covers the prompt up to the end of its block."""


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """`most_each`: requests of one prompt at one endpoint, UNLIMITED: all. `common_blocks`: prompts that differ go together
    if so many of their first blocks are the same, 0: only equal prompts do. `by_blocks`: the load is blocks to compute, not
    requests.
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
    """The units whose first `common` blocks another unit has too."""
    families: dict[tuple[int, ...], list[_Unit]] = {}
    for unit in units:
        if common and len(unit.prompt) >= common:
            families.setdefault(tuple(unit.prompt[:common]), []).append(unit)
    return [unit for family in families.values() if len(family) > 1 for unit in family]


class _Window:
    """Endpoints as they fill with the requests of the window. They stand in the order of preference, as columns."""

    def __init__(self, running: Sequence[float], rules: PlacementRules, fair_share: int) -> None:
        self._rows: list[int] = np.argsort(np.array(running), kind="stable").tolist()
        self._rules = rules
        self._fair_share = fair_share
        self._load = np.zeros(len(running))
        self._holders: dict[int, int] = {}
        """By hash of a block: the endpoints that will hold it, a bit each."""
        self._reads_blocks = rules.common_blocks > 0 or rules.by_blocks

    def place(self, unit: _Unit) -> list[int]:
        """The row of each member; the blocks of the unit are held there from now on."""
        rules, size = self._rules, len(self._rows)
        held = self._held(unit.prompt) if self._reads_blocks else np.zeros(size)
        here = np.zeros(size)
        rows: list[int] = []
        while len(rows) < len(unit.members):
            room = here < (np.inf if rules.most_each == UNLIMITED else rules.most_each)
            at = self._most_alike(held, room) if rules.common_blocks and not rows else None
            if at is None:
                at = self._least_loaded(room if room.any() else ~room)
            left = len(unit.members) - len(rows)
            # more members than all endpoints may have: one by one
            count = (
                left if rules.most_each == UNLIMITED else min(left, max(1, rules.most_each - int(here[at])))
            )
            if not rules.by_blocks:
                self._load[at] += count
            elif not here[at]:
                self._load[at] += len(unit.prompt) - held[at]
            here[at] += count
            rows += [self._rows[at]] * count
        if self._reads_blocks:
            self._hold(unit.prompt, here > 0)
        return rows

    def _hold(self, prompt: Prompt, at: Mask) -> None:
        bits = int.from_bytes(np.packbits(at, bitorder="little").tobytes(), "little")
        for block in prompt:
            self._holders[block] = self._holders.get(block, 0) | bits

    def _held(self, prompt: Prompt) -> Floats:
        """How many blocks of the prompt each endpoint will hold: it gets whole prompts, so there is no gap."""
        held = np.zeros(len(self._rows))
        before = (1 << len(self._rows)) - 1
        for count, block in enumerate(prompt):
            holders = before & self._holders.get(block, 0)
            if holders != before:
                held[self._mask(before)] = count
                before = holders
            if not holders:
                return held
        held[self._mask(before)] = len(prompt)
        return held

    def _mask(self, bits: int) -> Mask:
        size = len(self._rows)
        packed = np.frombuffer(bits.to_bytes(size // 8 + 1, "little"), dtype=np.uint8)
        return np.unpackbits(packed, count=size, bitorder="little").astype(np.bool_)

    def _most_alike(self, held: Floats, room: Mask) -> int | None:
        """The endpoint that will hold most of the prompt, unless it has its fair share of the window."""
        fits = room & (self._load < self._fair_share) & (held >= self._rules.common_blocks)
        most = held.max(where=fits, initial=-1.0)
        return self._least_loaded(fits & (held == most)) if most >= 0.0 else None

    def _least_loaded(self, among: Mask) -> int:
        return int(np.where(among, self._load, np.inf).argmin())
