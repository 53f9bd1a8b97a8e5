"""Models vLLM's KV cache: blocks in use, and a prefix cache in the blocks that are not (automatic prefix caching)."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence


class KVCache:
    """`num_blocks` blocks. A block is *private* (being filled by one request), *pinned* (full, shared by the requests
    that use it) or *idle* (full, unused, evicted when room is needed: least recently used first, leaves before roots).

    `removed`: called with each block that no request can reuse any longer.
    """

    def __init__(self, num_blocks: int, removed: Callable[[bytes], None] = lambda digest: None) -> None:
        self._removed = removed
        self._num_blocks = num_blocks
        self._private = 0
        self._pins: dict[bytes, int] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()

    def fork(self) -> "KVCache":
        """A copy that goes on by itself."""
        copy = KVCache(self._num_blocks)
        copy._private, copy._pins, copy._idle = self._private, dict(self._pins), OrderedDict(self._idle)
        return copy

    @property
    def used(self) -> int:
        """Blocks that running requests hold. Idle ones count as free, as vLLM counts them."""
        return self._private + len(self._pins)

    @property
    def usage(self) -> float:
        """The used share, 0 to 1."""
        return self.used / self._num_blocks

    @property
    def cached(self) -> frozenset[bytes]:
        """The digests of the blocks that a request could reuse."""
        return frozenset(self._pins) | frozenset(self._idle)

    def match(self, digests: Iterable[bytes]) -> int:
        """The number of leading blocks that are cached."""
        count = 0
        for digest in digests:
            if digest not in self._pins and digest not in self._idle:
                break
            count += 1
        return count

    def admit(self, digests: Sequence[bytes], private: int) -> bool:
        """Pin these cached blocks and allocate `private` new ones; all or nothing."""
        waking = sum(digest in self._idle for digest in digests)
        if self.used + waking + private > self._num_blocks:
            return False
        for digest in digests:
            self._pin(digest)
        return self.allocate(private)

    def allocate(self, private: int) -> bool:
        """Allocate new blocks, evicting idle ones; all or nothing."""
        if self.used + private > self._num_blocks:
            return False
        self._private += private
        while self.used + len(self._idle) > self._num_blocks:
            self._removed(self._idle.popitem(last=False)[0])
        return True

    def publish(self, digest: bytes) -> bool:
        """Turn a private block that is full into a pinned one, which other requests can share; whether it is a new one."""
        is_new = digest not in self._pins and digest not in self._idle
        self._private -= 1
        self._pin(digest)
        return is_new

    def forget(self) -> None:
        """Drop what no request uses, and tell nobody: as vLLM does when it sleeps."""
        self._idle.clear()

    def release(self, digests: Sequence[bytes], private: int) -> None:
        """Free a request's blocks, the last one first: like vLLM, a leaf is evicted before the prefix that others share."""
        self._private -= private
        for digest in reversed(digests):
            users = self._pins[digest] - 1
            if users:
                self._pins[digest] = users
            else:
                del self._pins[digest]
                self._idle[digest] = None

    def _pin(self, digest: bytes) -> None:
        users = self._pins.get(digest)
        if users is None:
            self._idle.pop(digest, None)
            users = 0
        self._pins[digest] = users + 1
