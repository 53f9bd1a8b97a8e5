"""charts/dispatcher: the file that it renders is one that the dispatcher reads, and runs with."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from adsum.units import parse_duration
from dispatcher.cli.flags import serve_parser
from dispatcher.config.config_file import Config, read_config
from tests.eventually import eventually
from tests.system.charts import CHARTS, Object, container, helm, one, pod_spec, render, workload

CONFIG: dict[str, Any] = {
    "targets": [{"name": "pool", "url": "http://gateway.llm", "concurrency": 128}],
    "queues": [{"name": "batch", "target": "pool", "objective": "batch", "gate": {"type": "constant"}}],
}
FULL: dict[str, Any] = {
    "targets": [
        {
            "name": "pool",
            "url": "https://gateway.llm",
            "paths": ["/v1/completions"],
            "headers": {"authorization": "Bearer ${KEY}"},
            "caller_headers": ["x-session-token"],
            "concurrency": 8,
            "request_timeout": "1m30s",
            "ca_file": "/etc/ssl/ca.crt",
        }
    ],
    "queues": [
        {
            "name": "batch",
            "target": "pool",
            "path": "/v1/completions",
            "gate": {"type": "local-max-concurrency", "params": {"limit": 5}},
            "weights": {"a": 2, "b": 0.5},
            "strict_tiers": True,
            "lease": "10s",
            "max_deliveries": 3,
            "max_attempts": 9,
            "max_disconnects": 2,
            "result_ttl": "7d",
            "max_payload": "512KiB",
            "max_requests": 100000,
            "max_bytes": "1GiB",
            "max_tenant_requests": 1000,
            "max_tenant_bytes": "100MiB",
            "results": "go-list",
            "result_list": "results",
            "intake": {"key": "in", "tenant_attribute": "userid", "result_lists": ["a"]},
        }
    ],
    "answer_memory": "128MiB",
    "front_door": {"queue": "batch", "deadline": "24h", "tokens": {"team": "${TEAM_TOKEN}"}},
}
REQUIRED = {"image": "registry.example/adsum:1", "redis": {"secret": {"name": "redis"}}, "config": CONFIG}
VALUES: Sequence[Mapping[str, Any]] = [
    REQUIRED,
    {
        **REQUIRED,
        "config": FULL,
        "env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "k", "key": "key"}}}],
        "envFrom": [{"secretRef": {"name": "tokens"}}],
        "replicas": 1,
        "podMonitor": {"enabled": True},
        "verbosity": 2,
        "tracing": {"enabled": True, "otelExporterEndpoint": "http://collector:4317"},
        "drain": {"preStopSeconds": 0, "timeoutSeconds": 300},
        "volumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "volumeMounts": [{"name": "ca", "mountPath": "/etc/ssl/ca.crt", "subPath": "ca.crt"}],
    },
]
ENVIRONMENT = {"ADSUM_BROKER": "redis://127.0.0.1:6379/0", "KEY": "k", "TEAM_TOKEN": "t"}


def configuration(objects: Sequence[Object]) -> Config:
    ((_, text),) = one(objects, "ConfigMap")["data"].items()
    return read_config(text, ENVIRONMENT)


@pytest.mark.parametrize("values", VALUES)
def test_it_lints_and_the_dispatcher_reads_its_file(values: Mapping[str, Any]) -> None:
    linted = helm("lint", str(CHARTS / "dispatcher"), "--strict", values=values)
    assert linted.returncode == 0, linted.stdout
    objects = render("dispatcher", values)
    config, program = configuration(objects), container(objects, "dispatcher")
    assert config.broker == ENVIRONMENT["ADSUM_BROKER"]
    options = serve_parser().parse_args(program["args"])
    (mount,) = [m for m in program["volumeMounts"] if m["name"] == "config"]
    (name,) = one(objects, "ConfigMap")["data"]
    assert str(options.config) == f"{mount['mountPath']}/{name}"
    assert "subPath" not in mount, "kubelet does not update those"
    assert options.verbosity == values.get("verbosity", 0)
    assert options.tracing is ("tracing" in values)
    said = {one["name"]: one.get("value") for one in program["env"]}
    assert (said.get("OTEL_EXPORTER_OTLP_ENDPOINT") == "http://collector:4317") is ("tracing" in values)
    port, health = program["ports"]
    assert (config.http.host, config.http.port) == ("0.0.0.0", port["containerPort"])
    assert config.http.health_address == f"0.0.0.0:{health['containerPort']}"
    assert program["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": health["name"]}
    assert program["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": health["name"]}
    for monitor in (found for found in objects if found["kind"] == "PodMonitor"):
        assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == health["name"]
    assert one(objects, "Service")["spec"]["ports"][0]["targetPort"] == port["name"]


@pytest.mark.parametrize("values", VALUES)
def test_there_is_time_to_drain(values: Mapping[str, Any]) -> None:
    objects = render("dispatcher", values)
    drain = configuration(objects).drain_timeout
    assert drain == parse_duration(f"{values.get('drain', {}).get('timeoutSeconds', 120)}s")
    assert pod_spec(objects)["terminationGracePeriodSeconds"] > drain
    budgets = [found for found in objects if found["kind"] == "PodDisruptionBudget"]
    assert len(budgets) == (workload(objects)["spec"]["replicas"] > 1)


def test_no_password_is_in_the_manifest() -> None:
    objects = render("dispatcher", REQUIRED)
    variables = {variable["name"]: variable for variable in container(objects, "dispatcher")["env"]}
    assert variables["ADSUM_BROKER"]["valueFrom"] == {"secretKeyRef": {"name": "redis", "key": "url"}}
    assert "${ADSUM_BROKER}" in one(objects, "ConfigMap")["data"]["dispatcher.yaml"]
    assert pod_spec(objects)["automountServiceAccountToken"] is False


async def test_it_runs_with_the_file_and_answers_its_probes(tmp_path: Path) -> None:
    """The container's words on this machine, with a broker in its memory."""
    objects = render("dispatcher", REQUIRED)
    program = container(objects, "dispatcher")
    file = tmp_path / "dispatcher.yaml"
    file.write_text(one(objects, "ConfigMap")["data"]["dispatcher.yaml"])
    words = [*program["command"], f"--config={file}"]
    environment = {**os.environ, "ADSUM_BROKER": "memory://"}
    adsum = Path(sys.executable).with_name(words[0])
    process = await asyncio.create_subprocess_exec(adsum, *words[1:], env=environment)
    port = program["ports"][1]["containerPort"]
    try:
        async with aiohttp.ClientSession() as client:

            async def answers(probe: str) -> bool:
                assert process.returncode is None
                path = program[probe]["httpGet"]["path"]
                try:
                    async with client.get(f"http://127.0.0.1:{port}{path}") as answer:
                        return answer.status == 200
                except aiohttp.ClientConnectionError:
                    return False

            await eventually(lambda: answers("readinessProbe"))
            assert await answers("livenessProbe")
    finally:
        process.terminate()
        assert await process.wait() == 0


