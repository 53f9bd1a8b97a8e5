"""Every duration of the etcd source and of its client, in seconds."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EtcdTimings:
    """`call`: for one member's answer. `probe`: a watch that was silent so long asks its member for a sign of life.

    `backoff`: the first and the longest delay between attempts, doubled each time. `settled`: a watch that lived so long was
    in order, so that the delays begin anew. `recovery`: after an outage, how long workers that renewed their leases in vain
    have to register again: twice their longest delay.
    """

    call: float = 3.0
    probe: float = 2.0
    backoff: tuple[float, float] = (0.1, 3.0)
    settled: float = 10.0
    recovery: float = 6.0

    def delay(self, failures: int) -> float:
        """Before the next attempt after `failures` in a row, from 1: from half of the doubled delay to all of it, so that a
        restarted etcd does not get all its clients at one moment."""
        first, longest = self.backoff
        return random.uniform(0.5, 1.0) * min(longest, first * 2.0 ** min(failures - 1, 16))
