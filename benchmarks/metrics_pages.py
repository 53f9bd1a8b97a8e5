"""`python -m benchmarks.metrics_pages COUNT`: serves the metrics pages of COUNT workers from one process, one port each.

Prints the ports in one line. A page is of vLLM's form and size: gauges, counters, 14 histograms, 47 KB; its numbers
change from one look to the next, so that no two answers are alike.
"""

import asyncio
import sys

_HISTOGRAMS = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
    "iteration_tokens_total",
)
_LABELS = 'engine="0",model_name="meta-llama/Llama-3.1-70B-Instruct"'
_BUCKETS = 24
_GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


def page(looks: int, *, busy: bool = False) -> bytes:
    """The page of the given scrape; unless `busy`, no request runs or waits."""
    lines = []
    for name in _GAUGES:
        lines += [f"# HELP vllm:{name} How much of it there is.", f"# TYPE vllm:{name} gauge"]
        lines.append(f"vllm:{name}{{{_LABELS}}} {float(busy and looks % 8 + 1)}")
    for name in ("prompt_tokens", "generation_tokens", "request_success", "prefix_cache_hits"):
        lines += [f"# HELP vllm:{name}_total How many in all.", f"# TYPE vllm:{name}_total counter"]
        lines.append(f"vllm:{name}_total{{{_LABELS}}} {looks}.0")
    for name in _HISTOGRAMS:
        lines += [f"# HELP vllm:{name} Histogram of {name}.", f"# TYPE vllm:{name} histogram"]
        for bucket in range(_BUCKETS):
            lines.append(f'vllm:{name}_bucket{{{_LABELS},le="{2.0**bucket / 1024}"}} {looks * bucket}.0')
        lines.append(f'vllm:{name}_bucket{{{_LABELS},le="+Inf"}} {looks * _BUCKETS}.0')
        lines += [f"vllm:{name}_count{{{_LABELS}}} {looks}.0", f"vllm:{name}_sum{{{_LABELS}}} {looks * 1.5}"]
    return "\n".join((*lines, "")).encode()


class _Server(asyncio.Protocol):
    """A minimal HTTP server, so that its own cost stays small."""

    answers: tuple[bytes, ...] = ()

    def __init__(self) -> None:
        self._looks = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for _ in range(data.count(b"\r\n\r\n")):
            self._looks += 1
            self._transport.write(self.answers[self._looks % len(self.answers)])


def _answer(body: bytes) -> bytes:
    head = (
        "HTTP/1.1 200 OK\r\nserver: uvicorn\r\n"
        f"content-length: {len(body)}\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\n\r\n"
    )
    return head.encode() + body


async def main(count: int) -> None:
    _Server.answers = tuple(_answer(page(looks)) for looks in range(1000, 1010))
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(_Server, "127.0.0.1", 0) for _ in range(count)]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
