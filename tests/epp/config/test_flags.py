import asyncio
import json
import logging
import random
import shlex
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from epp.config import flags, go_flags
from epp.config.log_flags import LogSettings
from epp.config.metric_flags import with_metrics
from epp.config.picker_config import load_config
from epp.config.settings import Settings, TransportKind
from epp.config.tls_rules import TlsRules
from epp.ext_proc.exchange_settings import ProtocolVersion
from epp.scraping.engines import ENGINES, Engine, Series
from tests.epp.local_picker import get, picker
from tests.http_server import http_server

GO_FLAGS = """
--grpc-port=9012 --ha-enable-leader-election=true --drain-timeout=1m0s --grpc-max-recv-msg-size=10MiB
--grpc-max-send-msg-size=25MB --pool-group=inference.networking.x-k8s.io --pool-namespace=serving
--pool-name=vllm '--endpoint-selector=app=vllm,env in (prod)' --endpoint-target-ports=8000,8001
--disable-endpoint-subset-filter=true --emit-endpoint-scores=true --refresh-metrics-interval=100ms
--refresh-prometheus-metrics-interval=10s --metrics-staleness-threshold=3s
--total-queued-requests-metric=my:waiting --total-running-requests-metric=my:running
--kv-cache-usage-percentage-metric=my:kv --lora-info-metric=my:lora --cache-info-metric=my:cache --v=4
--zap-devel=false --zap-encoder=json --zap-log-level=error --zap-stacktrace-level=panic
--zap-time-encoding=epoch --tracing=true --health-checking=false --metrics-port=9091 --grpc-health-port=9004
--enable-pprof=true --cert-path=/certs --enable-cert-reload=true --enable-grpc-stream-metrics=true
--secure-serving=false --tls-min-version=VersionTLS13
--tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_RSA_WITH_AES_128_CBC_SHA
--metrics-endpoint-auth=true --metrics-client-ca-file=/ca.crt --metrics-cert-dir=/metrics-certs
--config-file=/config.yaml '--config-text=kind: EndpointPickerConfig' --allow-experimental-plugins=false
"""
"""Each flag of llm-d-router with a value other than the default here: pkg/epp/server/options.go and
pkg/common/observability/logging/options.go, August 2026."""

GO_VALUES = {
    "grpc-max-recv-msg-size": ["0", "", "25MB", "4194304", "1Gi"],
    "tls-min-version": ["", "VersionTLS10", "VersionTLS11", "VersionTLS12"],
    "tls-cipher-suites": ["", "TLS_AES_128_GCM_SHA256", "TLS_RSA_WITH_AES_128_CBC_SHA"],
    "zap-log-level": ["debug", "info", "panic", "3"],
    "zap-time-encoding": ["epoch", "millis", "nano", "iso8601", "rfc3339", "rfc3339nano"],
    "zap-encoder": ["console"],
    "v": ["0", "1"],
}
"""Further values that it accepts."""


def test_no_flags_are_the_go_pickers_defaults() -> None:
    settings, log_settings, ignored = flags.parse([])
    assert settings == Settings()
    assert (settings.grpc_port, settings.grpc_health_port, settings.metrics_port) == (9002, 9003, 9090)
    assert settings.secure_serving
    assert (log_settings, ignored) == (LogSettings(logging.INFO), [])


def test_every_flag_reaches_its_setting() -> None:
    arguments = (
        "--grpc-port 1 --grpc-health-port=2 --metrics-port 3 --secure-serving=true --cert-path /certs "
        "--enable-cert-reload --client-ca-file /ca.pem --transport grpc "
        "--config-file f.yaml --pool-name pool --refresh-metrics-interval 100ms --metrics-staleness-threshold 1m "
        "--disable-endpoint-subset-filter --emit-endpoint-scores=true "
        "--drain-timeout 1m30s --grpc-max-recv-msg-size 5 --max-body-bytes 6 --max-buffered-bytes 7 --host 127.0.0.1 "
        "--metrics-address 127.0.0.2 --discovery file:///x --namespace n --component c "
        "--protocol-version 0.3.0 --model a --model b --objective low=-1 --objective high=2 -v 4"
    )
    settings, log_settings, ignored = flags.parse(arguments.split())
    assert settings == Settings(
        discovery="file:///x",
        namespace="n",
        component="c",
        host="127.0.0.1",
        grpc_port=1,
        grpc_health_port=2,
        metrics_address="127.0.0.2",
        metrics_port=3,
        secure_serving=True,
        cert_path=Path("/certs"),
        enable_cert_reload=True,
        client_ca_file=Path("/ca.pem"),
        transport=TransportKind.GRPC,
        config_file=Path("f.yaml"),
        pool_name="pool",
        disable_endpoint_subset_filter=True,
        emit_endpoint_scores=True,
        refresh_metrics_interval=0.1,
        metrics_staleness_threshold=60,
        drain_timeout=90,
        grpc_max_recv_msg_size=5,
        max_body_bytes=6,
        max_buffered_bytes=7,
        protocol_version=ProtocolVersion.V0_3,
        models=frozenset({"a", "b"}),
        objectives={"low": -1, "high": 2},
    )
    assert (log_settings, ignored) == (LogSettings(logging.DEBUG), [])


