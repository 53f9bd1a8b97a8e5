"""Which series of a worker's metrics page hold the numbers that matter, for each kind of model server.

Names as in the Go picker, plus the ones that older vLLM versions use; of the others from their own pages.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from epp.endpoints.worker_metrics import BUILT_IN, WORKER_METRICS, WorkerMetric

_MAX_LENGTH: Final = 1000
"""Characters of one series: more than anybody writes."""
_PREFIX: Final = re.compile(r"\s*+([A-Za-z_:][A-Za-z0-9_:]*+)\s*+(?:\{(.*)\}\s*+)?", re.DOTALL)
_PAIR: Final = re.compile(r'\s*+([A-Za-z_][A-Za-z0-9_]*+)\s*+=\s*+(?:"([^"]*+)"|([^",{}\s]++))\s*+')


@dataclass(frozen=True, slots=True)
class Series:
    """Which series of a page: a metric name and the labels that it must have."""

    name: str
    labels: Mapping[str, str]
    name_bytes: bytes = field(init=False, repr=False, compare=False)
    key: bytes = field(init=False, repr=False, compare=False)
    """How a line of it begins, the newline before it included."""
    declaration: bytes = field(init=False, repr=False, compare=False)
    """What stands before its type."""

    def __post_init__(self) -> None:
        name = self.name.encode()
        object.__setattr__(self, "name_bytes", name)
        object.__setattr__(self, "key", b"\n" + name)
        object.__setattr__(self, "declaration", b"# TYPE " + name + b" ")

    @classmethod
    def parse(cls, text: str) -> "Series":
        """`name` or `name{label=value,label="value"}`; ValueError when it is neither."""
        if len(text) > _MAX_LENGTH:
            raise ValueError(f"{text[:40]!r}... is longer than {_MAX_LENGTH} characters: not a metric")
        found = _PREFIX.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not a metric: expected name or name{{label=value,...}}")
        labels: dict[str, str] = {}
        for pair in (found[2] or "").split(",") if (found[2] or "").strip() else ():
            label = _PAIR.fullmatch(pair)
            if label is None:
                raise ValueError(f"{text!r}: {pair.strip()!r} is not label=value")
            labels[label[1]] = label[2] if label[2] is not None else label[3]
        return cls(found[1], labels)


_VLLM_LABELS: Final = ("block_size", "num_gpu_blocks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Where one kind of model server keeps its numbers; of several series the first one found counts.

    The size of its KV cache: `block_size` in tokens and `num_blocks` are values, or labels of `cache_info` by these names.
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
    """Of numbers that have no name here."""

    @classmethod
    def of(cls, name: str, *, cache_labels: tuple[str, str] = _VLLM_LABELS, **texts: str) -> "Engine":
        """An engine with its series as text, alternatives separated by `|`."""
        series: dict[str, Any] = {field: _alternatives(text) for field, text in texts.items() if text}
        return cls(name=name, cache_labels=cache_labels, **series)


def _alternatives(text: str) -> tuple[Series, ...]:
    return tuple(Series.parse(one) for one in text.split("|"))


def engines_of(metrics: Sequence[WorkerMetric]) -> tuple[Engine, ...]:
    """The model servers that are known, with the series of these metrics."""
    return tuple([_with_metrics(engine, metrics) for engine in _MODEL_SERVERS])


def _with_metrics(engine: Engine, metrics: Sequence[WorkerMetric]) -> Engine:
    found = {one: _alternatives(one.series[engine.name]) for one in metrics if engine.name in one.series}
    named: dict[str, Any] = {one.name: found.pop(one) for one in BUILT_IN if one in found}
    return replace(engine, **named, others=found)


_MODEL_SERVERS: Final = (
    Engine.of(
        "vllm",
        lora="vllm:lora_requests_info",
        cache_info="vllm:cache_config_info",
    ),
    Engine.of(
        "sglang",
        cache_info="sglang:cache_config_info",
        cache_labels=("page_size", "num_pages"),
    ),
    Engine.of(
        "trtllm-serve",
        block_size="trtllm_kv_cache_tokens_per_block",
        num_blocks="trtllm_kv_cache_max_blocks",
    ),
    Engine.of(
        "triton-tensorrt-llm",
        block_size="nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}",
        num_blocks="nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}",
    ),
    Engine.of(
        "triton",
    ),
    Engine.of(  # llama-server --metrics, tools/server/README.md; newer ones say nothing of the cache
        "llama.cpp",
    ),
    Engine.of(  # huggingface.co/docs/text-generation-inference/reference/metrics
        "tgi",
    ),
    Engine.of(  # lmdeploy serve api_server --enable-metrics, lmdeploy/metrics/loggers.py
        "lmdeploy",
    ),
)
"""What is no `WorkerMetric`: adapters, and the size of the KV cache."""
ENGINES: Final = engines_of(WORKER_METRICS)
