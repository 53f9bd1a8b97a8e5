"""Renders the series of vLLM's metrics page that routers read, padded to the size of a real page on request."""

from collections.abc import Iterator, Mapping

from adsum.histogram import Histogram
from examples.simulator.scheduler_model import Limits, Load, Totals

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_LORA_SERIES = 32
"""vLLM keeps one series for each combination of adapters that it ever reported; this page keeps the newest ones."""


class MetricsPage:
    """Renders the page of one worker. `pad_bytes`: its minimal length; a real vLLM's page has about 47,000."""

    def __init__(self, model: str, limits: Limits, *, pad_bytes: int = 0) -> None:
        self.time_to_first_token = Histogram(_SECONDS)
        self.request_latency = Histogram(_SECONDS)
        self._labels = {"engine": "0", "model_name": model}
        self._limits = limits
        self._lora: dict[tuple[str, str], float] = {}
        self._padding = ""
        self._padding = self._pad(pad_bytes)

    def render(self, load: Load, totals: Totals, unix_time: float) -> str:
        """`unix_time` becomes the value of the current `lora_requests_info` series, by which readers find the newest."""
        lines = [
            *self._machine(load),
            *self._counters(totals),
            *self._adapters(load, unix_time),
            *self._histogram("time_to_first_token_seconds", self.time_to_first_token),
            *self._histogram("e2e_request_latency_seconds", self.request_latency),
        ]
        return "".join(f"{line}\n" for line in lines) + self._padding

    def _machine(self, load: Load) -> Iterator[str]:
        yield from self._family(
            "num_requests_running", "gauge", "Number of requests in execution batches.", load.running
        )
        yield from self._family("num_requests_waiting", "gauge", "Number of requests waiting.", load.waiting)
        yield from self._family(
            "kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent.", load.kv_usage
        )
        yield from _head(
            "simulator:held_kv_blocks", "gauge", "KV blocks of ended requests, for another worker."
        )
        yield _sample("simulator:held_kv_blocks", self._labels, load.held_blocks)
        blocks = {"block_size": str(self._limits.block_size), "num_gpu_blocks": str(self._limits.num_blocks)}
        yield from _head("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
        yield _sample("vllm:cache_config_info", self._labels | blocks | {"enable_prefix_caching": "True"}, 1)

    def _counters(self, totals: Totals) -> Iterator[str]:
        for name, text, value in (
            ("prefix_cache_queries_total", "Prefix cache queries, in tokens.", totals.prefix_queries),
            ("prefix_cache_hits_total", "Prefix cache hits, in tokens.", totals.prefix_hits),
            ("prompt_tokens_total", "Number of prefill tokens processed.", totals.prompt),
            ("generation_tokens_total", "Number of generation tokens processed.", totals.generated),
            ("num_preemptions_total", "Number of preemptions.", totals.preempted_requests),
            ("request_success_total", "Count of successfully processed requests.", totals.finished_requests),
            ("request_aborted_total", "Count of requests whose client went away.", totals.aborted_requests),
            (
                "nixl_num_kv_expired_reqs_total",
                "Requests whose KV cache nobody fetched in time.",
                totals.expired_requests,
            ),
            (
                "nixl_num_failed_transfers_total",
                "KV caches that could not be fetched.",
                totals.failed_transfers,
            ),
        ):
            yield from self._family(name, "counter", text, value)

    def _adapters(self, load: Load, unix_time: float) -> Iterator[str]:
        if not self._limits.max_lora:
            return
        now = (",".join(load.loaded_adapters), ",".join(load.waiting_adapters))
        self._lora.pop(now, None)
        self._lora[now] = unix_time
        if len(self._lora) > _LORA_SERIES:
            del self._lora[next(iter(self._lora))]
        yield from _head("vllm:lora_requests_info", "gauge", "Running stats on lora requests.")
        for (running, waiting), value in self._lora.items():
            adapters = {"running_lora_adapters": running, "waiting_lora_adapters": waiting}
            yield _sample(
                "vllm:lora_requests_info", {"max_lora": str(self._limits.max_lora)} | adapters, value
            )

    def _histogram(self, name: str, histogram: Histogram) -> Iterator[str]:
        name = f"vllm:{name}"
        yield from _head(name, "histogram", f"Histogram of {name.removeprefix('vllm:')}.")
        buckets = histogram.buckets()
        for bound, count in buckets:
            yield _sample(f"{name}_bucket", self._labels | {"le": bound}, count)
        yield _sample(f"{name}_count", self._labels, buckets[-1][1])
        yield _sample(f"{name}_sum", self._labels, histogram.total)

    def _family(self, name: str, kind: str, text: str, value: float) -> Iterator[str]:
        yield from _head(f"vllm:{name}", kind, text)
        yield _sample(f"vllm:{name}", self._labels, value)

    def _pad(self, pad_bytes: int) -> str:
        empty = Load(running=0, waiting=0, kv_usage=0.0, loaded_adapters=(), waiting_adapters=())
        missing = pad_bytes - len(self.render(empty, Totals(), 0.0).encode())
        self._lora.clear()
        pad: list[str] = []
        while missing > 0:
            lines = self._histogram(f"simulated_{len(pad)}_seconds", Histogram(_SECONDS))
            pad.append("".join(f"{line}\n" for line in lines))
            missing -= len(pad[-1].encode())
        return "".join(pad)


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
    return f"{name}{{{inside}}} {float(value)!r}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
