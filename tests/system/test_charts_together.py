"""charts/epp and charts/gateway as docs/gateways.md installs them: a request of a client reaches a Pod."""

import ipaddress
import re
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509

from tests.epp.authority import Authority
from tests.eventually import eventually
from tests.system.charts import container, render
from tests.system.cluster import Cluster
from tests.system.inference_extension import model_servers, picker_pod
from tests.system.test_charts_gateway import envoy_command, printed, running
from tests.system.test_charts_real_server import grant, pod_arguments

IMAGE = {"image": "registry.example/adsum:1"}


@pytest.mark.parametrize("checked", [False, True], ids=["any certificate", "a checked certificate"])
async def test_a_request_reaches_a_pod_through_both_charts(
    cluster: Cluster, tmp_path: Path, checked: bool
) -> None:
    """A Secret of cert-manager has three files: the picker serves two of them, Envoy checks by the third. Envoy hears of
    the Pods from the picker, over the same connection."""
    pods_of = {"matchLabels": {"app": "vllm"}, "targetPorts": [{"number": 3000}]}
    secret = {"tlsSecret": "picker-tls"} if checked else {}
    values = {**IMAGE, **secret, "modelServers": pods_of}
    objects = render("epp", values, "picker", cluster.namespace)
    await grant(cluster, objects)
    files = tmp_path / "secret"
    files.mkdir()
    if checked:
        authority = Authority.new()
        pair = authority.sign(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        for name, content in (
            ("tls.crt", pair.certificate),
            ("tls.key", pair.key),
            ("ca.crt", authority.pem),
        ):
            (files / name).write_bytes(content)
    arguments, variables = pod_arguments(objects, tmp_path)
    arguments = [word.replace("/etc/epp/tls", str(files)) for word in arguments]
    trust = {"tls": {"caSecret": "picker-tls"}} if checked else {}
    pickers = {"pickers": ["127.0.0.1:9002"]}
    gateway = render("gateway", {**IMAGE, **trust, **pickers}, "gateway", cluster.namespace)
    configuration = printed(gateway, tmp_path)
    configuration.write_text(configuration.read_text().replace("/etc/envoy-ca", str(files)))
    ports = {port["name"]: port["containerPort"] for port in container(gateway, "envoy")["ports"]}
    async with (
        model_servers(cluster, "vllm", 3000, count=2) as pods,
        picker_pod(cluster, arguments, variables) as picker,
        running(envoy_command(gateway, configuration)),
        aiohttp.ClientSession() as client,
    ):
        await eventually(picker.serves)

        async def answered() -> bool:
            url = f"http://127.0.0.1:{ports['http']}/v1/completions"
            try:
                async with client.post(url, json={"model": "m", "prompt": "Hello"}) as answer:
                    if answer.status != 200:
                        return False
                    return str((await answer.json())["pod"]) in {pod.name for pod in pods}
            except aiohttp.ClientConnectionError:
                return False

        await eventually(answered)

        async def known() -> bool:
            async with client.get("http://127.0.0.1:9901/clusters") as page:
                healthy = re.findall("^listed::.*::health_flags::healthy$", await page.text(), re.MULTILINE)
            return len(healthy) == 2

        await eventually(known)
