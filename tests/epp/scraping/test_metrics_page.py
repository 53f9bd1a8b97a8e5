import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery.instance import ENGINES as NAMES
from epp.endpoints.endpoint import Adapters
from epp.endpoints.load import Load
from epp.scraping.engines import ENGINES, Engine, Series
from epp.scraping.metrics_page import detect_engine, read_cache_tokens, read_load

BY_NAME = {engine.name: engine for engine in ENGINES}

VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{reason="capacity"} 99.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 2.5e-01
# TYPE vllm:lora_requests_info gauge
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a, b",waiting_lora_adapters=""} 1.7e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a",waiting_lora_adapters="c,d"} 1.8e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="old",waiting_lora_adapters=""} 1.6e+09
"""

TRITON = (
    b'nv_trt_llm_request_metrics{model="m",request_type="scheduled"} 2\n'
    b'nv_trt_llm_request_metrics{model="m",request_type="waiting"} 1\n'
    b'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max"} 500\n'
    b'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"} 0.3\n'
)


def test_the_names_that_workers_are_told_of_are_those_that_are_known() -> None:
    assert [engine.name for engine in ENGINES] == list(NAMES)


def test_vllm() -> None:
    assert read_load(VLLM, BY_NAME["vllm"]) == Load(
        waiting=7,
        running=3,
        kv_usage=0.25,
        max_lora=4,
        adapters=Adapters(frozenset({"a"}), frozenset({"c", "d"})),
    )


@pytest.mark.parametrize(
    ("engine", "page", "expected"),
    [
        ("vllm", b"vllm:gpu_cache_usage_perc 0.5\n", Load(kv_usage=0.5)),
        (
            "sglang",
            b"sglang:num_queue_reqs 1\nsglang:num_running_reqs 2\nsglang:token_usage 0.3\n",
            Load(waiting=1, running=2, kv_usage=0.3),
        ),
        (
            "trtllm-serve",
            b"trtllm_num_requests_waiting 1\ntrtllm_num_requests_running 2\ntrtllm_kv_cache_utilization 0.3\n",
            Load(waiting=1, running=2, kv_usage=0.3),
        ),
        (
            "triton-tensorrt-llm",
            TRITON,
            Load(waiting=1, running=2, kv_usage=0.3),
        ),
        (
            "triton",
            b"nv_inference_pending_request_count 1\nnv_inference_exec_count 2\n",
            Load(waiting=1, running=2),
        ),
        (
            "llama.cpp",
            (
                b"# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 2\n"
                b"# TYPE llamacpp:requests_deferred gauge\nllamacpp:requests_deferred 1\n"
            ),
            Load(waiting=1, running=2),
        ),
        ("llama.cpp", b"llamacpp:kv_cache_usage_ratio 0.3\n", Load(kv_usage=0.3)),
        (
            "tgi",
            (
                b"# TYPE tgi_queue_size gauge\ntgi_queue_size 1\n"
                b"# TYPE tgi_batch_current_size gauge\ntgi_batch_current_size 2\n"
            ),
            Load(waiting=1, running=2),
        ),
        (
            "lmdeploy",
            (
                b'lmdeploy:num_requests_waiting{engine="0",model_name="m"} 1.0\n'
                b'lmdeploy:num_requests_running{engine="0",model_name="m"} 2.0\n'
                b'lmdeploy:gpu_cache_usage_perc{engine="0",model_name="m"} 0.3\n'
            ),
            Load(waiting=1, running=2, kv_usage=0.3),
        ),
    ],
)
def test_the_words_of_each_engine(engine: str, page: bytes, expected: Load) -> None:
    assert read_load(page, BY_NAME[engine]) == expected
    found = detect_engine(page, ENGINES)
    assert found is not None
    assert found.name == engine


@pytest.mark.parametrize(
    ("engine", "page", "tokens"),
    [
        ("vllm", b'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",x="y"} 1.0\n', 16_000),
        ("vllm", b'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\n', None),
        ("vllm", b'vllm:cache_config_info{block_size="16",num_gpu_blocks="0"} 1.0\n', None),
        ("vllm", VLLM, None),
        ("sglang", b'sglang:cache_config_info{page_size="1",num_pages="5000"} 1\n', 5000),
        ("trtllm-serve", b"trtllm_kv_cache_tokens_per_block 32\ntrtllm_kv_cache_max_blocks 100\n", 3200),
        ("triton-tensorrt-llm", TRITON, None),
        (
            "triton-tensorrt-llm",
            TRITON + b'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per"} 64\n',
            32_000,
        ),
        ("triton", b"nv_inference_exec_count 2\n", None),
    ],
)
def test_how_large_the_cache_is(engine: str, page: bytes, tokens: int | None) -> None:
    assert read_cache_tokens(page, BY_NAME[engine]) == tokens


def value(page: bytes | bytearray, series: str = "m") -> float | None:
    return read_load(page, Engine.of("x", waiting=series)).waiting


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (b"m 1", 1),
        (b"a 0\nm 1\nb 2", 1),
        (b"m\t1\r\n", 1),
        (b'm{a="}",b="\\"x\\\\"} 4\n', 4),
        (b"m{} 1\n", 1),
        (b"m 1\nm 2\n", 2),
        (b"m 1 500\nm 2 400\n", 1),
        (b"m 1 500\nm 2 500\nm 3\n", 2),
        (b'm{a="1"} 1 # {trace="x"} 9 9\n', 1),
        (b"mm 1\nxm 2\nm_total 3\nm:a 4\n", None),
        (b"m\n", None),
        (b'# TYPE m summary\nm{quantile="0.5"} 1\n', None),
        (b"# TYPE m histogram\nm_bucket 1\nm 1\n", None),
        (b"# TYPE m counter\nm 1\n", 1),
        (b"# m 1\n", None),
        (b"", None),
        (b"<html>m 1</html>", None),
    ],
)
def test_which_sample_counts(page: bytes, expected: float | None) -> None:
    assert value(page) == expected


@pytest.mark.parametrize(
    "line",
    [
        b"m NaN",
        b"m nan",
        b"m one",
        b"m 1{",
        b'm{a="b 1',
        b'm{a="b"',
        b"m ",
        b"m{} ",
        b"m 5\nm NaN",
        b"m 1 5\nm NaN 6",
    ],
)
def test_what_is_no_number_is_not_taken_for_absent(line: bytes) -> None:
    load = read_load(line + b"\n", Engine.of("x", waiting="m"))
    assert load.problem == "waiting is nan, expected a number from 0 to 100000"


def test_a_line_that_is_too_long_says_nothing_that_can_be_believed() -> None:
    assert math.isnan(value(b'm{a="' + b"x" * 100_000 + b'"} 1\n') or 0)
    assert value(b'm{a="' + b"x" * 60_000 + b'"} 1\n') == 1


SENSELESS = ["NaN", "+Inf", "-Inf", "-1", "-0.001", "1e308", "100001", "1e999", "0x10", "--1"]


@pytest.mark.parametrize("number", [*SENSELESS, "2", "1.11"])
@pytest.mark.parametrize("field", ["waiting", "running", "kv_usage"])
def test_a_number_that_cannot_be_so_makes_no_sense(field: str, number: str) -> None:
    load = read_load(f"m {number}\n".encode(), Engine.of("x", **{field: "m"}))
    if field == "kv_usage" or number not in ("2", "1.11"):
        assert load.problem.startswith(f"{field} is ")
        assert "expected a number from 0 to " in load.problem
    else:
        assert not load.problem


@pytest.mark.parametrize(
    ("said", "read"), [("1", 1.0), ("1.05", 1.0), ("1.1", 1.0), ("0.999", 0.999), ("0", 0.0)]
)
def test_a_cache_that_is_a_little_more_than_full_is_full(said: str, read: float) -> None:
    load = read_load(f"m {said}\n".encode(), Engine.of("x", kv_usage="m"))
    assert (load.kv_usage, load.problem) == (read, "")


@pytest.mark.parametrize("number", [*SENSELESS, "1e13"])
def test_a_cache_whose_size_makes_no_sense_is_not_known(number: str) -> None:
    engine = BY_NAME["trtllm-serve"]
    page = f"trtllm_kv_cache_tokens_per_block {number}\ntrtllm_kv_cache_max_blocks {number}\n"
    assert read_cache_tokens(page.encode(), engine) in (None, 100_001**2)


HOSTILE = {
    "name": b"vllm:lora_requests_info{%s} 1\n",
    "name of another": b"vllm:cache_config_info{%s} 1\n",
    "blanks": b"vllm:num_requests_waiting%.0s" + b" " * 16384 + b"\n",
    "tabs": b"vllm:num_requests_waiting%.0s" + b"\t" * 16384 + b"#\n",
    "quoted": b'vllm:lora_requests_info{a="%s} 1\n',
    "escaped": b"vllm:lora_requests_info{%.0s" + b'a="\\"' * 3000 + b'"} 1\n',
    "equals": b"vllm:lora_requests_info{%.0s" + b"a=" * 8000 + b"} 1\n",
    "braces": b"vllm:lora_requests_info%.0s" + b"{" * 16384 + b"\n",
    "digits": b"vllm:num_requests_waiting 1 %.0s" + b"9" * 16384 + b"\n",
}


@pytest.mark.usefixtures("frozen_heap")
@pytest.mark.parametrize("page", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_page_takes_time_in_proportion_to_its_size(page: bytes) -> None:
    """16 KiB are read in less than a millisecond; where each byte is looked at again from each other one, in seconds."""
    page %= b"a" * 16384
    started = time.thread_time()
    read_load(page, BY_NAME["vllm"])
    read_cache_tokens(page, BY_NAME["vllm"])
    assert time.thread_time() - started < 0.25


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        ("m{a=1}", 1),
        ('m{a="2"}', 2),
        ("m{a=2,b=x}", 3),
        ("m{c=1}", None),
        (" m { a = 1 } ", 1),
        ("m{c=1}|m{a=1}", 1),
    ],
)
def test_labels_choose(series: str, expected: float | None) -> None:
    assert value(b'm{a="2",b="x"} 3\nm{a="1"} 1\nm{a="2"} 2\n', series) == expected


@pytest.mark.parametrize("text", ["", "1m", "m{", "m}", "m{a}", "m{a=}", "m{a=b,}", "m n"])
def test_what_is_no_series(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        Series.parse(text)


def test_escapes_in_labels() -> None:
    assert value(b'm{a="x\\n\\"y\\\\"} 1\n', "m") == 1
    engine = Engine(name="x", waiting=(Series("m", {"a": 'x\n"y\\'}),))
    assert read_load(b'm{a="x\\n\\"y\\\\"} 1\n', engine).waiting == 1


def test_a_page_that_says_nothing() -> None:
    assert not read_load(b"python_gc_objects 5\n", BY_NAME["vllm"]).known
    assert detect_engine(b"python_gc_objects 5\n", ENGINES) is None


@given(page=st.binary() | st.from_regex(rb"(\n|vllm:num_requests_waiting|[{}\", =\\0-9.]|a)*"))
def test_any_bytes_are_read(page: bytes) -> None:
    load = read_load(page, BY_NAME["vllm"])
    assert load.problem or load.waiting is None or load.waiting >= 0


@given(
    labels=st.dictionaries(
        st.from_regex(r"[a-z_]{1,5}", fullmatch=True), st.text(st.characters(codec="utf-8")), max_size=3
    ),
    number=st.floats(0, 1e9),
)
def test_what_is_written_by_the_rules_is_read(labels: dict[str, str], number: float) -> None:
    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    inside = ",".join(f'{name}="{escaped(text)}"' for name, text in labels.items())
    page = f'# TYPE m gauge\nm{{zz="other"}} -1\nm{{{inside}}} {number!r}\n'.encode()
    assert read_load(page, Engine(name="x", waiting=(Series("m", labels),))).waiting == number


def test_a_timestamp_of_any_length_is_read() -> None:
    assert value(b"m 1 " + b"9" * 5000 + b"\nm 2 5\n") == 2
    assert value(b"m 3 " + b"9" * 19 + b"\nm 2 5\n") == 3


def test_an_adapter_limit_that_is_no_count_is_not_known() -> None:
    page = b'vllm:lora_requests_info{max_lora="' + b"9" * 400 + b'"} 1\n'
    assert read_load(page, BY_NAME["vllm"]).max_lora is None


def test_so_many_samples_of_a_series_are_looked_at_and_no_more() -> None:
    assert value(b"".join(b"m %d\n" % number for number in range(1, 1000))) == 256
    others = b"".join(b"m_total %d\n" % number for number in range(300))
    assert value(others + b"m 7\n") == 7
    assert value(others * 40 + b"m 7\n") is None


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (b"# TYPE m gauge\nm 1\na 0\nm 2\n", 1),
        (b"# HELP m x\n# TYPE m gauge\nm 1 5\nm 2 7\nm 3 6\na 0\nm 4 9\n", 2),
        (b"m 1\na 0\nm 2\n", 2),
        (b"# TYPE m_total counter\nm 1\na 0\nm 2\n", 2),
        (b"# TYPE m_total counter\nm_total 9\n# TYPE m gauge\nm 1\nm_total 8\nm 2\n", 2),
        (b"# TYPE m unknown\nm 1\n", 1),
        (b"# TYPE m gauge", None),
        (b"# TYPE m gauge\nm 1\n# TYPE n gauge\nn 1", 1),
    ],
)
def test_the_lines_of_a_declared_metric_stand_together(page: bytes, expected: float | None) -> None:
    """So says the text format 0.0.4; of a page that declares nothing every line counts."""
    assert value(page) == expected
    assert value(bytearray(page)) == expected
