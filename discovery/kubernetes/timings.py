"""Every duration of the Kubernetes source in one value, with the clock and the dice that go with them."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds; pairs are bounds of a uniform choice unless said otherwise. The defaults are client-go's where it has
    one: its backoff, its watch timeout, its short-watch rule, its token cache.
    """

    backoff: tuple[float, float] = (0.8, 30.0)
    """First and longest delay of a doubling backoff; each is drawn from its upper half, so that an outage costs no
    more than one request in 20 s and still ends within 30 s."""
    healthy: float = 120.0
    """How long one stream must live before the backoff starts anew."""
    watch: tuple[float, float] = (300.0, 600.0)
    watch_slack: float = 15.0
    """How much longer than it asked for a watch may live before it is taken for dead."""
    relist: tuple[float, float] = (600.0, 1800.0)
    knock: tuple[float, float] = (0.5, 1.0)
    """Between two looks whether a server that could not be connected to can be again, while the backoff runs."""
    away: float = 2.0
    """A server that could not be connected to for this long, and can be again, has started: what it refuses first is
    asked for again after the backoff's first delay."""
    list_deadline: float = 30.0
    short_watch: float = 1.0
    """A watch that ends sooner than this and brought nothing is a failure; one that lives on is contact."""
    rewatch: float = 0.1
    """Longest pause before a watch that ended as it should is opened again."""
    bookmarks: tuple[float, float] = (2.5, 30.0)
    """Silence for this many of the longest interval between bookmarks is a dead stream; the interval counts for no
    less than the second number."""
    connect: float = 5.0
    header_deadline: float = 15.0
    """From the start of a request to the answer's headers, name resolution and TLS included."""
    token_reread: float = 60.0
    credentials_deadline: float = 30.0
    """For an exec plugin of the kubeconfig, or whatever else brings credentials."""
    nobody: float = 30.0
    """How long nobody may be ready before one warning says why."""
    clock: Callable[[], float] = time.monotonic
    uniform: Callable[[float, float], float] = random.uniform
