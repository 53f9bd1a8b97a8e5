"""A flag that chooses workers has its effect or stops the start: an empty pool looks like one that works."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from adsum.config.problems import ConfigError
from epp.__main__ import main
from epp.config.data_layer import FileDiscoveryParameters
from epp.config.settings import Settings
from epp.config.worker_source import SourceError, WorkerSource, choose_source, metrics_pool_name
from tests.epp.epp_program import LOCAL
from tests.in_process import run_here
from tests.warm_python import WARM_PYTHON

FILE = FileDiscoveryParameters(path="/etc/endpoints.yaml")
POOL = {
    "pool_name": "pool",
    "pool_namespace": "serving",
    "pool_group": "inference.networking.k8s.io",
}

GO_CHART_OF_A_POOL = (
    "--pool-name vllm --pool-namespace serving --pool-group inference.networking.k8s.io --zap-encoder json "
    "--grpc-health-port 9003 --tracing=false --metrics-endpoint-auth=false"
)
"""The arguments that the chart of llm-d-router renders, but for the file of the configuration."""


async def start(*arguments: str, **variables: str) -> tuple[int | None, str]:
    """Exit code and standard error of a picker that must not start; None if it is ready all the same."""
    pipe = asyncio.subprocess.PIPE
    environment = {name: value for name, value in os.environ.items() if name != "ADSUM_DISCOVERY"} | variables
    command = [WARM_PYTHON, "-m", "epp", *LOCAL, *arguments]
    running = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=environment)
    assert running.stdout is not None
    assert running.stderr is not None
    try:
        async with asyncio.timeout(90):
            if await running.stdout.readline():
                return None, "it is ready"
            return await running.wait(), (await running.stderr.read()).decode()
    finally:
        if running.returncode is None:
            running.kill()
        await running.communicate()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (
            "--pool-name vllm --endpoint-selector app=vllm --endpoint-target-ports 8000",
            "--pool-name and --endpoint-selector exclude each other",
        ),
        ("--endpoint-selector app=vllm", "--endpoint-selector needs --endpoint-target-ports"),
        ("--endpoint-target-ports 8000", "--endpoint-target-ports needs --endpoint-selector"),
        (
            "--endpoint-selector app=x --endpoint-target-ports 1 --discovery static://127.0.0.1:9",
            "--endpoint-selector and static://127.0.0.1:9 both name a source of workers",
        ),
        ("--pool-namespace a --discovery kubernetes://b", "name different namespaces"),
        ("--pool-namespace a", "which InferencePool? give --pool-name NAME"),
    ],
)
def test_flags_that_contradict_each_other_stop_the_start(
    arguments: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ADSUM_DISCOVERY", raising=False)
    said = run_here(main, *LOCAL, *arguments.split())
    assert said.returncode == 2, said.stderr
    assert said.stderr.splitlines()[-1].startswith("error: ")
    assert named in said.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "environment", "url"),
    [
        (POOL, {}, "kubernetes://serving?pool=pool&group=inference.networking.k8s.io"),
        ({"pool_name": "pool"}, {}, "kubernetes://default?pool=pool"),
        ({"pool_name": "pool"}, {"NAMESPACE": "here"}, "kubernetes://here?pool=pool"),
        ({"pool_name": "pool", "pool_namespace": "a"}, {"NAMESPACE": "b"}, "kubernetes://a?pool=pool"),
        (
            {"endpoint_selector": "app in (a,b),!old", "endpoint_target_ports": ["8000,8001", "8000"]},
            {"NAMESPACE": "here", "ADSUM_DISCOVERY": "file:///x"},
            "kubernetes://here?selector=app+in+%28a%2Cb%29%2C%21old&ports=8000%2C8001",
        ),
    ],
)
def test_a_pool_and_a_selector_are_sources(
    flags: dict[str, Any], environment: dict[str, str], url: str
) -> None:
    """As the Go picker reads them, with its defaults."""
    assert choose_source(Settings(**flags), None, environment) == WorkerSource(url)


def test_what_the_go_picker_ignores_is_named() -> None:
    both = Settings(pool_name="pool", endpoint_target_ports=["8000"])
    assert choose_source(both, None, {}).ignored_flags == ("--endpoint-target-ports",)
    grouped = Settings(endpoint_selector="a=b", endpoint_target_ports=["80"], pool_group="g")
    assert choose_source(grouped, None, {}).ignored_flags == ("--pool-group",)


@pytest.mark.parametrize(
    "text", ["", "8000,", "8000, 8001", "0", "65536", "http", "-1", "٣", "1,2,3,4,5,6,7,8,9"]
)
def test_target_ports_are_one_to_eight_ports(text: str) -> None:
    with pytest.raises(SourceError, match="--endpoint-target-ports: .*; expected "):
        choose_source(Settings(endpoint_selector="a=b", endpoint_target_ports=[text]), None, {})


@pytest.mark.parametrize(
    ("flags", "environment", "name"),
    [
        ({"pool_name": "pool"}, {}, "pool"),
        ({}, {}, "default"),
        ({"endpoint_selector": "a=b"}, {"POD_NAME": "the-picker-5d9c7-x2x9z"}, "the-picker"),
        ({"endpoint_selector": "a=b"}, {"POD_NAME": "picker"}, "default"),
        ({"endpoint_selector": "a=b", "component": "decode"}, {}, "decode"),
    ],
)
def test_the_pools_name_on_the_metrics_page(
    flags: dict[str, Any], environment: dict[str, str], name: str
) -> None:
    assert metrics_pool_name(Settings(**flags), environment) == name


def test_without_any_of_them_the_default_holds() -> None:
    assert choose_source(Settings(), None, {}) == WorkerSource()
    assert choose_source(Settings(discovery="file:///x"), None, {}) == WorkerSource("file:///x")
    assert choose_source(Settings(endpoint_selector="", pool_namespace=""), None, {}) == WorkerSource()


def test_a_pool_only_has_a_name_where_something_else_says_who_is_in_it() -> None:
    chosen = choose_source(Settings(discovery="file:///x", pool_name="pool"), None, {})
    assert chosen == WorkerSource("file:///x")
    assert choose_source(Settings(pool_name="pool"), None, {"ADSUM_DISCOVERY": "file:///x"}) == WorkerSource()


@pytest.mark.parametrize(
    ("url", "chosen"),
    [
        ("kubernetes://", "kubernetes://serving"),
        ("kubernetes://?service=a", "kubernetes://serving?service=a"),
        ("kubernetes:///?service=a", "kubernetes://serving/?service=a"),
        ("kubernetes://serving?service=a", "kubernetes://serving?service=a"),
    ],
)
def test_the_pools_namespace_is_that_of_a_cluster_that_names_none(url: str, chosen: str) -> None:
    said = choose_source(Settings(discovery=url, **POOL), None, {})
    assert said == WorkerSource(chosen, ignored_flags=("--pool-group",))
    environment = {"ADSUM_DISCOVERY": url}
    assert choose_source(Settings(**POOL), None, environment).url == chosen


def test_elsewhere_it_is_said_to_do_nothing() -> None:
    chosen = choose_source(Settings(discovery="file:///x", **POOL), None, {})
    assert chosen == WorkerSource("file:///x", ignored_flags=("--pool-namespace", "--pool-group"))


def test_a_file_of_endpoints_wins_over_a_pool_and_a_selector_as_in_the_go_picker() -> None:
    chosen = choose_source(Settings(**POOL), FILE, {"ADSUM_DISCOVERY": "file:///x"})
    assert chosen == WorkerSource(file=FILE, ignored_flags=("--pool-namespace", "--pool-group"))
    chosen = choose_source(Settings(endpoint_selector="a=b", endpoint_target_ports=["80"]), FILE, {})
    assert chosen == WorkerSource(file=FILE, ignored_flags=("--endpoint-selector", "--endpoint-target-ports"))
    with pytest.raises(ConfigError, match="both name a source of workers"):
        choose_source(Settings(discovery="file:///x"), FILE, {})


async def test_the_go_pickers_arguments_with_a_file_of_endpoints_start(tmp_path: Path) -> None:
    (tmp_path / "endpoints.yaml").write_text("endpoints: []\n")
    (tmp_path / "config.yaml").write_text(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
        f"plugins: [{{type: file-discovery, parameters: {{path: {tmp_path}/endpoints.yaml}}}}]\n"
        "dataLayer: {discovery: {pluginRef: file-discovery}}\n"
    )
    arguments = [*GO_CHART_OF_A_POOL.split(), "--config-file", str(tmp_path / "config.yaml")]
    assert await start(*arguments) == (None, "it is ready")


async def test_the_environment_may_name_the_configuration_where_no_argument_does(tmp_path: Path) -> None:
    named = {"ADSUM_EPP_CONFIG_FILE": str(tmp_path / "named.yaml")}
    code, stderr = await start("--endpoint", "127.0.0.1:9", **named)
    assert code == 2
    assert "named.yaml: cannot be read" in stderr
    text = "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig}"
    arguments = ("--endpoint", "127.0.0.1:9", "--config-text", text)
    assert await start(*arguments, **named) == (None, "it is ready")
