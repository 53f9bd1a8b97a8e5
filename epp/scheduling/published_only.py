"""What a scorer says it reads, and a test of it for scorers that say they read only what workers publish. Pure.

Whoever writes such a scorer calls `check_published_only` in a test of its own.
"""

from typing import Any, Final

import numpy as np

from epp.endpoints.endpoint import Adapters, Column, Endpoint, EndpointPool, Floats, Mask
from epp.endpoints.worker_metrics import WorkerMetric
from epp.scheduling.plugin import Scorer


class UnpublishedReadError(AssertionError):
    """A scorer that says `published_only` has read what changes without a new state of the pool."""


def is_published_only(scorer: object) -> bool:
    """What the scorer says of itself; raises ValueError where it says nothing."""
    declared: object = getattr(scorer, "published_only", None)
    if not isinstance(declared, bool):
        raise ValueError(  # noqa: TRY004  # the type of an attribute: the configuration reports it
            f"the scorer {type(scorer).__name__} has no published_only; expected True where it reads only what workers "
            "publish, else False"
        )
    return declared


def check_published_only(scorer: Scorer) -> None:
    """Ask the scorer about a pool that shows only what workers publish; raises UnpublishedReadError where it reads more.

    Its own memory and clocks cannot be watched: a scorer that has any must not say `published_only`.
    """
    if is_published_only(scorer):
        request: Any = _NoRequest()
        pool: Any = _PublishedPool(_sample_pool())
        scorer.score(request, pool)


class _NoRequest:
    def __getattr__(self, name: str) -> Any:
        raise _unpublished_read("request", name)


class _PublishedPool:
    """The columns of a pool that stay the same as long as its state does."""

    def __init__(self, pool: EndpointPool) -> None:
        self._pool = pool

    def __len__(self) -> int:
        return len(self._pool)

    def __getattr__(self, name: str) -> Any:
        if name not in _PUBLISHED:
            raise _unpublished_read("pool", name)
        return getattr(self._pool, name)

    def metric(self, metric: WorkerMetric) -> Floats:
        return np.linspace(0.0, metric.maximum, len(self))

    def select(self, mask: Mask) -> "_PublishedPool":
        return _PublishedPool(self._pool.select(mask))


_PUBLISHED: Final = frozenset(
    {"adapters", "endpoints", "kv_usage", "max_lora", "metric", "reachable", "running", "waiting"}
)


def _unpublished_read(of: str, name: str) -> UnpublishedReadError:
    return UnpublishedReadError(
        f"reads {of}.{name}, which changes from request to request; a scorer that says published_only reads only "
        f"{', '.join(f'pool.{one}' for one in sorted(_PUBLISHED))}"
    )


def _sample_pool() -> EndpointPool:
    """Endpoints that differ in all that is published."""
    endpoints = [
        Endpoint(id=f"w{row}", incarnation="a", address=f"10.0.0.{row + 1}", port=8000, metrics_port=8000)
        for row in range(4)
    ]
    numbers: Floats = np.zeros((len(Column), len(endpoints)))
    numbers[Column.WAITING] = [0, 1, 50, 400]
    numbers[Column.RUNNING] = [0, 3, 60, 2000]
    numbers[Column.KV_USAGE] = [0, 0.1, 0.5, 1]
    numbers[Column.MAX_LORA] = [0, 1, 2, 4]
    numbers[Column.REACHABLE] = [1, 1, 1, 0]
    adapters = [Adapters(frozenset({f"a{row}"}), frozenset({f"b{row}"})) for row in range(len(endpoints))]
    return EndpointPool(endpoints, numbers, adapters, 0.0)