def changed(**changes: Any) -> dict[str, Any]:
    queue = {**CONFIG["queues"][0], **changes}
    return {**REQUIRED, "config": {**CONFIG, "queues": [queue]}}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({**REQUIRED, "image": ""}, "image is required"),
        ({**REQUIRED, "config": {}}, "config is required"),
        ({**REQUIRED, "redis": {}}, "redis.secret.name is required"),
        ({**REQUIRED, "config": {**CONFIG, "broker": "redis://a"}}, "'broker' not allowed"),
        (changed(lease="15"), "/config/queues/0/lease"),
        (changed(leases="15s"), "'leases' not allowed"),
        (changed(gate={}), "/config/queues/0/gate"),
        ({**REQUIRED, "config": {"targets": [{"name": "a", "url": "gateway"}]}}, "/config/targets/0/url"),
        ({**REQUIRED, "replica": 2}, "'replica' not allowed"),
    ],
)
def test_what_would_not_start_is_refused_by_name(values: Mapping[str, Any], words: str) -> None:
    done = helm("template", "r", str(CHARTS / "dispatcher"), values=values)
    assert done.returncode != 0
    assert words in done.stderr


def test_the_durations_of_the_documentation_are_let_through() -> None:
    for text in ("500ms", "15s", "1h30m", "7d"):
        objects = render("dispatcher", changed(result_ttl=text))
        found = yaml.safe_load(one(objects, "ConfigMap")["data"]["dispatcher.yaml"])
        assert found["queues"][0]["result_ttl"] == text
