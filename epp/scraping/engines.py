"""Names the series of a metrics page that are read, for each kind of model server.

The names are the Go picker's, and those of older vLLM versions; for other model servers, those of their own pages.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from epp.endpoints.worker_metrics import BUILT_IN, WORKER_METRICS, WorkerMetric

_MAX_LENGTH: Final = 1000
"""Characters of one series in a configuration."""
_PREFIX: Final = re.compile(r"\s*+([A-Za-z_:][A-Za-z0-9_:]*+)\s*+(?:\{(.*)\}\s*+)?", re.DOTALL)
_PAIR: Final = re.compile(r'\s*+([A-Za-z_][A-Za-z0-9_]*+)\s*+=\s*+(?:"([^"]*+)"|([^",{}\s]++))\s*+')


@dataclass(frozen=True, slots=True)
class Series:
    """Selects series of a page: by the metric name and the labels that they must have."""

    name: str
    labels: Mapping[str, str]
    key: bytes = field(init=False, repr=False, compare=False)
    """The newline and the name: how each of its lines begins."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", b"\n" + self.name.encode())

    @classmethod
    def parse(cls, text: str) -> "Series":
        """Parses `name` or `name{label=value,label="value"}`; raises ValueError."""
        if len(text) > _MAX_LENGTH:
            raise ValueError(f"{text[:40]!r}... is longer than {_MAX_LENGTH} characters: not a metric")
        found = _PREFIX.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not a metric: expected name or name{{label=value,...}}")
        labels: dict[str, str] = {}
        # bounded: the operator's configuration
        for pair in (found[2] or "").split(",") if (found[2] or "").strip() else ():
            label = _PAIR.fullmatch(pair)
            if label is None:
                raise ValueError(f"{text!r}: {pair.strip()!r} is not label=value")
            labels[label[1]] = label[2] if label[2] is not None else label[3]
        return cls(found[1], labels)


_VLLM_LABELS: Final = ("block_size", "num_gpu_blocks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The series of one kind of model server. The first of several alternatives that is on the page counts.

    The size of its KV cache is `block_size` (tokens) times `num_blocks`: either values of series, or labels of the series
    `cache_info` whose names are `cache_labels`.
    """

    name: str
    waiting: Sequence[Series] = ()
    running: Sequence[Series] = ()
    kv_usage: Sequence[Series] = ()
    lora: Sequence[Series] = ()
    block_size: Sequence[Series] = ()
    num_blocks: Sequence[Series] = ()
    cache_info: Sequence[Series] = ()
    cache_labels: tuple[str, str] = _VLLM_LABELS
    others: Mapping[WorkerMetric, Sequence[Series]] = field(default_factory=dict)
    """Series of metrics without a field here."""

    @classmethod
    def of(
        cls,
        name: str,
        *,
        cache_labels: tuple[str, str] = _VLLM_LABELS,
        others: Mapping[WorkerMetric, Sequence[Series]] = MappingProxyType({}),
        **texts: str,
    ) -> "Engine":
        """An engine from series as text, alternatives separated by `|`."""
        series: dict[str, Any] = {field: _alternatives(text) for field, text in texts.items() if text}
        return cls(name=name, cache_labels=cache_labels, others=others, **series)


def _alternatives(text: str) -> tuple[Series, ...]:
    # bounded: the operator's configuration
    return tuple(Series.parse(one) for one in text.split("|"))


def engines_of(metrics: Sequence[WorkerMetric]) -> tuple[Engine, ...]:
    """All known model servers with the series of these metrics."""
    return tuple([_with_metrics(engine, metrics) for engine in _MODEL_SERVERS])


def _with_metrics(engine: Engine, metrics: Sequence[WorkerMetric]) -> Engine:
    found = {one: _alternatives(one.series[engine.name]) for one in metrics if engine.name in one.series}
    named: dict[str, Any] = {one.name: found.pop(one) for one in BUILT_IN if one in found}
    return replace(engine, **named, others=found)


_MODEL_SERVERS: Final = (
    Engine.of("vllm", lora="vllm:lora_requests_info", cache_info="vllm:cache_config_info"),
    Engine.of("sglang", cache_info="sglang:cache_config_info", cache_labels=("page_size", "num_pages")),
    Engine.of(
        "trtllm-serve", block_size="trtllm_kv_cache_tokens_per_block", num_blocks="trtllm_kv_cache_max_blocks"
    ),
    Engine.of(
        "triton-tensorrt-llm",
        block_size="nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}",
        num_blocks="nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}",
    ),
    Engine.of("triton"),
    # llama-server --metrics, tools/server/README.md; newer ones say nothing of the cache
    Engine.of("llama.cpp"),
    Engine.of("tgi"),  # huggingface.co/docs/text-generation-inference/reference/metrics
    Engine.of("lmdeploy"),  # lmdeploy serve api_server --enable-metrics, lmdeploy/metrics/loggers.py
)
"""The series that are no `WorkerMetric`: adapters and the size of the KV cache."""
ENGINES: Final = engines_of(WORKER_METRICS)


def other_series(name: str, engines: Sequence[Engine] = ENGINES) -> Mapping[WorkerMetric, Sequence[Series]]:
    """The series of metrics without a field in `Engine`, for a known engine that a configuration describes anew."""
    return next((engine.others for engine in engines if engine.name == name), {})
