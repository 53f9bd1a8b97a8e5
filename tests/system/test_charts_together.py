"""charts/epp and charts/gateway as docs/gateways.md installs them: a request of a client reaches a Pod."""

import ipaddress
import re
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
import yaml
from cryptography import x509

from epp.envoy.json_values import Address, static_hosts
from tests.epp.authority import Authority
from tests.eventually import eventually
from tests.system.charts import container, render, workload
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
        running(*envoy_command(gateway, configuration)),
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


async def test_behind_the_name_of_the_pickers_each_hears_what_became_of_its_picks(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Both charts as they are by default: Envoy's log reaches one of two pickers, which find each other by the slices of their
    headless Service and prove themselves by the Secret of the chart. Its name is resolved here, since there is no DNS."""
    pods_of = {"matchLabels": {"app": "vllm"}, "targetPorts": [{"number": 3000}]}
    objects = render("epp", {**IMAGE, "modelServers": pods_of}, "picker", cluster.namespace)
    await grant(cluster, objects)
    (headless,) = [o for o in objects if o["kind"] == "Service" and o["spec"].get("clusterIP") == "None"]
    await cluster.admin.apply(headless)
    named = {port["name"]: port["containerPort"] for port in container(objects, "epp")["ports"]}
    labels = workload(objects)["spec"]["template"]["metadata"]["labels"]
    picker_pods = [await cluster.pod(f"picker-{at}", labels=labels, ports=named) for at in range(2)]
    arguments, variables = pod_arguments(objects, tmp_path)
    name = f"{headless['metadata']['name']}.{cluster.namespace}"
    gateway = render("gateway", {**IMAGE, "pickers": [f"{name}:9002"]}, "gateway", cluster.namespace)
    file = printed(gateway, tmp_path)
    config = yaml.safe_load(file.read_text())
    resolved = [Address(pod.address, 9002) for pod in picker_pods]
    for one in config["static_resources"]["clusters"]:
        if one["name"] in ("picker", "outcomes-1"):
            one |= static_hosts(one["name"], resolved)
    file.write_text(yaml.safe_dump(config))
    ports = {port["name"]: port["containerPort"] for port in container(gateway, "envoy")["ports"]}
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        await enter(model_servers(cluster, "vllm", 3000, count=2))
        pickers = []
        for at, pod in enumerate(picker_pods):
            pages = f"127.0.0.{at + 2}"  # who asks from another machine is shown less
            own = [*arguments, f"--host={pod.address}", f"--metrics-address={pages}"]
            pickers.append(await enter(picker_pod(cluster, own, variables, pages)))

        async def acquainted() -> bool:
            found = [(await one.status())["peers"] for one in pickers]
            return all(len(one["connected"]) == 1 for one in found)

        await eventually(acquainted)
        await enter(running(*envoy_command(gateway, file)))
        client = await enter(aiohttp.ClientSession())

        async def ask() -> bool:
            url = f"http://127.0.0.1:{ports['http']}/v1/completions"
            try:
                async with client.post(url, json={"model": "m", "prompt": "Hello"}) as answer:
                    return answer.status == 200
            except aiohttp.ClientConnectionError:
                return False

        await eventually(ask)

        async def told() -> bool:
            """Each has picked, and knows what became of all that it picked."""
            assert await ask()
            found = [(await one.status())["outcomes"] for one in pickers]
            assert not any(one.get("lost") for one in found)
            return [(one["by"], one.get("awaited")) for one in found] == [("access_log", 0)] * 2

        await eventually(told)
