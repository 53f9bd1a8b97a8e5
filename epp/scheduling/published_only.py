"""Checks that a scorer which declares `published_only` reads only what workers publish. Pure.

A scorer that declares it wrongly gives the scores of one request to another. Authors of scorers call
`check_published_only` in a test.
"""

from typing import Any, Final

import numpy as np

from epp.endpoints.endpoint import Adapters, Column, Endpoint, EndpointPool, Floats, Mask
from epp.endpoints.worker_metrics import WorkerMetric
from epp.scheduling.plugin import Scorer


class UnpublishedReadError(AssertionError):
    """A scorer that declares `published_only` has read something that changes without a new state of the pool."""


def is_published_only(scorer: object) -> bool:
    """The scorer's declaration; raises ValueError if it has none."""
    declared: object = getattr(scorer, "published_only", None)
    if not isinstance(declared, bool):
        raise ValueError(  # noqa: TRY004  # the type of an attribute: the configuration reports it
            f"the scorer {type(scorer).__name__} has no published_only; expected True if it reads only what workers "
            "publish, else False"
        )
    return declared


def check_published_only(scorer: Scorer) -> None:
    """Run the scorer on a pool that has only what workers publish; raises UnpublishedReadError if it reads more.

    Its own memory and clocks cannot be observed: a scorer with any must not declare `published_only`.
    """
    if is_published_only(scorer):
        request: Any = _NoRequest()
        pool: Any = _PublishedPool(_sample_pool())
        scorer.score(request, pool)


class _NoRequest:
    def __getattr__(self, name: str) -> Any:
        raise _unpublished_read("request", name)


class _PublishedPool:
    """The columns of a pool that change only with its state."""

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
    """A pool of endpoints that differ in everything that workers publish."""
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
