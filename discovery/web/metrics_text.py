"""Writes metrics in Prometheus' text format (pure).

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format. By hand, since discovery is installed
without Prometheus' client; no value of a label needs an escape: they are DNS labels and words of ours.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from discovery.watch_metrics import WatchMetric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def metrics_text(metrics: Iterable[WatchMetric]) -> str:
    return "".join(f"{line}\n" for metric in metrics for line in _lines(metric))


def _lines(metric: WatchMetric) -> Iterator[str]:
    name = f"{metric.name}_total" if metric.kind == "counter" else metric.name
    yield f"# HELP {name} {metric.help}"
    yield f"# TYPE {name} {metric.kind}"
    for values, number in metric.samples:
        labels = ",".join(
            f'{label}="{value}"' for label, value in zip(metric.label_names, values, strict=True)
        )
        yield f"{name}{{{labels}}} {number}"
