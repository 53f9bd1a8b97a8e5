"""Every duration of the Kubernetes source, in seconds, with its clock and its random numbers."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timings:
    """Pairs are bounds of a uniform choice unless the field says otherwise."""

    # client-go's (tools/cache/reflector.go): 0.8 s, doubled up to 30 s, reset after two minutes
    backoff: tuple[float, float] = (0.8, 30.0)
    """First and longest delay of a doubling backoff. Each delay is drawn from its upper half, so that a long outage
    costs at most one request in 20 s and is noticed to be over within 30 s."""
    backoff_reset: float = 120.0
    """How long one stream must live to reset the backoff."""

    # client-go's: five minutes to twice that, at random, so that restarted API servers get their share of watches back
    watch_timeout: tuple[float, float] = (300.0, 600.0)
    """`timeoutSeconds` of a watch: the server ends the stream after it."""
    watch_slack: float = 15.0
    """A watch that the server has not ended so long after its timeout is dead."""
    relist_interval: tuple[float, float] = (600.0, 1800.0)
    """Between complete lists while nothing is wrong. After etcd was restored from a backup the server accepts a watch
    from a version of its future and stays silent (kubernetes/kubernetes#107457): only a list shows that."""
    short_watch: float = 1.0
    """A watch that ends sooner without an event is a failure (client-go: "very short watch"). One that lives longer
    shows that the API server is in order."""
    rewatch_delay: float = 0.1
    """The longest pause before the next watch when one ended as it should."""

    # The server sends a bookmark each minute (defaultBookmarkFrequency in apiserver's cacher.go), but promises none
    bookmark_silence: tuple[float, float] = (2.5, 30.0)
    """A factor and an interval, not bounds: a stream is dead after `factor` times its longest interval between
    bookmarks without an event. An interval below the second number counts as that number."""

    connect_probe_interval: tuple[float, float] = (0.5, 1.0)
    """Between attempts to connect to a server that refused connections, while the backoff runs."""
    restart_threshold: float = 2.0
    """A server that refused connections for so long has restarted when it accepts them again. It answers with errors
    until its caches are filled; the first of them are followed by the shortest delay."""

    list_deadline: float = 30.0
    connect_timeout: float = 5.0
    header_deadline: float = 15.0
    """From the start of a request to the headers of its response: name resolution and TLS included."""

    token_refresh: float = 60.0
    """How long a token that was read from a file is used: half of the time between kubelet's rotation of a token of
    ten minutes and its expiry (client-go, transport/token_source.go)."""
    credentials_deadline: float = 30.0
    """For an exec plugin of the kubeconfig, or whatever else provides credentials."""

    none_ready_warning: float = 30.0
    """Without a ready instance for so long, one warning in the log says why."""

    clock: Callable[[], float] = time.monotonic
    uniform: Callable[[float, float], float] = random.uniform
