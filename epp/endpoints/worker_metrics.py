"""Declares each number that workers publish once; whatever reads, keeps or shows it follows the declaration. Pure.

To add a number, add a `WorkerMetric` to `WORKER_METRICS`. It is then read from the metrics pages of the model servers that
it names, checked against its bounds, kept as a column, and available to scorers as `pool.metric(IT)`; it has gauges and a
flag if declared. Adapters and the size of the KV cache are not plain numbers: `epp.scraping.engines`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkerMetric:
    """One number of each worker, from 0 to `maximum`; a page with any other value is not believed.

    `series`: by model server, what its page calls the number: `name` or `name{label=value}`, alternatives separated by `|`.
    `clamped_up_to`: values above `maximum` and up to here count as `maximum`. `unknown`: the column's value before the first
    page that has the number; endpoints that were never scraped rank last whatever it is. `optional`: any other value than
    from -`maximum` to `maximum` is unknown, and the rest of the page is believed.
    `pool_gauge`, `endpoint_gauge`: name and help of the gauge over the pool and of that for each endpoint. `flag`: renames the series.
    `counter`: it only grows; the value is the sum of all its series on the page, and its growth is no new state of the pool.
    """

    name: str
    maximum: float
    series: Mapping[str, str]
    clamped_up_to: float = 0.0
    unknown: float = 0.0
    optional: bool = False
    pool_gauge: tuple[str, str] | None = None
    endpoint_gauge: tuple[str, str] | None = None
    flag: str | None = None
    counter: bool = False

    def clamp(self, value: float | None) -> float | None:
        """The value of a page, `maximum` if it is just above."""
        return self.maximum if value is not None and self.maximum < value <= self.clamped_up_to else value

    def believed(self, value: float | None) -> float | None:
        """`clamp`, and `unknown` for what an optional number cannot be."""
        if self.optional and value is not None and not -self.maximum <= value <= self.maximum:
            return self.unknown
        return self.clamp(value)


_MAX_REQUESTS: Final = 100_000.0
"""The most requests that one worker can plausibly have waiting, or running."""

WAITING: Final = WorkerMetric(
    name="waiting",
    maximum=_MAX_REQUESTS,
    series={
        "vllm": "vllm:num_requests_waiting",
        "sglang": "sglang:num_queue_reqs",
        "trtllm-serve": "trtllm_num_requests_waiting",
        "triton-tensorrt-llm": "nv_trt_llm_request_metrics{request_type=waiting}",
        "triton": "nv_inference_pending_request_count",
        "llama.cpp": "llamacpp:requests_deferred",
        "tgi": "tgi_queue_size",
        "lmdeploy": "lmdeploy:num_requests_waiting",
    },
    pool_gauge=("average_queue_size", "Requests waiting in a worker, on average."),
    endpoint_gauge=("queue_size", "Requests waiting in the worker."),
    flag="total-queued-requests-metric",
)
RUNNING: Final = WorkerMetric(
    name="running",
    maximum=_MAX_REQUESTS,
    series={
        "vllm": "vllm:num_requests_running",
        "sglang": "sglang:num_running_reqs",
        "trtllm-serve": "trtllm_num_requests_running",
        "triton-tensorrt-llm": "nv_trt_llm_request_metrics{request_type=scheduled}",
        "triton": "nv_inference_exec_count",
        "llama.cpp": "llamacpp:requests_processing",
        "tgi": "tgi_batch_current_size",
        "lmdeploy": "lmdeploy:num_requests_running",
    },
    pool_gauge=("average_running_requests", "Requests running in a worker, on average."),
    endpoint_gauge=("running_requests", "Requests running in the worker."),
    flag="total-running-requests-metric",
)
KV_USAGE: Final = WorkerMetric(
    name="kv_usage",
    maximum=1.0,
    clamped_up_to=1.1,  # rounding, and blocks that are counted twice, give a little more than 1
    series={
        "vllm": "vllm:kv_cache_usage_perc|vllm:gpu_cache_usage_perc",
        "sglang": "sglang:token_usage",
        "trtllm-serve": "trtllm_kv_cache_utilization",
        "triton-tensorrt-llm": "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}",
        "llama.cpp": "llamacpp:kv_cache_usage_ratio",
        "lmdeploy": "lmdeploy:gpu_cache_usage_perc",
    },
    pool_gauge=("average_kv_cache_utilization", "KV cache use, 0 to 1, on average."),
    endpoint_gauge=("kv_cache_utilization", "KV cache use of the worker, 0 to 1."),
    flag="kv-cache-usage-percentage-metric",
)

PROMPT_TOKENS: Final = WorkerMetric(
    name="prompt_tokens",
    maximum=2.0**53,  # the largest integer that a float64 counts in steps of 1
    unknown=-1.0,
    counter=True,
    series={
        "vllm": "vllm:prompt_tokens_total|vllm:prompt_tokens",  # a prompt counts with its first token
        "lmdeploy": "lmdeploy:prompt_tokens_total",
        "llama.cpp": "llamacpp:prompt_tokens_total",
    },
)
"""Tokens of all prompts that the worker has computed or found in its cache; -1: its page does not say.

SGLang's counter grows only when a request has ended (`observe_one_finished_request` in its metrics/collector.py), and the
pages of TensorRT-LLM, Triton and TGI have none: what is ahead of those workers follows from their queues.
"""

PREFIX_QUERIES: Final = WorkerMetric(
    name="prefix_queries",
    maximum=2.0**53,
    unknown=-1.0,
    counter=True,
    series={"vllm": "vllm:prefix_cache_queries_total|vllm:prefix_cache_queries"},
)
"""Tokens of prompts that the worker looked up in its prefix cache; -1: its page does not say."""
PREFIX_HITS: Final = WorkerMetric(
    name="prefix_hits",
    maximum=2.0**53,
    unknown=-1.0,
    counter=True,
    series={"vllm": "vllm:prefix_cache_hits_total|vllm:prefix_cache_hits"},
)
"""Tokens of these prompts that it found there."""

BUILT_IN: Final = (WAITING, RUNNING, KV_USAGE)
"""The metrics with a field of their own in `Load`, `Engine` and `EndpointPool`."""

WORKER_METRICS: Final[Sequence[WorkerMetric]] = (*BUILT_IN, PROMPT_TOKENS, PREFIX_QUERIES, PREFIX_HITS)
"""All metrics; those that are not built in come last."""
