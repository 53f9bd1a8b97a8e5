"""Cluster and credentials: of the own pod, of a kubeconfig, of an exec plugin."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from discovery import DiscoveryError
from discovery.kubernetes import ClusterTransport, load_cluster
from tests.eventually import eventually
from tests.kubernetes.fake.over_http import SHORT, Serve, TokenServer, get


async def test_the_pods_own_cluster(tmp_path: Path) -> None:
    for name, text in (("token", "t\n"), ("ca.crt", "a certificate"), ("namespace", "prod\n")):
        (tmp_path / name).write_text(text)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    cluster = await load_cluster(environ=environ, service_account=tmp_path)
    assert (cluster.server, cluster.namespace) == ("https://[fd00::1]:6443", "prod")
    assert not cluster.trust_env
    assert (await cluster.credentials.identity()).authorization == "Bearer t"


async def test_a_pod_without_its_token(tmp_path: Path) -> None:
    with pytest.raises(DiscoveryError, match="automountServiceAccountToken"):
        await load_cluster(environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, service_account=tmp_path)


def kubeconfig(folder: Path, **changes: object) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": "https://api.example:6443"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "prod"}},
            {"name": "bare", "context": {"cluster": "c", "user": "u"}},
        ],
    } | changes
    path = folder / "config"
    path.write_text(json.dumps(document))
    return str(path)


async def test_a_kubeconfigs_context(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path)
    cluster = await load_cluster(kubeconfig=path)
    assert (cluster.server, cluster.namespace) == ("https://api.example:6443", "prod")
    assert (await cluster.credentials.identity()).authorization == "Bearer secret"
    assert (await load_cluster(kubeconfig=path, context="bare")).namespace == "default"
    assert (await load_cluster(environ={"KUBECONFIG": path})).namespace == "prod"


@pytest.mark.parametrize(
    ("changes", "context"),
    [({"current-context": ""}, None), ({}, "nowhere"), ({"contexts": []}, None), ({"clusters": []}, None)],
    ids=["no current context", "unknown context", "no contexts", "no cluster"],
)
async def test_a_kubeconfig_without_what_it_needs(
    tmp_path: Path, changes: dict[str, object], context: str | None
) -> None:
    path = kubeconfig(tmp_path, **changes)
    with pytest.raises(DiscoveryError, match=rf"{path} cannot be used with .*context=NAME"):
        await load_cluster(kubeconfig=path, context=context)


async def test_no_cluster_at_all(tmp_path: Path) -> None:
    with pytest.raises(DiscoveryError, match=r"no Kubernetes cluster.*no kubeconfig"):
        await load_cluster(environ={"KUBECONFIG": str(tmp_path / "none")})


def plugin(folder: Path, script: str) -> dict[str, object]:
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    run = {"command": str(path), "apiVersion": "client.authentication.k8s.io/v1"}
    return {"users": [{"name": "u", "user": {"exec": run}}]}


async def test_an_exec_plugins_token_is_renewed_when_it_is_rejected(serve: Serve, tmp_path: Path) -> None:
    answer = (
        '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}'
    )
    script = (
        f"n=$(cat {tmp_path}/n 2>/dev/null || echo 0); echo $((n+1)) > {tmp_path}/n; printf '{answer}' $n"
    )
    path = kubeconfig(tmp_path, **plugin(tmp_path, script))
    cluster = await load_cluster(kubeconfig=path)
    guard = TokenServer("0")
    transport = ClusterTransport(replace(cluster, server=await serve(guard.answer)))
    assert (await get(transport))[0] == 200
    guard.wanted = "1"
    assert (await get(transport))[0] == 200
    await transport.aclose()


async def test_an_exec_plugin_that_fails(tmp_path: Path) -> None:
    """Row 29."""
    path = kubeconfig(tmp_path, **plugin(tmp_path, "echo no login >&2; exit 3"))
    with pytest.raises(DiscoveryError, match="no login"):
        await load_cluster(kubeconfig=path)


async def test_an_exec_plugin_that_hangs(tmp_path: Path) -> None:
    """Row 29."""
    path = kubeconfig(tmp_path, **plugin(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 1"))
    with pytest.raises(DiscoveryError, match=r"no credentials within 0\.3 s.*exec plugin hangs"):
        await load_cluster(kubeconfig=path, timings=replace(SHORT, credentials_deadline=0.3))
    written = tmp_path / "pid"
    await eventually(lambda: written.exists() and written.read_text().endswith("\n"))
    pid = int(written.read_text())  # it is not ours to kill: the loader keeps it to itself
    await eventually(lambda: not Path(f"/proc/{pid}").exists())
