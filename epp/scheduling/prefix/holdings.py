"""The runs that one endpoint is believed to hold, in the order of their last use. Pure.

Eviction mirrors the worker's. vLLM frees the blocks of a finished request in reverse order, so that the last block of a
prompt, which the fewest other prompts share, is evicted first (docs.vllm.ai, Automatic Prefix Caching: Free, Eviction).
Here too the first run of a chain is always the most recently used one of it, so the run to evict never has a successor
that stays: what remains of a chain is always a prefix.

A run is confirmed once the worker served a request that used it. Until then it is only claimed: it is held for the
requests that use it and whose end is not known, and given up with the last of them. A request that claims a run claims all
runs before it, so a run that is given up has no successor either.
"""

from array import array
from collections.abc import Sequence
from typing import Final

from epp.scheduling.prefix.runs import NO_RUN

HOLD_BYTES: Final = 208
"""Memory of one run at one endpoint: its place in the dict with both numbers, its columns."""
_END: Final = 0
"""Both ends of the order: newer than the newest, older than the oldest."""
NO_CLAIM: Final = 0


class Holdings:
    """`count`: of the blocks; `length`: of the blocks, in units; `capacity`: of the endpoint's cache, in units; `bit`: the
    endpoint's bit in masks.

    `created_at`: the number of the index's claim counter at creation. A claim with a smaller number belongs to earlier
    holdings of the same endpoint, which were forgotten.
    """

    def __init__(self, slot: int, created_at: int) -> None:
        self.slot = slot
        self.created_at = created_at
        self.bit = 1 << slot
        self.capacity = 0
        self.count = 0
        self.length = 0
        self._places: dict[int, int] = {}
        """By run its place in the order: a row of the columns below."""
        self._runs, self._newer, self._older = array("i", [NO_RUN]), array("i", [_END]), array("i", [_END])
        self._free = _END
        """The last place that became free; `_newer` of it is the one before."""
        self._claims: dict[int, set[int]] = {}
        """By place, unless it is confirmed: the requests that claim it."""
        # bounded: by the peers' requests that are not answered
        self._tracked: dict[int, list[int]] = {}
        """By claim that is tracked: the places that it claims."""

    def __len__(self) -> int:
        """The number of runs."""
        return len(self._places)

    def __contains__(self, run: int) -> bool:
        return run in self._places

    def oldest(self) -> int:
        """The run that was not used for longest, or NO_RUN."""
        return int(self._runs[self._newer[_END]])

    def follows(self, run: int, following: int) -> bool:
        """Whether both are confirmed, and nothing was used between the second one and the first one, which is newer."""
        place, other = self._places[run], self._places[following]
        return self._older[place] == other and not (place in self._claims or other in self._claims)

    def claimed_by(self, run: int, claim: int) -> bool:
        return claim in self._claims.get(self._places[run], ())

    def use(self, runs: Sequence[int], claim: int) -> int:
        """Make the runs of a chain the newest, claimed, or with NO_CLAIM confirmed. Returns how many were held before.

        The beginning of the chain becomes the newest of all: it has to outlive what follows it.
        """
        places = list[int]()
        for run in runs:
            place = self._places.get(run, _END)
            if place == _END:  # so nothing behind it is held
                break
            places.append(place)
        claimed = self._tracked.get(claim)
        for at in range(len(runs) - 1, len(places) - 1, -1):
            place = self._put(runs[at], _END)
            if claim != NO_CLAIM:
                self._claims[place] = {claim}
                if claimed is not None:
                    claimed.append(place)
        self._renew(places)
        if self._claims:
            self._claim_again(places, claim, claimed)
        return len(places)

    def _claim_again(self, places: Sequence[int], claim: int, claimed: list[int] | None) -> None:
        """A confirmed block stays so."""
        for place in places:
            if (claims := self._claims.get(place)) is not None:
                if claim == NO_CLAIM:
                    del self._claims[place]
                else:
                    claims.add(claim)
                    if claimed is not None:
                        claimed.append(place)

    def track(self, claim: int) -> None:
        """Note which runs it will claim, so that `confirm_tracked` finds them."""
        self._tracked[claim] = []

    def untrack(self, claim: int) -> None:
        self._tracked.pop(claim, None)

    def confirm_tracked(self, claim: int) -> None:
        """Confirm what is still held of the runs that it claimed."""
        for place in self._tracked.pop(claim, ()):
            # otherwise it is confirmed, or another run has the place
            if (claims := self._claims.get(place)) is not None and claim in claims:
                del self._claims[place]

    def _renew(self, places: Sequence[int]) -> None:
        """Make them the newest, the first one the newest of all; those that stand together move in one step."""
        newer, older = self._newer, self._older
        at = len(places) - 1
        while at >= 0:
            last = first = places[at]
            at -= 1
            after = newer[first]
            while at >= 0 and after == places[at]:
                first = after
                after = newer[first]
                at -= 1
            if after == _END:
                continue
            before = older[last]
            older[after], newer[before] = before, after
            newest = older[_END]
            newer[newest], older[last] = last, newest
            newer[first], older[_END] = _END, first

    def confirm(self, runs: Sequence[int], claim: int) -> bool:
        """Confirm the runs of a chain that this claim was on. False at the first one that is not held, or claimed by others only."""
        for run in runs:
            place = self._places.get(run, _END)
            if place == _END:
                return False
            if (claims := self._claims.get(place)) is not None:
                if claim not in claims:
                    return False
                del self._claims[place]
        return True

    def withdraw(self, run: int, claim: int) -> bool:
        """Returns whether that was the last claim, so that it is held no longer."""
        claims = self._claims[self._places[run]]
        claims.remove(claim)
        return not claims

    def drop(self, run: int) -> None:
        """It is held no longer."""
        place = self._places.pop(run)
        self._unlink(place)
        self._claims.pop(place, None)
        self._newer[place], self._free = self._free, place

    def divide(self, run: int, rest: int) -> None:
        """The run was split: the rest is held too, claimed alike, and just older."""
        place = self._places[run]
        placed = self._put(rest, place)
        if (claims := self._claims.get(place)) is not None:
            self._claims[placed] = set(claims)  # a copy: either part may be confirmed alone
            for claim in claims:
                if (claimed := self._tracked.get(claim)) is not None:
                    claimed.append(placed)

    def _put(self, run: int, newer: int) -> int:
        """Give it a place in the order, just older than that one."""
        newers, olders = self._newer, self._older
        older, place = olders[newer], self._free
        if place == _END:
            place = len(newers)
            self._runs.append(run)
            newers.append(newer)
            olders.append(older)
        else:
            self._free = newers[place]
            self._runs[place], newers[place], olders[place] = run, newer, older
        self._places[run] = olders[newer] = newers[older] = place
        return place

    def _unlink(self, place: int) -> None:
        newer, older = self._newer[place], self._older[place]
        self._older[newer], self._newer[older] = older, newer
