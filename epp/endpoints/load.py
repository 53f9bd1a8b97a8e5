"""The numbers of one scrape, and whether they are plausible. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from epp.endpoints.endpoint import Adapters
from epp.endpoints.worker_metrics import KV_USAGE, RUNNING, WAITING, WorkerMetric


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The numbers of one scrape; None: not on the page, NaN: malformed."""

    waiting: float | None = None
    running: float | None = None
    kv_usage: float | None = None
    max_lora: float | None = None
    adapters: Adapters | None = None
    others: Mapping[WorkerMetric, float] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        """Whether the page had any of the numbers."""
        return self != _NOTHING

    @property
    def problem(self) -> str:
        """The first implausible value and what was expected; empty if there is none."""
        built_in = ((WAITING, self.waiting), (RUNNING, self.running), (KV_USAGE, self.kv_usage))
        others = ((metric, value) for metric, value in self.others.items() if not metric.optional)
        for metric, value in (*built_in, *others):
            if value is not None and not 0.0 <= value <= metric.maximum:
                return f"{metric.name} is {value:g}, expected a number from 0 to {metric.maximum:.0f}"
        return ""


_NOTHING: Final = Load()
