"""Ports for servers that start later, or that never do."""

import itertools
import os
import random
from typing import Final

from examples.ports import reserve

_FIRST: Final = 10_000
_LAST: Final = (
    32_768  # Linux's ephemeral ports begin here: no connection of another test takes one of ours meanwhile
)
_PARTS: Final = 16

_part = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _PARTS
_size = (_LAST - _FIRST) // _PARTS
_start = random.randrange(_size)
_numbers = itertools.count()


def free_port() -> int:
    """Returns a port that no other call returns, in this process or in the other test processes of the same run."""
    while True:
        port = _FIRST + _part * _size + (_start + next(_numbers)) % _size
        if reserve(port):
            return port
