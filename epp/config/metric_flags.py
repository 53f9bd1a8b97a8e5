"""The flags that rename the series that are read from the workers' metrics pages (pure)."""

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
"""The field of `Engine` that each flag sets."""


def parse_metric(text: str) -> tuple[Series, ...]:
    """Parse `name` or `name{label=value}`; an empty text means that the pages have no such series. Raises ValueError."""
    return (Series.parse(text),) if text else ()


def with_metrics(config: "PickerConfig", given: Mapping[str, Sequence[Series]]) -> "PickerConfig":
    """Apply `given`, series by flag, to the default engine; raises ValueError if the configuration names metrics itself.

    A worker that names its model server by a label or in its metadata is still read by that engine's names.
    """
    if not given:
        return config
    if config.engines != ENGINES or config.defaults.engine is not None:
        flags = " and ".join(f"--{name}" for name in given)
        raise ValueError(
            f"{flags} and the configuration's core-metrics-extractor both name metrics; move the flags' names "
            "to engineConfigs there"
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
