"""Where the blocks of a prompt end: the further from its beginning, the longer they are.

What a block costs is a hash, a place in the index and two looks at it, whatever its length. What it tells is where two
prompts part, which matters as a share of the prompt: blocks that grow with what stands before them tell it to a few
percent, and a prompt of 128,000 tokens has a hundred of them in place of two thousand.
"""

from bisect import bisect_left


class BlockEnds:
    """Ends and lengths of blocks, in units of the first one. A block is `grain` times shorter than what stands before it,
    and one unit long at least: up to twice `grain` units, all of them are.
    """

    __slots__ = ("_grain", "ends", "lengths")

    def __init__(self, grain: int) -> None:
        self._grain = grain
        self.ends: list[int] = []
        self.lengths: list[int] = []

    def count(self, units: int) -> int:
        """Blocks of a prompt that is so long; `ends` and `lengths` reach as far from then on."""
        ends = self.ends
        while not ends or ends[-1] < units:
            before = ends[-1] if ends else 0
            self.lengths.append(max(1, before // self._grain))
            ends.append(before + self.lengths[-1])
        return bisect_left(ends, units) + 1 if units else 0