def test_endpoints_are_static_discovery() -> None:
    settings, _, _ = flags.parse(["--endpoint", "10.0.0.1:8000", "--endpoint", "[fd00::1]:8000"])
    assert settings.discovery == "static://10.0.0.1:8000,[fd00::1]:8000"


@pytest.mark.parametrize(
    ("text", "value"), [([], True), (["--secure-serving"], True), (["--secure-serving=0"], False)]
)
def test_booleans_are_written_as_in_go(text: list[str], value: bool) -> None:
    assert flags.parse(text)[0].secure_serving is value


def test_go_flags_without_effect_are_accepted_and_named() -> None:
    given = ["--ha-enable-leader-election", "--health-checking=false", "--zap-stacktrace-level=error"]
    _, _, ignored = flags.parse(given)
    assert ignored == ["ha-enable-leader-election", "health-checking", "zap-stacktrace-level"]
    assert go_flags.explain("health-checking") == "--health-checking (health is always served)"
    _, _, ignored = flags.parse(["--health-checking", "--metrics-endpoint-auth=false"])
    assert ignored == [], "what is as it is wanted is not missed"


@pytest.mark.parametrize(
    ("name", "value"), [flag.removeprefix("--").split("=", 1) for flag in shlex.split(GO_FLAGS)]
)
def test_every_flag_of_the_go_picker_has_its_effect_or_says_why_not(name: str, value: str) -> None:
    needed = ["--metrics-cert-dir=/certs"] if name == "metrics-client-ca-file" else []
    before, given = flags.parse(needed), flags.parse([*needed, f"--{name}={value}"])
    has_effect = given[:2] != before[:2]
    assert given[2] == ([] if has_effect else [name])
    assert has_effect or go_flags.explain(name).startswith(f"--{name} (")


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in GO_VALUES.items() for value in values]
)
def test_what_the_go_picker_accepts_is_accepted(name: str, value: str) -> None:
    assert flags.parse([f"--{name}={value}"])[2] == []


@pytest.mark.parametrize(
    ("arguments", "level"),
    [
        ("-v=0", logging.WARNING),
        ("-v 3", logging.INFO),
        ("--v=5", logging.DEBUG),
        ("-v 4 --zap-log-level=error", logging.ERROR),
        ("--zap-log-level=debug", logging.DEBUG),
        ("--zap-log-level=3", logging.INFO),
        ("--zap-log-level=4", logging.DEBUG),
    ],
)
def test_the_level_of_the_log(arguments: str, level: int) -> None:
    assert flags.parse(arguments.split())[1].level == level


@pytest.mark.parametrize(
    ("arguments", "json"),
    [
        ("--zap-encoder=json", True),
        ("--zap-devel=false", True),
        ("--zap-devel=false --zap-encoder=console", False),
        ("--zap-devel", False),
    ],
)
def test_the_form_of_the_log(arguments: str, json: bool) -> None:
    assert flags.parse(arguments.split())[1].json is json


@pytest.mark.parametrize(
    ("arguments", "rules", "said"),
    [
        ("--tls-min-version=VersionTLS11", TlsRules(), "TLS 1.2 is the least that HTTP/2 allows"),
        (
            "--tls-cipher-suites=TLS_RSA_WITH_AES_128_CBC_SHA,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
            TlsRules(ciphers=("ECDHE-RSA-AES256-GCM-SHA384",)),
            "HTTP/2 prohibits TLS_RSA_WITH_AES_128_CBC_SHA (RFC 9113",
        ),
        (
            "--tls-cipher-suites=TLS_RSA_WITH_RC4_128_SHA",
            TlsRules(ssl.TLSVersion.TLSv1_3),
            "HTTP/2 prohibits",
        ),
        (
            "--tls-cipher-suites=TLS_AES_128_GCM_SHA256",
            TlsRules(ssl.TLSVersion.TLSv1_3),
            "all suites of TLS 1.3 are offered, not only TLS_AES_128_GCM_SHA256",
        ),
        (
            "--tls-min-version VersionTLS13 --secure-serving=false",
            TlsRules(ssl.TLSVersion.TLSv1_3),
            "the gRPC port has no TLS",
        ),
    ],
)
def test_what_cannot_hold_of_a_rule_for_tls_is_told_in_a_line(
    arguments: str, rules: TlsRules, said: str
) -> None:
    settings, _, _ = flags.parse(arguments.split())
    assert settings.tls == rules
    [remark] = settings.tls.remarks
    assert said in remark


