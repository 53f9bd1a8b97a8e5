import pytest
from prometheus_client.parser import text_string_to_metric_families

from examples.simulator.metrics_page import MetricsPage
from examples.simulator.scheduler_model import Limits, Load, Totals

LOAD = Load(
    running=3, waiting=2, kv_usage=0.25, loaded_adapters=("coder", "poet"), waiting_adapters=("sage",)
)


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """By name, read by the reference parser of the format."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_the_page_says_what_the_machine_does() -> None:
    page = MetricsPage("tiny", Limits(block_size=16, num_blocks=99))
    found = samples(page.render(LOAD, Totals(prefix_queries=7, prefix_hits=5), 1000.5))
    assert found["vllm:num_requests_running"] == [({"engine": "0", "model_name": "tiny"}, 3.0)]
    assert found["vllm:num_requests_waiting"][0][1] == 2.0
    assert found["vllm:kv_cache_usage_perc"][0][1] == 0.25
    assert found["vllm:prefix_cache_queries_total"][0][1] == 7.0
    assert found["vllm:prefix_cache_hits_total"][0][1] == 5.0
    config = found["vllm:cache_config_info"][0][0]
    assert (config["block_size"], config["num_gpu_blocks"]) == ("16", "99")
    labels, value = found["vllm:lora_requests_info"][0]
    assert labels == {"max_lora": "4", "running_lora_adapters": "coder,poet", "waiting_lora_adapters": "sage"}
    assert value == 1000.5


def test_the_newest_adapter_series_has_the_largest_value_and_old_ones_stay() -> None:
    page = MetricsPage("tiny", Limits())
    idle = Load(running=0, waiting=0, kv_usage=0.0, loaded_adapters=(), waiting_adapters=())
    page.render(idle, Totals(), 1.0)
    page.render(LOAD, Totals(), 2.0)
    series = samples(page.render(idle, Totals(), 3.0))["vllm:lora_requests_info"]
    assert {labels["running_lora_adapters"]: value for labels, value in series} == {
        "": 3.0,
        "coder,poet": 2.0,
    }


def test_adapter_series_are_bounded() -> None:
    page = MetricsPage("tiny", Limits())
    for second in range(100):
        load = Load(running=0, waiting=0, kv_usage=0.0, loaded_adapters=(f"a{second}",), waiting_adapters=())
        text = page.render(load, Totals(), float(second))
    series = samples(text)["vllm:lora_requests_info"]
    assert len(series) == 32
    assert max(series, key=lambda entry: entry[1])[0]["running_lora_adapters"] == "a99"


def test_without_adapter_slots_there_is_no_such_family() -> None:
    assert "lora" not in MetricsPage("tiny", Limits(max_lora=0)).render(LOAD, Totals(), 1.0)


@pytest.mark.parametrize("length", [0, 10_000, 47_000])
def test_padding_reaches_the_length_and_still_parses(length: int) -> None:
    text = MetricsPage("tiny", Limits(), pad_bytes=length).render(LOAD, Totals(), 1.0)
    assert length <= len(text.encode()) < max(length + 2_500, 8_000)
    assert samples(text)["vllm:num_requests_running"]


def test_latencies_are_counted_in_cumulative_buckets() -> None:
    page = MetricsPage("tiny", Limits())
    for seconds in (0.001, 0.3, 500.0):
        page.time_to_first_token.observe(seconds)
    found = samples(page.render(LOAD, Totals(), 1.0))
    buckets = {labels["le"]: value for labels, value in found["vllm:time_to_first_token_seconds_bucket"]}
    assert (buckets["0.001"], buckets["0.25"], buckets["0.5"], buckets["+Inf"]) == (1, 1, 2, 3)
    assert found["vllm:time_to_first_token_seconds_count"][0][1] == 3
    assert found["vllm:time_to_first_token_seconds_sum"][0][1] == pytest.approx(500.301)


def test_a_model_name_may_hold_anything() -> None:
    name = 'a "quoted"\\path\nname'
    found = samples(MetricsPage(name, Limits()).render(LOAD, Totals(), 1.0))
    assert found["vllm:num_requests_running"][0][0]["model_name"] == name
