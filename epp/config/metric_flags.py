"""The flags that say what a number is called on the workers' pages: the series of vLLM under other names (pure)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from epp.endpoints.worker_metrics import BUILT_IN, WORKER_METRICS
from epp.scraping.engines import ENGINES, Engine, Series

if TYPE_CHECKING:  # --help need not wait for what reads configurations
    from epp.config.picker_config import PickerConfig

METRIC_FLAGS: Final[Mapping[str, str]] = {
    **{metric.flag: metric.name for metric in WORKER_METRICS if metric.flag is not None},
    "lora-info-metric": "lora",
    "cache-info-metric": "cache_info",
}
"""Which of an `Engine`'s numbers each is about."""


def parse_metric(text: str) -> tuple[Series, ...]:
    """`name` or `name{label=value}`; nothing, where the page has no such number. Raises ValueError."""
    return (Series.parse(text),) if text else ()


def with_metrics(config: "PickerConfig", given: Mapping[str, Sequence[Series]]) -> "PickerConfig":
    """The configuration with the numbers of `given`, by flag; raises ValueError where it names metrics itself.

    A worker that says which model server it runs, by its label or its metadata, is read by that one's names.
    """
    if not given:
        return config
    if config.engines != ENGINES or config.defaults.engine is not None:
        flags = " and ".join(f"--{name}" for name in given)
        raise ValueError(
            f"{flags} and the configuration's core-metrics-extractor both say what metrics are called; write them all "
            "as engineConfigs there"
        )
    numbers: dict[str, Any] = {METRIC_FLAGS[name]: tuple(series) for name, series in given.items()}
    others = {**ENGINES[0].others}
    for metric in WORKER_METRICS:
        if metric not in BUILT_IN and metric.name in numbers:
            others[metric] = numbers.pop(metric.name)
    named: Engine = replace(ENGINES[0], **numbers, others=others)
    return replace(
        config, engines=(named, *ENGINES[1:]), defaults=replace(config.defaults, engine=named.name)
    )
