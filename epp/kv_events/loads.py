"""Reads the loads that SGLang publishes, on change and once a second, and adds up those of one worker's ranks. Pure.

Source: SGLang 0.5.23, `LoadStat`. An array with its name, of which later versions have more elements.
"""

from typing import Final

import msgspec

from epp.endpoints.datastore import PUSHED_COUNTS
from epp.endpoints.load import Load

_MOST_BYTES: Final = 4096


class LoadStat(msgspec.Struct, array_like=True, tag="LoadStat"):
    running: int
    waiting: int
    tokens: int
    """In the KV cache, of `capacity`; 0: unknown."""
    capacity: int = 0


_DECODER: Final = msgspec.msgpack.Decoder(LoadStat)


def read_load(payload: bytes) -> LoadStat | None:
    """None: it is none, or makes no sense."""
    if len(payload) > _MOST_BYTES:
        return None
    try:
        stat = _DECODER.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return stat if min(stat.running, stat.waiting, stat.tokens, stat.capacity) >= 0 else None


class RankLoads:
    """`ranks`: how many sockets the worker has."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        # bounded: by the ranks
        self._latest: dict[int, tuple[float, LoadStat]] = {}

    def hear(self, rank: int, stat: LoadStat, now: float) -> Load | None:
        """The load of the worker; None: not all of its ranks have told theirs lately."""
        self._latest[rank] = now, stat
        stats = [one for at, one in self._latest.values() if now - at < PUSHED_COUNTS]
        if len(stats) < self._ranks:
            return None
        capacity, tokens = sum(one.capacity for one in stats), sum(one.tokens for one in stats)
        return Load(
            waiting=float(sum(one.waiting for one in stats)),
            running=float(sum(one.running for one in stats)),
            kv_usage=min(1.0, tokens / capacity) if all(one.capacity for one in stats) else None,
        )