def test_flags_name_the_series_of_a_workers_page() -> None:
    arguments = [
        "--total-queued-requests-metric=mine_waiting",
        "--total-running-requests-metric=mine_requests{kind=running}",
        "--kv-cache-usage-percentage-metric=vllm:gpu_cache_usage_perc",
        "--lora-info-metric=",
    ]
    settings, _, ignored = flags.parse(arguments)
    assert settings.metric_names == {
        "total-queued-requests-metric": (Series("mine_waiting", {}),),
        "total-running-requests-metric": (Series("mine_requests", {"kind": "running"}),),
        "kv-cache-usage-percentage-metric": (Series("vllm:gpu_cache_usage_perc", {}),),
        "lora-info-metric": (),
    }
    assert ignored == []


def test_sizes_have_units() -> None:
    arguments = ["--grpc-max-recv-msg-size", "10MiB", "--max-body-bytes=1Mi", "--max-buffered-bytes", "1.5G"]
    settings, _, _ = flags.parse(arguments)
    assert settings.grpc_max_recv_msg_size == 10 * 2**20
    assert settings.max_body_bytes == 2**20
    assert settings.max_buffered_bytes == 1_500_000_000


def test_flags_of_security_reach_the_settings() -> None:
    suites = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
    arguments = ["--tls-min-version=VersionTLS12", f"--tls-cipher-suites={suites}", "--metrics-cert-dir=/m"]
    settings, _, ignored = flags.parse([*arguments, "--metrics-client-ca-file", "/ca"])
    ciphers = ("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384")
    assert settings.tls == TlsRules(ssl.TLSVersion.TLSv1_2, ciphers)
    assert (settings.metrics_cert_dir, settings.metrics_client_ca_file) == (Path("/m"), Path("/ca"))
    assert ignored == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--grpc-port 70000", "0 to 65535"),
        ("--grpc-port x", "0 to 65535"),
        ("--drain-timeout 30", "write a number with a unit"),
        ("--secure-serving=maybe", "neither true nor false"),
        ("--objective low", "NAME=PRIORITY"),
        ("--objective low=x", "NAME=PRIORITY"),
        ("--objective =1", "NAME=PRIORITY"),
        ("--max-body-bytes 0", "from 1 to"),
        ("--max-body-bytes 2147483648", "--max-buffered-bytes"),
        ("--max-buffered-bytes 5", "--max-body-bytes"),
        ("--grpc-max-recv-msg-size 2147483648", "from 1 to 2147483647"),
        ("--drain-timeout " + "9" * 30 + "s", "is not a duration"),
        pytest.param("--grpc-port " + "9" * 5000, "0 to 65535", id="a long port"),
        pytest.param("--max-body-bytes " + "9" * 5000, "is not a size", id="a long size"),
        pytest.param("--objective a=" + "9" * 5000, "NAME=PRIORITY", id="a long priority"),
        pytest.param("--drain-timeout " + "9" * 5000, "is not a duration", id="a long duration"),
        ("--protocol-version 9", "protocol-version"),
        ("--transport quic", "--transport"),
        ("--client-ca-file f --secure-serving=false", "needs --secure-serving"),
        ("--discovery file:///x --endpoint 10.0.0.1:1", "exclude each other"),
        ("--config-file f --config-text x", "exclude each other"),
        ("--no-such-flag", "no-such-flag"),
        ("--grpc-prot 1", "did you mean --grpc-port?"),
        ("--max-body-bytes 10mi", "is not a size; write a number with or without a unit"),
        ("--grpc-max-send-msg-size x", "is not a size"),
        ("--tracing=maybe", "neither true nor false"),
        ("--tls-min-version 1.3", "expected VersionTLS12 or VersionTLS13"),
        ("--tls-cipher-suites TLS_RSA_WITH_NULL_SHA", "is not a cipher suite; expected some of: TLS_ECDHE_"),
        ("--zap-log-level loud", "is not a log level"),
        ("--zap-log-level 0", "is not a log level"),
        ("--zap-encoder xml", "--zap-encoder"),
        ("--zap-time-encoding sundial", "--zap-time-encoding"),
        ("--refresh-prometheus-metrics-interval 5", "write a number with a unit"),
        ("--tls-min-version VersionTLS13 --transport grpc", "needs --transport http2"),
        ("--metrics-client-ca-file f", "needs --metrics-cert-dir"),
        ("--total-queued-requests-metric a{b", "is not a metric"),
        ("--grpc-por 1", "--grpc-por"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    arguments: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        flags.parse(arguments.split())
    assert caught.value.code == 2
    line = capsys.readouterr().err
    assert complaint in line
    assert line.count("\n") == 1
    assert len(line) < 500


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--endpoint", "http://127.0.0.1:8000"],
            "--endpoint: 'http://127.0.0.1:8000' is a URL; expected host:port",
        ),
        (["--endpoint", "10.0.0.1:8000", "--endpoint", "1.2.3.4"], "--endpoint: '1.2.3.4' is not host:port"),
        (
            ["--kubeconfig", "x"],
            "--kubeconfig is a flag of older Go pickers; use $KUBECONFIG, or --discovery",
        ),
        (["--grpc-prt", "1"], "unknown argument --grpc-prt, did you mean --grpc-port?"),
    ],
)
def test_bad_input_is_told_by_the_flag_that_was_typed(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        flags.parse(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "usage", "streams"),
    [
        ([], False, False),
        (["--usage-metrics"], True, False),
        (["--usage-metrics=false", "--enable-grpc-stream-metrics"], False, True),
    ],
)
def test_what_the_metrics_page_shows_only_if_asked(arguments: list[str], usage: bool, streams: bool) -> None:
    settings, _, without_effect = flags.parse(arguments)
    assert (settings.usage_metrics, settings.enable_grpc_stream_metrics) == (usage, streams)
    assert not without_effect


HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


@asynccontextmanager
async def worker(page: str) -> AsyncIterator[str]:
    """`host:port` of one that has this metrics page."""

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(text=page)

    async with http_server({"/metrics": metrics}) as port:
        yield f"127.0.0.1:{port}"


async def known(page: str, *arguments: str) -> dict[str, Any]:
    """What the picker with these flags has read off such a page."""
    async with worker(page) as destination:
        plain = picker("--secure-serving=false", "--endpoint", destination, *arguments)
        async with plain as where, asyncio.timeout(90):
            while True:
                _, page = await get(f"http://{where['metrics']}/debug/endpoints")
                found: list[dict[str, Any]] = json.loads(page)["endpoints"]
                if found and found[0]["age"] is not None:
                    return found[0]
                await asyncio.sleep(0.05)


async def test_the_numbers_are_read_under_the_names_given() -> None:
    page = 'mine_queue{kind="a"} 7\nmine_queue{kind="b"} 70\nmine_running 3\nvllm:num_requests_waiting 99\n'
    named = (
        "--total-queued-requests-metric=mine_queue{kind=a}",
        "--total-running-requests-metric=mine_running",
    )
    found = await known(page, *named)
    assert (found["waiting"], found["running"]) == (7, 3)


async def test_what_is_not_named_keeps_the_name_that_vllm_has_for_it() -> None:
    page = "mine_queue 7\nvllm:num_requests_running 3\nvllm:kv_cache_usage_perc 0.5\n"
    found = await known(page, "--total-queued-requests-metric=mine_queue")
    assert (found["waiting"], found["running"], found["kv_usage"]) == (7, 3, 0.5)


async def test_a_page_of_another_model_server_is_still_found_out() -> None:
    found = await known("sglang:num_queue_reqs 4\n", "--total-queued-requests-metric=mine_queue")
    assert found["waiting"] == 4


def test_an_empty_name_is_no_number() -> None:
    settings, _, _ = flags.parse(["--lora-info-metric="])
    config = with_metrics(load_config(None, rng=random.Random(1)), settings.metric_names)
    assert (config.engines[0].name, config.engines[0].lora) == ("vllm", ())
    assert config.engines[0].waiting == ENGINES[0].waiting
    assert config.defaults.engine == "vllm"


@pytest.mark.parametrize(
    "parameters", ["{defaultEngine: sglang}", "{engineConfigs: [{name: x, loraSpec: y}]}"]
)
def test_a_configuration_that_names_them_too_is_refused(parameters: str) -> None:
    text = f"{HEAD}plugins: [{{type: core-metrics-extractor, parameters: {parameters}}}]"
    config = load_config(text, rng=random.Random(1))
    with pytest.raises(
        ValueError,
        match="--lora-info-metric and the configuration's .* move the flags' names to engineConfigs",
    ):
        with_metrics(config, {"lora-info-metric": (Series("x", {}),)})


def test_without_them_nothing_changes() -> None:
    config = load_config(None, rng=random.Random(1))
    assert with_metrics(config, {}) is config


@pytest.mark.parametrize(
    "text", ["a" + " " * 100_000 + "!", "a{" + "b=c," * 100_000, "a{" + '"' * 100_000 + "}"]
)
def test_a_name_is_read_in_linear_time(text: str) -> None:
    """A second for each of them would be what a quadratic pattern takes."""
    with pytest.raises(ValueError, match="is longer than"):
        Engine.of("x", waiting=text)
